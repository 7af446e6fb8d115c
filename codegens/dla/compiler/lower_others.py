"""Lower operators that work element by element, pools, and operators that only move elements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx

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
from .layers import ActivationLayer, Array, ConcatLayer, EltwiseLayer, PoolLayer
from .lowering import NetworkBuilder
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


def lower_sum(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower an Add, or a Sum of any number of operands to additions one after another."""
    operands, y = _arrange_operands(lowering, unit)
    clamp = lowering.fused_clamp(unit)
    if len(operands) == 1:
        lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, operands[0], clamp=clamp))
        return
    if len(operands) > 2 and unit.quantization is not None:
        raise CompileError("a quantized Sum must be of two operands", unit.nodes)
    total = operands[0]
    for number, other in enumerate(operands[1:-1], 1):
        name = lowering.unused_name(f"{unit.output}/{number}")
        pairs = zip(total.extents, other.extents, strict=True)
        extents: Any = tuple(n if m == 1 else m for m, n in pairs)
        interim = y.like(name, extents)
        total = lowering.add_layer(
            EltwiseLayer(name, unit.nodes, interim, total, other, multiplies=False)
        )
    last = operands[-1]
    lowering.add_layer(
        EltwiseLayer(unit.output, unit.nodes, y, total, last, multiplies=False, clamp=clamp)
    )


def lower_mul(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Mul."""
    (a, b), y = _arrange_operands(lowering, unit)
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(EltwiseLayer(unit.output, unit.nodes, y, a, b, multiplies=True, clamp=clamp))


def lower_div(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Div by a constant to a product."""
    divisor = unit.operands[1]
    if not lowering.reading.is_constant(divisor.name) or unit.quantization is not None:
        raise CompileError("a Div must be by a constant, in float32", unit.nodes)
    (a, b), y = _arrange_operands(lowering, unit)
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.float32(1) / lowering.constants[b.name]
    if not np.isfinite(factors).all():
        raise CompileError("one over the divisor of a Div is not finite", unit.nodes)
    lowering.constants[b.name] = factors
    lowering.add_layer(EltwiseLayer(unit.output, unit.nodes, y, a, b, multiplies=True))


def lower_power(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Pow by 2 or 3 to products."""
    exponent = unit.operands[1]
    given = (
        lowering.reading.constant_array(exponent)
        if lowering.reading.is_constant(exponent.name)
        else None
    )
    if given is None or given.size != 1 or given.item() not in (2, 3) or unit.quantization is not None:
        raise CompileError("a Pow must be by 2 or 3, in float32", unit.nodes)
    x, y = _arrange_alone(lowering, unit)
    power = x
    for number in range(2, int(given.item()) + 1):
        last = number == given.item()
        made = y if last else y.like(lowering.unused_name(f"{unit.output}/{number}"))
        power = lowering.add_layer(EltwiseLayer(made.name, unit.nodes, made, power, x, multiplies=True))


def lower_cast(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Cast from float32 to float32, which is a view."""
    if unit.main.attributes["to"] != onnx.TensorProto.FLOAT:
        raise CompileError("a Cast must be to float32", unit.nodes)
    lower_reshape(lowering, unit)


def lower_clamp(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Relu or Clip that is not fused."""
    x, y = _arrange_alone(lowering, unit)
    lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, clamp=lowering.fused_clamp(unit)))


def lower_function(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a function to a table of 256 bytes in integers, to the machine's own in float32."""
    x, y = _arrange_alone(lowering, unit)
    kind, parameters = _machine_function(unit.main)
    if not y.is_integer:
        lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, None, kind, parameters))
        return
    low, high = lowering.fused_clamp(unit).saturate_limits(y)
    table = _function_table(kind, parameters, x, y).view(y.dtype).clip(int(low), int(high))
    lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, table.view(np.uint8)))


def _arrange_operands(
    lowering: NetworkBuilder, unit: LayerGroup
) -> tuple[list[LayerTensor], LayerTensor]:
    """Return the operands as tensors of the rank of the result, and the result.

    All are in ONNX's order if one of them is that was computed, or all are; else images.
    """
    made = lowering.shapes[unit.main.outputs[0]]
    plain = lowering.is_plain([each.name for each in unit.operands])
    constants = {
        each.name: lowering.constant_tensor(unit, each, len(made), not plain)
        for each in unit.operands
        if lowering.reading.is_constant(each.name)
    }
    computed = [each.name for each in unit.operands if each.name not in constants]
    common = _common_extents(lowering, computed, [*constants.values()], made, not plain)
    extents_of = matrix_extents if plain else memory_extents

    def arrange(operand: Operand) -> LayerTensor:
        if operand.name in constants:
            return constants[operand.name]
        shape = lowering.shapes[operand.name]
        shape = (1,) * (len(made) - len(shape)) + shape
        extents = common or extents_of(shape)
        x = lowering.arrange(operand.name, shape, unit.nodes, image=not plain, extents=extents)
        return lowering.scale_operand(unit, operand, x)

    operands = [arrange(each) for each in unit.operands]
    y = lowering.result_tensor(unit, (common or extents_of(made)) if plain else None)
    return operands, replace(y, extents=common or y.extents)


def _common_extents(
    lowering: NetworkBuilder,
    names: Sequence[str],
    constants: Sequence[LayerTensor],
    shape: Shape,
    image: bool,
) -> Extents | None:
    """Return the extents that tensors of one shape have already, if constants fit them."""
    if any(lowering.shapes[name] != shape for name in names):
        return None
    found = {lowering.arrange(name, shape, (), image=image).extents for name in names}
    if len(found) != 1:
        return None
    (extents,) = found
    fits = all(each.extents in ((1, 1, 1, 1), (1, 1, 1, extents[3])) for each in constants)
    return extents if fits or memory_extents(shape) == extents else None


def _arrange_alone(lowering: NetworkBuilder, unit: LayerGroup) -> tuple[LayerTensor, LayerTensor]:
    """Return the only operand as it is, and the result in the same order."""
    (operand,) = unit.operands[:1]
    x = lowering.scale_operand(unit, operand, lowering.tensors[operand.name])
    y = replace(lowering.result_tensor(unit), extents=x.extents)
    if operand.name in lowering.plain:
        lowering.plain.add(unit.output)
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


def lower_pool(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a MaxPool or AveragePool."""
    attributes = unit.main.attributes
    if attributes["auto_pad"] != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", unit.nodes)
    indices = unit.main.outputs[1:]
    if any(lowering.is_read(name) for name in indices):
        raise CompileError("the machine does not compute the indices of a MaxPool", unit.nodes)
    kernel = attributes["kernel_shape"]
    if len(kernel) != 2:
        raise CompileError("a pool must be of an image of two dimensions", unit.nodes)
    window = window_of(attributes, kernel)
    _add_pool(
        lowering, unit, unit.main.op == "AveragePool", window, bool(attributes.get("count_include_pad"))
    )


def lower_global_pool(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a GlobalAveragePool to a pool with a window as large as the image."""
    shape = lowering.shapes[unit.main.inputs[0]]
    if len(shape) != 4:
        raise CompileError("a pool must be of an image of two dimensions", unit.nodes)
    _add_pool(lowering, unit, True, SlidingWindow(kernel=shape[2:]), False)


def _add_pool(
    lowering: NetworkBuilder, unit: LayerGroup, average: bool, window: SlidingWindow, counts_pads: bool
) -> None:
    x, y = lowering.operand_tensor(unit, unit.operands[0]), lowering.result_tensor(unit)
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(
        PoolLayer(unit.output, unit.nodes, y, x, average, window, counts_pads, clamp=clamp)
    )


_IMAGE_AXES = (0, 3, 1, 2)  # of ONNX's N, C, H, W among images, rows, columns, channels


def lower_reshape(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Reshape, Flatten or Dropout to a view, unless bytes have to move or scales differ."""
    if any(lowering.is_read(name) for name in unit.main.outputs[1:]):
        raise CompileError(f"the machine does not compute the mask of a {unit.main.op}", unit.nodes)
    name, after = unit.main.inputs[0], lowering.shapes[unit.output]
    image = lowering.shapes[name] == after and name not in lowering.plain
    view = lowering.arrange(name, after, unit.nodes, image=image)
    lowering.add_view(unit, view, plain=not image)


def lower_concat(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Concat."""
    shape = lowering.shapes[unit.main.outputs[0]]
    axis = unit.main.attributes["axis"] % len(shape)
    arranged, y = _arrange_operands(lowering, unit)
    place = _extents_axis(axis, len(shape)) if unit.output not in lowering.plain else axis
    if place is None:
        raise CompileError(
            f"the machine has no Concat along axis {axis} of {len(shape)} axes", unit.nodes
        )
    parts = tuple(part for part in arranged if part.nbytes)
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(ConcatLayer(unit.output, unit.nodes, y, parts, place, clamp=clamp))


def _extents_axis(axis: int, rank: int) -> int | None:
    """Return the position of an ONNX axis among `extents`, None if it is only a part of one."""
    if rank == 4:
        return _IMAGE_AXES[axis]
    if axis == rank - 1:
        return 3
    if axis == 0:
        return 1
    return 2 if rank == 3 else None
