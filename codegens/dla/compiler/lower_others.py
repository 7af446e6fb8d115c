"""Lower operators that work element by element, and pools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation

from ..machine import FunctionKind, build_table, evaluate_function
from .layer_groups import LayerGroup
from .layer_tensors import (
    Extents,
    LayerTensor,
    Shape,
    SlidingWindow,
    dtype_of,
    matrix_extents,
    memory_extents,
)
from .layers import ActivationLayer, Array, EltwiseLayer, PoolLayer
from .network_builder import NetworkBuilder
from .output_shapes import window_of
from .region_reading import Operand

FUNCTIONS: Mapping[str, FunctionKind] = {
    "Sigmoid": FunctionKind.SIGMOID,
    "Tanh": FunctionKind.TANH,
    "HardSigmoid": FunctionKind.HARD_SIGMOID,
    "HardSwish": FunctionKind.HARD_SWISH,
    "LeakyRelu": FunctionKind.LEAKY_RELU,
    "Elu": FunctionKind.ELU,
    "Erf": FunctionKind.ERF,
    "Gelu": FunctionKind.GELU,
}
"""ONNX operators that are a function of one variable, and the machine's function for each."""


def lower_sum(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower an Add, or a Sum of any number of operands to additions one after another."""
    operands, y = arrange_operands(builder, group)
    clamp = builder.fused_clamp(group)
    if len(operands) == 1:
        builder.add_layer(ActivationLayer(group.output, group.nodes, y, operands[0], clamp=clamp))
        return
    if len(operands) > 2 and group.quantization is not None:
        raise CompileError("a quantized Sum must be of two operands", group.nodes)
    total = operands[0]
    for number, other in enumerate(operands[1:-1], 1):
        name = builder.unused_name(f"{group.output}/{number}")
        pairs = zip(total.extents, other.extents, strict=True)
        extents: Any = tuple(n if m == 1 else m for m, n in pairs)
        interim = y.like(name, extents)
        total = builder.add_layer(
            EltwiseLayer(name, group.nodes, interim, total, other, multiplies=False)
        )
    last = operands[-1]
    builder.add_layer(
        EltwiseLayer(group.output, group.nodes, y, total, last, multiplies=False, clamp=clamp)
    )


def lower_mul(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Mul."""
    (a, b), y = arrange_operands(builder, group)
    clamp = builder.fused_clamp(group)
    builder.add_layer(EltwiseLayer(group.output, group.nodes, y, a, b, multiplies=True, clamp=clamp))


def lower_div(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Div by a constant to a product."""
    divisor = group.operands[1]
    if not builder.reading.is_constant(divisor.name):
        raise CompileError("a Div must be by a constant", group.nodes)
    group.require_float()
    (a, b), y = arrange_operands(builder, group)
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.float32(1) / builder.constants[b.name]
    if not np.isfinite(factors).all():
        raise CompileError("one over the divisor of a Div is not finite", group.nodes)
    builder.constants[b.name] = factors
    builder.add_layer(EltwiseLayer(group.output, group.nodes, y, a, b, multiplies=True))


def lower_power(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Pow by 2 or 3 to products."""
    exponent = group.operands[1]
    given = (
        builder.reading.constant_array(exponent) if builder.reading.is_constant(exponent.name) else None
    )
    if given is None or given.size != 1 or given.item() not in (2, 3):
        raise CompileError("a Pow must be by 2 or 3", group.nodes)
    group.require_float()
    x, y = _arrange_alone(builder, group)
    power = x
    for number in range(2, int(given.item()) + 1):
        last = number == given.item()
        made = y if last else y.like(builder.unused_name(f"{group.output}/{number}"))
        power = builder.add_layer(EltwiseLayer(made.name, group.nodes, made, power, x, multiplies=True))


def lower_clamp(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Relu or Clip that is not fused."""
    x, y = _arrange_alone(builder, group)
    builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, clamp=builder.fused_clamp(group)))


def lower_function(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a function to a table of 256 bytes in integers, to the machine's own in float32."""
    x, y = _arrange_alone(builder, group)
    kind, parameters = _machine_function(group.main)
    if not y.is_integer:
        builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, None, kind, parameters))
        return
    low, high = builder.fused_clamp(group).saturate_limits(y)
    table = _function_table(kind, parameters, x, y).view(y.dtype).clip(int(low), int(high))
    builder.add_layer(ActivationLayer(group.output, group.nodes, y, x, table.view(np.uint8)))


def arrange_operands(
    builder: NetworkBuilder, group: LayerGroup
) -> tuple[list[LayerTensor], LayerTensor]:
    """Return the operands as tensors of the rank of the result, and the result.

    All are in ONNX's order if one of them is that was computed, or all are; else images.
    """
    made = builder.shapes[group.main.outputs[0]]
    plain = builder.is_plain([each.name for each in group.operands])
    constants = {
        each.name: builder.constant_tensor(group, each, len(made), not plain)
        for each in group.operands
        if builder.reading.is_constant(each.name)
    }
    computed = [each.name for each in group.operands if each.name not in constants]
    common = _common_extents(builder, computed, [*constants.values()], made, not plain)
    extents_of = matrix_extents if plain else memory_extents

    def arrange(operand: Operand) -> LayerTensor:
        if operand.name in constants:
            return constants[operand.name]
        shape = builder.shapes[operand.name]
        shape = (1,) * (len(made) - len(shape)) + shape
        extents = common or extents_of(shape)
        x = builder.arrange(operand.name, shape, group.nodes, image=not plain, extents=extents)
        return builder.scale_operand(group, operand, x)

    operands = [arrange(each) for each in group.operands]
    y = builder.result_tensor(group, (common or extents_of(made)) if plain else None)
    return operands, replace(y, extents=common or y.extents)


def _common_extents(
    builder: NetworkBuilder,
    names: Sequence[str],
    constants: Sequence[LayerTensor],
    shape: Shape,
    image: bool,
) -> Extents | None:
    """Return the extents that tensors of one shape have already, if constants fit them."""
    if any(builder.shapes[name] != shape for name in names):
        return None
    found = {builder.arrange(name, shape, (), image=image).extents for name in names}
    if len(found) != 1:
        return None
    (extents,) = found
    fits = all(each.extents in ((1, 1, 1, 1), (1, 1, 1, extents[3])) for each in constants)
    return extents if fits or memory_extents(shape) == extents else None


def _arrange_alone(builder: NetworkBuilder, group: LayerGroup) -> tuple[LayerTensor, LayerTensor]:
    """Return the only operand as it is, and the result in the same order."""
    (operand,) = group.operands[:1]
    x = builder.scale_operand(group, operand, builder.tensors[operand.name])
    y = replace(builder.result_tensor(group), extents=x.extents)
    if operand.name in builder.plain:
        builder.plain.add(group.output)
    return x, y


def _machine_function(operation: Operation) -> tuple[FunctionKind, tuple[float, float]]:
    """Return the machine's function for an operator, with `alpha` and `beta`, 0 where it has none."""
    kind, attributes = FUNCTIONS[operation.op], operation.attributes
    if attributes.get("approximate") == "tanh":
        kind = FunctionKind.GELU_TANH
    return kind, (attributes.get("alpha", 0.0), attributes.get("beta", 0.0))


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
    x, y = builder.operand_tensor(group, group.operands[0]), builder.result_tensor(group)
    clamp = builder.fused_clamp(group)
    builder.add_layer(
        PoolLayer(group.output, group.nodes, y, x, average, window, counts_pads, clamp=clamp)
    )
