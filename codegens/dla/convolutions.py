"""Lower convolutions, matrix products and normalizations; all of them become convolutions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .fold import Weights, normalization_factors, pointwise, requantized
from .layers import Array, Conv
from .lower import Lowering
from .shapes import window_of
from .tensors import Tensor, Window
from .units import Unit

_NO_MULTIPLIERS = np.zeros(0)
_TO_MACHINE = (0, 2, 3, 1)  # OIHW to OHWI


def lower_conv(lowering: Lowering, unit: Unit) -> None:
    """Lower a Conv with the operations fused to it."""
    attributes, inputs = unit.main.attributes, [*unit.main.inputs, ""]
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", unit.nodes)
    if len(lowering.shapes.get(inputs[0], ())) != 4:
        raise CompileError("a Conv must be of an image of two dimensions", unit.nodes)
    weights = _weights(lowering, unit, inputs[1], inputs[2], axis=0)
    kernel = weights.stored.shape[2:]
    _convolve(lowering, unit, weights, window_of(attributes, kernel), attributes.get("group", 1))


def lower_gemm(lowering: Lowering, unit: Unit) -> None:
    """Lower a Gemm to a 1x1 convolution over rows of one pixel."""
    attributes, inputs = unit.main.attributes, [*unit.main.inputs, ""]
    if attributes.get("transA"):
        raise CompileError("transA must be 0", unit.nodes)
    axis = 0 if attributes.get("transB") else 1
    weights = _weights(lowering, unit, inputs[1], "", axis)
    weights = weights.scaled(np.array(attributes.get("alpha", 1.0)), np.array(0.0))
    beta = attributes.get("beta", 1.0)
    if inputs[2] and beta:
        addend = _bias(lowering, unit, inputs[2]) * beta
        count = len(weights.stored)
        if addend.size not in (1, count) or (addend.ndim and addend.shape[-1] != addend.size):
            raise CompileError("C of a Gemm must be one number for each column, or one", unit.nodes)
        weights = replace(weights, bias=weights.bias + addend.reshape(-1))
    _convolve(lowering, unit, weights, Window(), 1)


def lower_matmul(lowering: Lowering, unit: Unit) -> None:
    """Lower a MatMul by a constant matrix to a 1x1 convolution; vectors are the pixels of a row."""
    name, matrix = unit.main.inputs
    reading = lowering.reading
    is_matrix = reading.is_constant(matrix) and reading.array(matrix).ndim == 2
    if not is_matrix or len(lowering.shapes.get(name, ())) not in (2, 3):
        raise CompileError("a MatMul must be of 2 or 3 axes by a constant matrix", unit.nodes)
    weights = _weights(lowering, unit, matrix, "", axis=1)
    _convolve(lowering, unit, weights, Window(), 1)


def lower_batch_normalization(lowering: Lowering, unit: Unit) -> None:
    """Lower a BatchNormalization that is not fused to a depthwise 1x1 convolution."""
    name = unit.main.inputs[0]
    x = lowering.operand(unit, name)
    if len(lowering.shapes[name]) != 4:
        raise CompileError("a BatchNormalization must be of an image of two dimensions", unit.nodes)
    factors, shifts = _factors(lowering, unit.main)
    if unit.quantize is None:
        stored = np.ones((x.channels, 1, 1, 1), np.float32)
        weights = Weights(stored, factors, shifts)
    else:
        weights = pointwise(factors, shifts, x.scale)
    _convolve(lowering, unit, weights, Window(), x.channels)


def _convolve(lowering: Lowering, unit: Unit, weights: Weights, window: Window, groups: int) -> None:
    x, y = lowering.operand(unit, unit.main.inputs[0]), lowering.result(unit)
    residual = None
    before = unit.main.outputs[0]
    for each in unit.followers:
        if each.op == "BatchNormalization":
            weights = weights.scaled(*_factors(lowering, each))
        elif each.op in ("Add", "Sum"):
            other = next(name for name in each.inputs if name != before)
            residual = lowering.operand(unit, other)
        before = each.outputs[0]
    stored, bias, multipliers = _numbers(unit, weights, x, y)
    ordered = np.ascontiguousarray(stored.transpose(_TO_MACHINE))
    clamp = lowering.clamp(unit)
    lowering.add(
        Conv(
            unit.output, unit.nodes, y, x, ordered, bias, multipliers, window, groups, residual,
            clamp=clamp,
        )
    )  # fmt: skip


def _numbers(unit: Unit, weights: Weights, x: Tensor, y: Tensor) -> tuple[Array, Array, Array]:
    """Return weights, bias and multipliers in the form of `Conv`."""
    if not y.is_integer:
        return _real(unit, weights), weights.bias.astype(np.float32), _NO_MULTIPLIERS
    if not (np.isfinite(weights.factors).all() and np.isfinite(weights.bias).all()):
        raise CompileError("a scale of its weights or a bias is not finite", unit.nodes)
    found = requantized(weights, x.scale, y.scale)
    if found is None:
        reason = "the bias does not fit into an int32 at its scale, or is too fine for it"
        raise CompileError(reason, unit.nodes)
    return found.weights, found.bias, found.multipliers


def _real(unit: Unit, weights: Weights) -> Array:
    """Return float32 weights with factors applied. Raises CompileError if that makes them infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        real = weights.real()
    if np.isfinite(weights.stored).all() and not np.isfinite(real).all():
        raise CompileError(
            "its weights times the factors of the operations fused to it are not finite", unit.nodes
        )
    return real


def _weights(lowering: Lowering, unit: Unit, name: str, bias: str, axis: int) -> Weights:
    """Return constant weights; a matrix, with outputs along `axis`, becomes weights of a 1x1 kernel."""
    reading = lowering.reading
    if not reading.is_constant(name):
        raise CompileError(f"the weights '{name}' must be constant", unit.nodes)
    integers = reading.integers(name) if unit.quantize is not None else None
    if integers is None and unit.quantize is not None:
        raise CompileError(f"the weights '{name}' are not quantized", unit.nodes)
    stored = reading.array(name) if integers is None else integers[0]
    factors = np.ones(1)
    if integers is not None:
        quantization = integers[1]
        if stored.dtype != np.int8 or quantization.zero.any():
            raise CompileError(f"the weights '{name}' must be int8 with zero points 0", unit.nodes)
        if quantization.scale.size > 1 and quantization.axis % stored.ndim != axis:
            raise CompileError(f"the scales of '{name}' must be of output channels", unit.nodes)
        factors = quantization.scale.astype(np.float64).reshape(-1)
    if stored.ndim == 2:
        matrix = stored if axis == 0 else stored.T
        stored = matrix.reshape(*matrix.shape, 1, 1)
    count = len(stored)
    real = _bias(lowering, unit, bias).reshape(-1) if bias else np.zeros(1)
    return Weights(stored, np.broadcast_to(factors, count), np.broadcast_to(real, count))


def _bias(lowering: Lowering, unit: Unit, name: str) -> Array:
    """Return a bias in float64, exact if it is stored as integers."""
    if not lowering.reading.is_constant(name):
        raise CompileError(f"the bias '{name}' must be constant", unit.nodes)
    found = lowering.reading.integers(name)
    if found is None:
        return lowering.reading.array(name).astype(np.float64)
    stored, quantization = found
    return (stored.astype(np.float64) - quantization.zero) * quantization.scale.astype(np.float64)


def _factors(lowering: Lowering, operation: Operation) -> tuple[Array, Array]:
    """Return the factor and the shift of each channel of a BatchNormalization, in float64."""
    given: Sequence[str] = operation.inputs[1:5]
    if operation.attributes.get("training_mode"):
        raise CompileError("training_mode must be 0", [operation.name])
    if not all(map(lowering.reading.is_constant, given)):
        raise CompileError("the parameters of a BatchNormalization must be constant", [operation.name])
    scale, shift, mean, variance = (lowering.reading.array(name) for name in given)
    epsilon = operation.attributes.get("epsilon", 1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors, shifts = normalization_factors(scale, shift, mean, variance, epsilon)
    if not (np.isfinite(factors).all() and np.isfinite(shifts).all()):
        raise CompileError("the factors of a BatchNormalization must be finite", [operation.name])
    return factors, shifts
