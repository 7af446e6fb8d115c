"""Lower clamps, functions of one variable, and pools."""

from dataclasses import replace
from functools import partial

import numpy as np

from byoc.codegen import CompileError

from ..machine import FunctionKind, build_table, evaluate_function
from .layer_groups import LayerGroup
from .layer_tensors import INT16, LayerTensor, SlidingWindow, dtype_of, memory_extents
from .layers import ActivationLayer, Array, ConvLayer, PoolLayer
from .lower_arithmetic import arrange_alone
from .machine_functions import find_function
from .network_builder import NetworkBuilder
from .output_shapes import window_of
from .region_reading import read_encoding


def lower_clamp(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Relu or Clip that is not fused."""
    x, y = arrange_alone(builder, group, by_channel=True)
    builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, clamp=builder.fused_clamp(group)))


def lower_function(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a function to the machine's own in float32, to tables in bytes, to a CONV's with int16."""
    x, y = arrange_alone(builder, group, by_channel=True)
    if any(group.main.inputs[1:]):
        raise CompileError(f"the bias of a {group.main.op} must be an addition of its own", group.nodes)
    kind, parameters = find_function(group.operations)
    if not y.is_integer:
        builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, None, kind, parameters))
        return
    if INT16 in (x.dtype, y.dtype):
        builder.add_layer(_make_function_stage(builder, group, y, x))
        return
    lows, highs = builder.fused_clamp(group).channel_limits(y)
    count = y.channels if y.has_channel_scales else 1
    tables = [
        _function_table(kind, parameters, x, y.at_channel(c)).view(y.dtype).clip(lows[c], highs[c])
        for c in range(count)
    ]
    table = np.array(tables).astype(y.dtype).view(np.uint8)
    table = table if y.has_channel_scales else table[0]
    builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, table))


def lower_conversion(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower an Identity, DequantizeLinear or QuantizeLinear to a copy as its result is stored."""
    (operand,) = group.operands
    given, shape = operand.quantization, builder.shapes[operand.name]
    x, channels = builder.tensors[operand.name], 0
    if group.has_channel_scales or (given is not None and not given.is_per_tensor):
        x = builder.arrange(operand.name, shape, group.nodes, extents=memory_extents(shape))
        channels = x.channels if len(shape) == 4 else 0
    elif operand.name in builder.plain:
        builder.plain.add(group.output)
    y = replace(builder.result_tensor(group, by_channel=bool(channels)), extents=x.extents)
    if given is not None:
        x = x.view(x.name).encoded_by(
            *read_encoding(given, group.nodes, channels if y.is_integer else 0)
        )
    builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, clamp=builder.fused_clamp(group)))


def _make_function_stage(
    builder: NetworkBuilder, group: LayerGroup, y: LayerTensor, x: LayerTensor
) -> ConvLayer:
    """Return a convolution that multiplies each channel by 1, with the function of a group."""
    weights, bias = np.ones((x.channels, 1, 1, 1), np.int8), np.zeros(x.channels, np.int32)
    scales = np.full(x.channels, x.scale)
    function, parameters = find_function(group.operations)
    clamp = builder.fused_clamp(group)
    return ConvLayer(
        group.output, group.nodes, y, x, weights, bias, scales, SlidingWindow(), x.channels, None,
        function, parameters, clamp=clamp,
    )  # fmt: skip


def _function_table(
    kind: FunctionKind, parameters: tuple[float, float], x: LayerTensor, y: LayerTensor
) -> Array:
    """Return the table of a function between two quantized tensors, 256 uint8."""
    return np.frombuffer(
        build_table(
            partial(evaluate_function, kind, alpha=parameters[0], beta=parameters[1]),
            x.scale, x.zero, dtype_of(x), y.scale, y.zero, dtype_of(y),
        ),
        np.uint8,
    )  # fmt: skip


def lower_pool(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MaxPool or AveragePool."""
    attributes = group.main.attributes
    if attributes["auto_pad"] != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", group.nodes)
    indices = group.main.outputs[1:]
    if any(builder.is_read(name) for name in indices):
        raise CompileError("the machine does not compute the indices of a MaxPool", group.nodes)
    kernel = attributes["kernel_shape"]
    if len(kernel) != 2:
        raise CompileError("a pool must be of an image of two dimensions", group.nodes)
    window = window_of(attributes, kernel)
    _add_pool(
        builder, group, group.main.op == "AveragePool", window, bool(attributes.get("count_include_pad"))
    )


def lower_global_pool(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a GlobalAveragePool to a pool with a window as large as the image."""
    shape = builder.shapes[group.main.inputs[0]]
    if len(shape) != 4:
        raise CompileError("a pool must be of an image of two dimensions", group.nodes)
    _add_pool(builder, group, True, SlidingWindow(kernel=shape[2:]), False)


def _add_pool(
    builder: NetworkBuilder, group: LayerGroup, average: bool, window: SlidingWindow, counts_pads: bool
) -> None:
    x = builder.operand_tensor(group, group.operands[0], by_channel=True)
    y = builder.result_tensor(group, by_channel=True)
    clamp = builder.fused_clamp(group)
    builder.add_layer(
        PoolLayer(group.output, group.nodes, y, x, average, window, counts_pads, clamp=clamp)
    )
