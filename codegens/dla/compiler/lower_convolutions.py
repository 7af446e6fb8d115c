"""Lower convolutions, matrix products and normalizations; all of them become convolutions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .layer_groups import LayerGroup
from .layer_tensors import LayerTensor, SlidingWindow
from .layers import Array, ConvLayer
from .lowering import NetworkBuilder
from .output_shapes import window_of
from .weight_folding import ConvWeights, normalization_factors, normalization_weights, requantize_weights

_NO_MULTIPLIERS = np.zeros(0)
_TO_MACHINE = (0, 2, 3, 1)  # OIHW to OHWI


def lower_conv(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Conv with the operations fused to it."""
    attributes, inputs = unit.main.attributes, [*unit.main.inputs, ""]
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", unit.nodes)
    if len(lowering.shapes.get(inputs[0], ())) != 4:
        raise CompileError("a Conv must be of an image of two dimensions", unit.nodes)
    weights = _constant_weights(lowering, unit, inputs[1], inputs[2], axis=0)
    kernel = weights.stored.shape[2:]
    _add_convolution(lowering, unit, weights, window_of(attributes, kernel), attributes.get("group", 1))


def lower_gemm(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Gemm to a 1x1 convolution over rows of one pixel."""
    attributes, inputs = unit.main.attributes, [*unit.main.inputs, ""]
    if attributes.get("transA"):
        raise CompileError("transA must be 0", unit.nodes)
    axis = 0 if attributes.get("transB") else 1
    weights = _constant_weights(lowering, unit, inputs[1], "", axis)
    weights = weights.scale_and_shift(np.array(attributes.get("alpha", 1.0)), np.array(0.0))
    beta = attributes.get("beta", 1.0)
    if inputs[2] and beta:
        addend = _constant_bias(lowering, unit, inputs[2]) * beta
        count = len(weights.stored)
        if addend.size not in (1, count) or (addend.ndim and addend.shape[-1] != addend.size):
            raise CompileError("C of a Gemm must be one number for each column, or one", unit.nodes)
        weights = replace(weights, bias=weights.bias + addend.reshape(-1))
    _add_convolution(lowering, unit, weights, SlidingWindow(), 1)


def lower_matmul(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a MatMul by a constant matrix to a 1x1 convolution; vectors are the pixels of a row."""
    name, matrix = unit.main.inputs
    reading = lowering.reading
    is_matrix = reading.is_constant(matrix) and reading.constant_array(matrix).ndim == 2
    if not is_matrix or len(lowering.shapes.get(name, ())) not in (2, 3):
        raise CompileError("a MatMul must be of 2 or 3 axes by a constant matrix", unit.nodes)
    weights = _constant_weights(lowering, unit, matrix, "", axis=1)
    _add_convolution(lowering, unit, weights, SlidingWindow(), 1)


def lower_batch_normalization(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a BatchNormalization that is not fused to a depthwise 1x1 convolution."""
    name = unit.main.inputs[0]
    x = lowering.operand_tensor(unit, name)
    if len(lowering.shapes[name]) != 4:
        raise CompileError("a BatchNormalization must be of an image of two dimensions", unit.nodes)
    factors, shifts = _normalization_factors(lowering, unit.main)
    if unit.quantize is None:
        stored = np.ones((x.channels, 1, 1, 1), np.float32)
        weights = ConvWeights(stored, factors, shifts)
    else:
        weights = normalization_weights(factors, shifts, x.scale)
    _add_convolution(lowering, unit, weights, SlidingWindow(), x.channels)


def _add_convolution(
    lowering: NetworkBuilder, unit: LayerGroup, weights: ConvWeights, window: SlidingWindow, groups: int
) -> None:
    x, y = lowering.operand_tensor(unit, unit.main.inputs[0]), lowering.result_tensor(unit)
    residual = None
    before = unit.main.outputs[0]
    for each in unit.followers:
        if each.op == "BatchNormalization":
            weights = weights.scale_and_shift(*_normalization_factors(lowering, each))
        elif each.op in ("Add", "Sum"):
            other = next(name for name in each.inputs if name != before)
            residual = lowering.operand_tensor(unit, other)
        before = each.outputs[0]
    stored, bias, multipliers = _layer_constants(unit, weights, x, y)
    ordered = np.ascontiguousarray(stored.transpose(_TO_MACHINE))
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(
        ConvLayer(
            unit.output, unit.nodes, y, x, ordered, bias, multipliers, window, groups, residual,
            clamp=clamp,
        )
    )  # fmt: skip


def _layer_constants(
    unit: LayerGroup, weights: ConvWeights, x: LayerTensor, y: LayerTensor
) -> tuple[Array, Array, Array]:
    """Return weights, bias and multipliers in the form of `Conv`."""
    if not y.is_integer:
        return _float_weights(unit, weights), weights.bias.astype(np.float32), _NO_MULTIPLIERS
    if not (np.isfinite(weights.factors).all() and np.isfinite(weights.bias).all()):
        raise CompileError("a scale of its weights or a bias is not finite", unit.nodes)
    found = requantize_weights(weights, x.scale, y.scale)
    if found is None:
        reason = "the bias does not fit into an int32 at its scale, or is too fine for it"
        raise CompileError(reason, unit.nodes)
    return found.weights, found.bias, found.multipliers


def _float_weights(unit: LayerGroup, weights: ConvWeights) -> Array:
    """Return float32 weights with factors applied. Raises CompileError if that makes them infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        real = weights.to_float32()
    if np.isfinite(weights.stored).all() and not np.isfinite(real).all():
        raise CompileError(
            "its weights times the factors of the operations fused to it are not finite", unit.nodes
        )
    return real


def _constant_weights(
    lowering: NetworkBuilder, unit: LayerGroup, name: str, bias: str, axis: int
) -> ConvWeights:
    """Return constant weights; a matrix, with outputs along `axis`, becomes weights of a 1x1 kernel."""
    reading = lowering.reading
    if not reading.is_constant(name):
        raise CompileError(f"the weights '{name}' must be constant", unit.nodes)
    integers = reading.quantized_constant(name) if unit.quantize is not None else None
    if integers is None and unit.quantize is not None:
        raise CompileError(f"the weights '{name}' are not quantized", unit.nodes)
    stored = reading.constant_array(name) if integers is None else integers[0]
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
    real = _constant_bias(lowering, unit, bias).reshape(-1) if bias else np.zeros(1)
    return ConvWeights(stored, np.broadcast_to(factors, count), np.broadcast_to(real, count))


def _constant_bias(lowering: NetworkBuilder, unit: LayerGroup, name: str) -> Array:
    """Return a bias in float64, exact if it is stored as integers."""
    if not lowering.reading.is_constant(name):
        raise CompileError(f"the bias '{name}' must be constant", unit.nodes)
    found = lowering.reading.quantized_constant(name)
    if found is None:
        return lowering.reading.constant_array(name).astype(np.float64)
    stored, quantization = found
    return (stored.astype(np.float64) - quantization.zero) * quantization.scale.astype(np.float64)


def _normalization_factors(lowering: NetworkBuilder, operation: Operation) -> tuple[Array, Array]:
    """Return the factor and the shift of each channel of a BatchNormalization, in float64."""
    given: Sequence[str] = operation.inputs[1:5]
    if operation.attributes.get("training_mode"):
        raise CompileError("training_mode must be 0", [operation.name])
    if not all(map(lowering.reading.is_constant, given)):
        raise CompileError("the parameters of a BatchNormalization must be constant", [operation.name])
    scale, shift, mean, variance = (lowering.reading.constant_array(name) for name in given)
    epsilon = operation.attributes.get("epsilon", 1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors, shifts = normalization_factors(scale, shift, mean, variance, epsilon)
    if not (np.isfinite(factors).all() and np.isfinite(shifts).all()):
        raise CompileError("the factors of a BatchNormalization must be finite", [operation.name])
    return factors, shifts
