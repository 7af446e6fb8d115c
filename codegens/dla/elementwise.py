"""Lower operators that work element by element: sums, products, clamps, functions."""

from functools import partial
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation

from .isa import FunctionKind
from .layers import ActivationLayer, Array, EltwiseLayer
from .lower import NetworkBuilder
from .tables import evaluate_function, build_table
from .tensors import LayerTensor, dtype_of
from .units import LayerGroup

FUNCTIONS: dict[str, tuple[FunctionKind, tuple[float, float]]] = {
    "Sigmoid": (FunctionKind.SIGMOID, (0.0, 0.0)),
    "Tanh": (FunctionKind.TANH, (0.0, 0.0)),
    "HardSigmoid": (FunctionKind.HARD_SIGMOID, (0.2, 0.5)),
    "HardSwish": (FunctionKind.HARD_SWISH, (0.0, 0.0)),
    "LeakyRelu": (FunctionKind.LEAKY_RELU, (0.01, 0.0)),
    "Elu": (FunctionKind.ELU, (1.0, 0.0)),
}
"""ONNX operators that are a function of one variable, with the defaults of `alpha` and `beta`."""


def lower_sum(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower an Add, or a Sum of any number of operands to additions one after another."""
    names, rank = unit.main.inputs, len(lowering.shapes[unit.main.outputs[0]])
    operands = [_broadcast_operand(lowering, unit, name, rank) for name in names]
    y, clamp = lowering.result_tensor(unit), lowering.fused_clamp(unit)
    if len(operands) == 1:
        lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, operands[0], clamp=clamp))
        return
    if len(operands) > 2 and unit.quantize is not None:
        raise CompileError("a quantized Sum must be of two operands", unit.nodes)
    total = operands[0]
    for number, other in enumerate(operands[1:-1], 1):
        name = lowering.unused_name(f"{unit.output}/{number}")
        pairs = zip(total.extents, other.extents, strict=True)
        extents: Any = tuple(n if m == 1 else m for m, n in pairs)
        interim = y.like(name, extents)
        total = lowering.add_layer(EltwiseLayer(name, unit.nodes, interim, total, other, multiplies=False))
    last = operands[-1]
    lowering.add_layer(EltwiseLayer(unit.output, unit.nodes, y, total, last, multiplies=False, clamp=clamp))


def lower_mul(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Mul."""
    rank = len(lowering.shapes[unit.main.outputs[0]])
    a, b = (_broadcast_operand(lowering, unit, name, rank) for name in unit.main.inputs)
    y, clamp = lowering.result_tensor(unit), lowering.fused_clamp(unit)
    lowering.add_layer(EltwiseLayer(unit.output, unit.nodes, y, a, b, multiplies=True, clamp=clamp))


def lower_clamp(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Relu or Clip that is not fused."""
    x, y = lowering.operand_tensor(unit, unit.main.inputs[0]), lowering.result_tensor(unit)
    lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, clamp=lowering.fused_clamp(unit)))


def lower_function(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a function to a table of 256 bytes in integers, to the machine's own in float32."""
    x, y = lowering.operand_tensor(unit, unit.main.inputs[0]), lowering.result_tensor(unit)
    kind, parameters = _machine_function(unit.main)
    if not y.is_integer:
        lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, None, kind, parameters))
        return
    lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, x, _function_table(kind, parameters, x, y)))


def _broadcast_operand(lowering: NetworkBuilder, unit: LayerGroup, name: str, rank: int) -> LayerTensor:
    """Return an operand as a tensor of the rank of the result."""
    if lowering.reading.is_constant(name):
        return lowering.constant_tensor(unit, name, rank)
    x = lowering.operand_tensor(unit, name)
    shape = lowering.shapes[name]
    return lowering.reshape_tensor(x, shape, (1,) * (rank - len(shape)) + shape, unit.nodes)


def _machine_function(operation: Operation) -> tuple[FunctionKind, tuple[float, float]]:
    """Return the machine's function for an operator, with `alpha` and `beta`."""
    kind, defaults = FUNCTIONS[operation.op]
    attributes = operation.attributes
    return kind, (attributes.get("alpha", defaults[0]), attributes.get("beta", defaults[1]))


def _function_table(kind: FunctionKind, parameters: tuple[float, float], x: LayerTensor, y: LayerTensor) -> Array:
    """Return the table of a function between two quantized tensors, 256 uint8."""
    return np.frombuffer(
        build_table(
            partial(evaluate_function, kind, alpha=parameters[0], beta=parameters[1]),
            x.scale, x.zero, dtype_of(x), y.scale, y.zero, dtype_of(y),
        ),
        np.uint8,
    )  # fmt: skip
