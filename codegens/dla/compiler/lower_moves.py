"""Lower operators that only move elements: views, copies of parts, transpositions, concatenations."""

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
import onnx

from byoc.codegen import CompileError

from ..machine import FunctionKind, build_table, evaluate_function
from .layer_groups import LayerGroup
from .layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    MinMaxLayer,
    MoveLayer,
    PoolLayer,
    QuantizeLayer,
    count_tile_elements,
    dense_steps,
)
from .lower_arithmetic import arrange_alone, arrange_operands
from .network_builder import NetworkBuilder
from .output_shapes import (
    FROM_NHWC,
    INT16,
    TO_NHWC,
    Array,
    Extents,
    LayerTensor,
    Shape,
    SlidingWindow,
    dtype_of,
    is_reordered,
    matrix_extents,
    memory_axis,
    memory_extents,
    window_of,
)
from .region_reading import DynamicProduct, find_function, list_operands, read_encoding

# Lower clamps, functions of one variable, and pools.


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


_TILE_BYTES = 1024  # of a transposition; larger ones are no better than matrices that are rows


def lower_reshape(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Reshape or its like to a view, unless bytes have to move or scales differ."""
    if any(builder.is_read(name) for name in group.main.outputs[1:]):
        raise CompileError(f"the machine does not compute the mask of a {group.main.op}", group.nodes)
    name, after = group.main.inputs[0], builder.shapes[group.output]
    image = builder.shapes[name] == after and name not in builder.plain
    view = builder.arrange(name, after, group.nodes, image=image)
    builder.add_view(group, view, plain=not image)


def lower_cast(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Cast to float32: from float32 to a view, from int32 to a copy that converts."""
    if group.main.attributes["to"] != onnx.TensorProto.FLOAT:
        raise CompileError("a Cast must be to float32", group.nodes)
    dtype = builder.tensors[group.main.inputs[0]].dtype
    if dtype not in ("float32", "int32"):
        raise CompileError("a Cast must be from float32 or int32", group.nodes)
    if dtype == "float32":
        lower_reshape(builder, group)
    else:
        x, y = arrange_alone(builder, group)
        builder.add_layer(ActivationLayer(group.output, group.nodes, y, x))


def lower_transpose(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Transpose: by DMA, or to a view where an image becomes plain, or the other way around."""
    name = group.main.inputs[0]
    shape, image = builder.shapes[name], _find_image(builder, name)
    perm = tuple(group.main.attributes.get("perm") or range(len(shape))[::-1])
    made = tuple(shape[axis] for axis in perm)
    if image is not None and perm == TO_NHWC:
        return builder.add_view(group, image, plain=True)
    if image is None and perm == FROM_NHWC and is_reordered(made):
        x = builder.arrange(name, shape, group.nodes, image=False, extents=matrix_extents(shape))
        return builder.add_view(group, x, plain=False)
    kept = [axis for axis in perm if shape[axis] > 1]
    if kept == sorted(kept):
        x = builder.arrange(name, shape, group.nodes, image=False)
        return builder.add_view(group, x, plain=True)
    whole, order = shape, perm
    if image is not None:
        x, whole, order = image, memory_extents(shape), tuple(map(memory_axis, perm))
    else:
        x = _arrange_rows(builder, group, name)
    y = x.like(builder.unused_name(f"{group.output}/moved"))
    layers = [
        MoveLayer(
            y.name, group.nodes, replace(y, extents=_rows_extents(made, axes)), x, whole, order, whole
        )
        for axes in range(len(made))
    ]
    enough = _TILE_BYTES // x.itemsize
    best = max(layers, key=lambda layer: (min(count_tile_elements(layer), enough), layer.y.rows))
    return builder.add_view(group, builder.add_layer(best), plain=True)


def _find_image(builder: NetworkBuilder, name: str) -> LayerTensor | None:
    """Return a tensor that is an image in the machine's order, None for one in ONNX's order."""
    shape = builder.shapes[name]
    if not is_reordered(shape) or name in builder.plain:
        return None
    x = builder.tensors[name]
    assert x.extents == memory_extents(shape)  # a view with other rows is always plain
    return x


def _arrange_rows(builder: NetworkBuilder, group: LayerGroup, name: str) -> LayerTensor:
    """Return a tensor in ONNX's order whose rows begin where one of its axes does."""
    shape = builder.shapes[name]
    x = builder.arrange(name, shape, group.nodes, image=False)
    if x.rows in {prod(shape[:axes]) for axes in range(len(shape))}:
        return x
    return builder.arrange(name, shape, group.nodes, image=False, extents=matrix_extents(shape))


def lower_split(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Split: each result that is read is a copy of a part."""
    (name, *_), start = group.main.inputs, 0
    shape = builder.shapes[name]
    axis = group.main.attributes.get("axis", 0) % len(shape)  # no default in operator set 1
    for made in group.main.outputs:
        if builder.is_read(made):
            _add_part(builder, group, made, axis, start, builder.shapes[made])
        start += builder.shapes[made][axis]


def lower_gather(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Gather of one constant position to a copy of a part."""
    name, indices = group.main.inputs
    shape = builder.shapes[name]
    axis = group.main.attributes["axis"] % len(shape)
    stored = builder.reading.stored_array(indices) if builder.reading.is_constant(indices) else None
    if stored is None or stored.size != 1 or not -shape[axis] <= stored.item() < shape[axis]:
        raise CompileError("a Gather must be of one constant position", group.nodes)
    part = (*shape[:axis], 1, *shape[axis + 1 :])
    _add_part(builder, group, group.output, axis, stored.item() % shape[axis], part)


def _add_part(  # noqa: PLR0913, PLR0917 - where the part is
    builder: NetworkBuilder, group: LayerGroup, made: str, axis: int, start: int, part: Shape
) -> None:
    """Add the copy of a part of a tensor, from a position along one axis."""
    group.require_float()
    name = group.main.inputs[0]
    shape, result, image = builder.shapes[name], builder.shapes[made], _find_image(builder, name)
    whole: Shape
    extents: Shape
    if image is not None and len(result) == 4:
        x, y = image, image.like(made, memory_extents(result))
        whole, extents, position = memory_extents(shape), memory_extents(part), memory_axis(axis)
    else:
        x = _arrange_rows(builder, group, name)
        rows = next(axes for axes in range(len(shape)) if x.rows == prod(shape[:axes]))
        y = x.like(made, _rows_extents(part, rows))
        whole, extents, position = shape, part, axis
        if is_reordered(result):
            builder.plain.add(made)
    first = start * dense_steps(whole)[position]
    order = tuple(range(len(whole)))
    builder.add_layer(MoveLayer(made, group.nodes, y, x, extents, order, whole, first))


def _rows_extents(shape: Shape, axes: int) -> Extents:
    """Return the extents of a tensor in ONNX's order with a row for each position of the first axes."""
    if (len(shape), axes) == (4, 2):
        return matrix_extents(shape)
    return (1, prod(shape[:axes]), prod(shape[axes:-1]), shape[-1])


def lower_concat(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Concat."""
    shape = builder.shapes[group.main.outputs[0]]
    axis = group.main.attributes["axis"] % len(shape)
    arranged, y = arrange_operands(builder, group)
    place = _extents_axis(axis, len(shape)) if group.output not in builder.plain else axis
    if place is None:
        raise CompileError(
            f"the machine has no Concat along axis {axis} of {len(shape)} axes", group.nodes
        )
    parts = tuple(part for part in arranged if part.nbytes)
    clamp = builder.fused_clamp(group)
    builder.add_layer(ConcatLayer(group.output, group.nodes, y, parts, place, clamp=clamp))


def _extents_axis(axis: int, rank: int) -> int | None:
    """Return the position of an ONNX axis among `extents`, None if it is only a part of one."""
    if rank == 4:
        return memory_axis(axis)
    if axis == rank - 1:
        return 3
    if axis == 0:
        return 1
    return 2 if rank == 3 else None


# Lower tensors that are quantized as the program runs, and their products by constant integers.
#
# A DynamicQuantizeLinear and the DequantizeLinear behind it are two layers: MINMAX reads the whole
# tensor, and QUANTIZE rounds it between these limits. Where all that reads the result multiplies it
# by constant integers, QUANTIZE makes integers, and a CONV multiplies them and scales its exact
# sums; else it makes their real numbers, which anything reads as float32.


def lower_dynamic_quantization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a DynamicQuantizeLinear: find the limits of its input, which say scale and zero point.

    Raises CompileError where something else than a DequantizeLinear reads what it makes.
    """
    made = set(filter(None, group.main.outputs))
    readers = [each for each in builder.reading.operations if made & {*each.inputs}]
    outputs = {contract.inner for contract in builder.reading.region.outputs}
    if made & outputs or any(
        each.op != "DequantizeLinear" or each.inputs != group.main.outputs for each in readers
    ):
        what = (
            "a DequantizeLinear must read the integers, scale and zero point of a DynamicQuantizeLinear"
        )
        raise CompileError(f"{what}, and nothing else", group.nodes)
    x = builder.tensors[group.main.inputs[0]]
    name = builder.unused_name(f"{group.output}/limits")
    limits = LayerTensor(name, (1, 1, 1, 2), "float32")
    builder.limits[group.main.outputs[0]] = group.main.inputs[0], limits
    builder.add_layer(MinMaxLayer(name, group.nodes, limits, x))


def lower_dequantize(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a DequantizeLinear: of constants' integers a conversion, of those of this run a rounding."""
    integers = group.main.inputs[0]
    if integers not in builder.limits:
        lower_conversion(builder, group)
        return
    name, limits = builder.limits[integers]
    group.require_float()
    x = builder.tensors[name]
    y = replace(builder.result_tensor(group), extents=x.extents)
    if name in builder.plain:
        builder.plain.add(group.output)
    products = builder.reading.dynamic_products.values()
    if any(each.read == group.output for each in products):
        y = replace(y, dtype=INT16)
        builder.limits[group.output] = name, limits
    builder.add_layer(QuantizeLayer(group.output, group.nodes, y, x, limits))


def find_dynamic_product(builder: NetworkBuilder, group: LayerGroup) -> DynamicProduct | None:
    """Return the product of integers that a group begins with; None where it begins otherwise."""
    return builder.reading.dynamic_products.get(group.main.outputs[0])


def lower_dynamic_product(builder: NetworkBuilder, group: LayerGroup, product: DynamicProduct) -> None:
    """Lower a Conv or MatMul of rounded numbers by integers, with bias, clamp and function behind it."""
    group.require_float()
    operand, attributes = group.operands[0], group.main.attributes
    outputs, _, *kernel = product.weights.shape
    window, groups = SlidingWindow(), 1
    if group.main.op == "Conv":
        if attributes["auto_pad"] != "NOTSET":
            raise CompileError("auto_pad must be NOTSET", group.nodes)
        window, groups = window_of(attributes, kernel), attributes["group"]
        x, y = builder.operand_tensor(group, operand), builder.result_tensor(group)
    else:
        x = builder.rows_tensor(group, operand)
        y = builder.result_tensor(group, (*x.extents[:3], outputs))
    function, parameters = find_function(group.function) if group.function else (None, (0.0, 0.0))
    weights = np.ascontiguousarray(product.weights.transpose(TO_NHWC))
    _, limits = builder.limits[product.read]
    bias = _read_bias(builder, group, outputs)
    builder.add_layer(
        ConvLayer(
            group.output, group.nodes, y, x, weights, bias, product.scales,
            window, groups, None, function, parameters, limits, clamp=builder.fused_clamp(group),
        )
    )  # fmt: skip


def _read_bias(builder: NetworkBuilder, group: LayerGroup, channels: int) -> np.ndarray:
    """Return the constant that an Add of a group adds, float32 [channels]; zeros without one."""
    before, found = group.main.outputs[0], np.zeros(1, np.float32)
    for each in group.followers:
        if each.op == "Add":
            found = builder.reading.constant_array(
                next(operand for operand in list_operands(each) if operand.name != before)
            ).astype(np.float32)
    return np.array(np.broadcast_to(found.reshape(-1), channels))
