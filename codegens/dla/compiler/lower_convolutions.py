"""Lower convolutions, matrix products and normalizations; all of them become convolutions."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation

from ..machine import split_bytes
from .layer_groups import LayerGroup
from .layers import ConvLayer, Int4Weights, MatMulLayer
from .network_builder import NetworkBuilder
from .output_shapes import (
    INT16,
    TO_NHWC,
    Array,
    Extents,
    LayerTensor,
    Shape,
    SlidingWindow,
    matrix_extents,
    window_of,
)
from .region_reading import Operand, find_function, list_operands

# Lower products of computed matrices, as attention has them.


def lower_matrix_product(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMul of two tensors of as many matrices."""
    shapes = [builder.shape_of(each.name) for each in group.operands]
    ranks = {len(shape) for shape in shapes}
    if ranks not in ({2}, {3}, {4}) or shapes[0][:-2] != shapes[1][:-2]:
        reason = "a MatMul must be by a constant matrix, or of 2 to 4 axes, all but the last two equal"
        raise CompileError(reason, group.nodes)
    a, b = (
        _arrange_matrices(builder, group, each, shape)
        for each, shape in zip(group.operands, shapes, strict=True)
    )
    y = builder.result_tensor(group, _matrices(builder.shapes[group.output]))
    clamp = builder.fused_clamp(group)
    builder.add_layer(MatMulLayer(group.output, group.nodes, y, a, b, clamp=clamp))


def _matrices(shape: Shape) -> Extents:
    """Return the extents of a tensor with each matrix as one row."""
    return matrix_extents((1,) * (4 - len(shape)) + shape)


def _arrange_matrices(
    builder: NetworkBuilder, group: LayerGroup, operand: Operand, shape: Shape
) -> LayerTensor:
    if builder.reading.is_constant(operand.name):
        x = builder.constant_tensor(group, operand, len(shape), image=False)
        return replace(x, extents=_matrices(shape))
    x = builder.arrange(operand.name, shape, group.nodes, image=False, extents=_matrices(shape))
    return builder.scale_operand(group, operand, x)


# Weights of convolutions with normalizations folded in, and their conversion to integers.
#
# All is computed in float64. A convolution is linear, so a factor for each output channel goes into
# the weights in float32, and into the multipliers in integers.

_MOST = 2**31 - 1
_DIGITS = 2.0**-22  # of a number, what two roundings to float32 may change it by
_FINE = 2.0**-16  # of a unit of the output, the scale of channels with all weights 0


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """The weights of a convolution, [output channels][input channels of a group][rows][columns].

    `factors` and `bias` have one float64 for each output channel. A real weight is the stored weight
    times the factor, which is 1 for floats and the scale for integers. `bias` is in real numbers.
    """

    stored: Array
    factors: Array
    bias: Array

    @property
    def is_integer(self) -> bool:
        """Whether the weights are stored as integers."""
        return bool(self.stored.dtype == np.int8)

    def scale_and_shift(self, factors: Array, shifts: Array) -> "ConvWeights":
        """Return weights whose result is `factors` times the result of these plus `shifts`."""
        return replace(self, factors=self.factors * factors, bias=self.bias * factors + shifts)

    def to_float32(self) -> Array:
        """Return the real weights in float32, with factors applied."""
        return (self.stored * self.factors.reshape(-1, 1, 1, 1)).astype(np.float32)


def normalization_factors(
    scale: Array, shift: Array, mean: Array, variance: Array, epsilon: float
) -> Any:
    """Return the factor and the shift of each channel that are equal to a BatchNormalization.

    ONNX defines it as scale * (x - mean) / sqrt(variance + epsilon) + shift.
    """
    given = (each.astype(np.float64) for each in (scale, shift, mean, variance))
    scale, shift, mean, variance = given
    factors = scale / np.sqrt(variance + epsilon)
    return factors, shift - mean * factors


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """Integer weights of a convolution with int32 accumulators.

    `bias` is in units of the accumulators, and `multipliers` bring them to units of the output: real,
    positive float64, one for each output channel.
    """

    weights: Array
    bias: Array
    multipliers: Array


def requantize_weights(
    weights: ConvWeights, input_scales: Array, output_scales: Array
) -> IntegerWeights | None:
    """Return integer weights for the given scales of input and output, or None if that is impossible.

    Scales are one for all output channels, or one for each, that of the input channel it is made of.

    An accumulator counts units of an input's scale * |factor|; a negative factor changes the sign of its
    channel's weights. It is impossible if a bias does not fit into an int32 or is rounded by more than
    half a unit of the output and more than float32 rounds it, or if a weight of -128 would change its
    sign.
    """
    units = input_scales * np.abs(weights.factors)
    dead = units == 0
    units = np.where(dead, output_scales * _FINE, units)
    signs = np.where(dead, 0, np.sign(weights.factors)).astype(np.int64)
    stored = weights.stored.astype(np.int64) * signs.reshape(-1, 1, 1, 1)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are refused below
        exact = weights.bias / units
        bias = np.rint(exact)
        error = np.abs(bias - exact)
        coarse = (error * units > output_scales / 2) & (error > _DIGITS * np.abs(exact))
    if coarse.any():
        return None
    if stored.max(initial=0) > 127 or np.abs(bias).max(initial=0) > _MOST:
        return None
    return IntegerWeights(stored.astype(np.int8), bias.astype(np.int32), units / output_scales)


def normalization_weights(factors: Array, shifts: Array, input_scale: float) -> ConvWeights:
    """Return the integer weights, one for each channel, of a normalization that is not fused.

    They are as large as an int8 allows, but smaller for a channel with a shift that would otherwise not
    fit into the bias.
    """
    room = 2.0**30 * np.abs(factors) * input_scale / np.maximum(np.abs(shifts), np.finfo(float).tiny)
    stored = np.clip(np.floor(room), 0, 127)
    safe = np.maximum(stored, 1)
    return ConvWeights(
        stored.astype(np.int8).reshape(-1, 1, 1, 1), np.where(stored > 0, factors / safe, 0.0), shifts
    )


# Lower products by weights of four bits, which stay packed until they are loaded.

_NO_MULTIPLIERS = np.zeros(0)


def lower_int4_product(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMulNBits: x by numbers of four bits, with scales, zero points and a bias."""
    group.require_float()
    x, numbers, scales, zeros, order, bias = group.take_operands(6)
    if group.main.attributes["bits"] != 4 or order.name:
        raise CompileError("a MatMulNBits must be of 4 bits, with blocks in order", group.nodes)
    weights = _read_weights(builder, group, numbers, scales, zeros)
    outputs = weights.shape[0]
    added = _read_constant(builder, group, bias) if bias.name else np.zeros(outputs)
    given = builder.rows_tensor(group, x)
    builder.add_layer(
        ConvLayer(
            group.output,
            group.nodes,
            builder.result_tensor(group, (*given.extents[:3], outputs)),
            given,
            weights,
            added.astype(np.float32),
            _NO_MULTIPLIERS,
            SlidingWindow(),
            clamp=builder.fused_clamp(group),
        )
    )


def _read_weights(
    builder: NetworkBuilder, group: LayerGroup, numbers: Operand, scales: Operand, zeros: Operand
) -> Int4Weights:
    """Return the weights as MatMulNBits stores them: outputs x blocks x bytes of a block."""
    attributes = group.main.attributes
    inputs, outputs, block = (attributes[name] for name in ("K", "N", "block_size"))
    blocks = -(-inputs // block)
    stored = _read_constant(builder, group, numbers)
    factors = _read_constant(builder, group, scales)
    if stored.size != outputs * blocks * block // 2 or factors.size != outputs * blocks:
        raise CompileError("its weights or scales are not of N x K", group.nodes)
    return Int4Weights(
        np.ascontiguousarray(stored.reshape(outputs, -1)[:, : -(-inputs // 2)]),
        factors.reshape(outputs, blocks).astype(np.float32),
        _read_zeros(builder, group, zeros, (outputs, blocks)) if zeros.name else None,
        inputs,
        block,
    )


def _read_zeros(
    builder: NetworkBuilder, group: LayerGroup, zeros: Operand, shape: tuple[int, int]
) -> Array:
    """Return zero points, which are stored two in a byte, as uint8 [outputs, blocks]."""
    stored = _read_constant(builder, group, zeros)
    outputs, blocks = shape
    width = -(-blocks // 2)
    if stored.dtype != np.uint8 or stored.size != outputs * width:
        raise CompileError("its zero points must be of 4 bits, two in a byte", group.nodes)
    return np.ascontiguousarray(split_bytes(stored.reshape(outputs, width), blocks))


def _read_constant(builder: NetworkBuilder, group: LayerGroup, operand: Operand) -> Array:
    if not builder.reading.is_constant(operand.name):
        raise CompileError(f"'{operand.name}' must be constant", group.nodes)
    return builder.reading.stored_array(operand.name)


_NOTHING = Operand("", None)
_POINT = SlidingWindow()


def lower_conv(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Conv with the operations fused to it."""
    attributes, operands = group.main.attributes, [*group.operands, _NOTHING]
    if attributes["auto_pad"] != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", group.nodes)
    if len(builder.shapes.get(operands[0].name, ())) != 4:
        raise CompileError("a Conv must be of an image of two dimensions", group.nodes)
    weights = _constant_weights(builder, group, operands[1], operands[2], axis=0)
    kernel = weights.stored.shape[2:]
    _add_convolution(builder, group, weights, window_of(attributes, kernel), attributes["group"])


def lower_gemm(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Gemm to a 1x1 convolution over rows of one pixel."""
    attributes, operands = group.main.attributes, [*group.operands, _NOTHING]
    if attributes["transA"]:
        raise CompileError("transA must be 0", group.nodes)
    axis = 0 if attributes["transB"] else 1
    weights = _constant_weights(builder, group, operands[1], _NOTHING, axis)
    weights = weights.scale_and_shift(np.array(attributes["alpha"]), np.array(0.0))
    beta = attributes["beta"]
    if operands[2].name and beta:
        addend = _constant_bias(builder, group, operands[2]) * beta
        count = len(weights.stored)
        if addend.size not in (1, count) or (addend.ndim and addend.shape[-1] != addend.size):
            raise CompileError("C of a Gemm must be one number for each column, or one", group.nodes)
        weights = replace(weights, bias=weights.bias + addend.reshape(-1))
    _add_product(builder, group, weights)


def lower_matmul(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMul: by a constant matrix to a 1x1 convolution, whose pixels are the vectors."""
    matrix = group.operands[1]
    if not builder.reading.is_weights(matrix, group.quantization is not None):
        return lower_matrix_product(builder, group)
    weights = _constant_weights(builder, group, matrix, _NOTHING, axis=1)
    return _add_product(builder, group, weights)


def _add_product(builder: NetworkBuilder, group: LayerGroup, weights: ConvWeights) -> None:
    """Add a 1x1 convolution of vectors, wherever rows of pixels begin."""
    x = builder.rows_tensor(group, group.operands[0])
    y = builder.result_tensor(group, (*x.extents[:3], len(weights.stored)))
    _add_conv_layer(builder, group, weights, x, y)


def lower_batch_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a BatchNormalization that is not fused to a depthwise 1x1 convolution."""
    x = builder.operand_tensor(group, group.operands[0])
    if len(builder.shapes[group.main.inputs[0]]) != 4:
        raise CompileError("a BatchNormalization must be of an image of two dimensions", group.nodes)
    factors, shifts = _normalization_factors(builder, group.main)
    if group.quantization is None:
        stored = np.ones((x.channels, 1, 1, 1), np.float32)
        weights = ConvWeights(stored, factors, shifts)
    else:
        weights = normalization_weights(factors, shifts, x.scale)
    _add_conv_layer(builder, group, weights, x, builder.result_tensor(group), _POINT, x.channels)


def _add_convolution(
    builder: NetworkBuilder, group: LayerGroup, weights: ConvWeights, window: SlidingWindow, groups: int
) -> None:
    """Add a convolution of an image; if depthwise, each channel of it may have a scale."""
    image = builder.shapes[group.operands[0].name]
    x = builder.operand_tensor(group, group.operands[0], by_channel=groups == image[1])
    y = builder.result_tensor(group, by_channel=True)
    _add_conv_layer(builder, group, weights, x, y, window, groups)


def _add_conv_layer(  # noqa: PLR0913, PLR0917 - two of them have defaults
    builder: NetworkBuilder,
    group: LayerGroup,
    weights: ConvWeights,
    x: LayerTensor,
    y: LayerTensor,
    window: SlidingWindow = _POINT,
    groups: int = 1,
) -> None:
    residual = None
    before = group.main.outputs[0]
    function, parameters = find_function(group.function) if group.function else (None, (0.0, 0.0))
    for each in group.followers:
        if each.op == "BatchNormalization":
            weights = weights.scale_and_shift(*_normalization_factors(builder, each))
        elif each.op in ("Add", "Sum"):
            other = next(operand for operand in list_operands(each) if operand.name != before)
            residual = builder.operand_tensor(group, other)
        before = each.outputs[0]
    stored, bias, multipliers = _layer_constants(group, weights, x, y)
    ordered = np.ascontiguousarray(stored.transpose(TO_NHWC))
    clamp = builder.fused_clamp(group)
    builder.add_layer(
        ConvLayer(
            group.output, group.nodes, y, x, ordered, bias, multipliers, window, groups, residual,
            function, parameters, clamp=clamp,
        )
    )  # fmt: skip


def _layer_constants(
    group: LayerGroup, weights: ConvWeights, x: LayerTensor, y: LayerTensor
) -> tuple[Array, Array, Array]:
    """Return weights, bias and multipliers in the form of `Conv`."""
    if not y.is_integer:
        return _float_weights(group, weights), weights.bias.astype(np.float32), _NO_MULTIPLIERS
    if not (np.isfinite(weights.factors).all() and np.isfinite(weights.bias).all()):
        raise CompileError("a scale of its weights or a bias is not finite", group.nodes)
    times = y.channels // len(x.scales) if x.has_channel_scales else 1  # outputs for each channel
    found = requantize_weights(weights, np.repeat(x.scales, times), y.scales)
    if found is None:
        reason = "the bias does not fit into an int32 at its scale, or is too fine for it"
        raise CompileError(reason, group.nodes)
    in_reals = group.function or x.dtype == INT16
    real = y.scales if in_reals else 1.0  # what a unit of a result is
    return found.weights, found.bias, found.multipliers * real


def _float_weights(group: LayerGroup, weights: ConvWeights) -> Array:
    """Return float32 weights with factors applied. Raises CompileError if that makes them infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        real = weights.to_float32()
    if np.isfinite(weights.stored).all() and not np.isfinite(real).all():
        raise CompileError(
            "its weights times the factors of the operations fused to it are not finite", group.nodes
        )
    return real


def _constant_weights(
    builder: NetworkBuilder, group: LayerGroup, operand: Operand, bias: Operand, axis: int
) -> ConvWeights:
    """Return constant weights; a matrix, with outputs along `axis`, becomes weights of a 1x1 kernel."""
    name, quantization = operand.name, operand.quantization
    if not builder.reading.is_constant(name):
        raise CompileError(f"the weights '{name}' must be constant", group.nodes)
    if quantization is None and group.quantization is not None:
        raise CompileError(f"the weights '{name}' are not quantized", group.nodes)
    if group.quantization is None:
        stored, factors = builder.reading.constant_array(operand), np.ones(1)
    elif quantization is not None:
        stored = builder.reading.stored_array(name)
        if stored.dtype != np.int8 or quantization.zero_point.any():
            raise CompileError(f"the weights '{name}' must be int8 with zero points 0", group.nodes)
        if quantization.axis not in {None, axis}:
            raise CompileError(f"the scales of '{name}' must be of output channels", group.nodes)
        factors = quantization.scale.astype(np.float64).reshape(-1)
    if stored.ndim == 2:
        matrix = stored if axis == 0 else stored.T
        stored = matrix.reshape(*matrix.shape, 1, 1)
    count = len(stored)
    real = _constant_bias(builder, group, bias).reshape(-1) if bias.name else np.zeros(1)
    return ConvWeights(stored, np.broadcast_to(factors, count), np.broadcast_to(real, count))


def _constant_bias(builder: NetworkBuilder, group: LayerGroup, operand: Operand) -> Array:
    """Return a bias in float64, exact if it is stored as integers."""
    if not builder.reading.is_constant(operand.name):
        raise CompileError(f"the bias '{operand.name}' must be constant", group.nodes)
    stored = builder.reading.stored_array(operand.name).astype(np.float64)
    found = operand.quantization
    if found is None:
        return stored
    return (stored - found.zero_point) * found.scale.astype(np.float64)


def _normalization_factors(builder: NetworkBuilder, operation: Operation) -> tuple[Array, Array]:
    """Return the factor and the shift of each channel of a BatchNormalization, in float64."""
    given = list_operands(operation)[1:5]
    if operation.attributes.get("training_mode"):
        raise CompileError("training_mode must be 0", [operation.name])
    if not all(builder.reading.is_constant(each.name) for each in given):
        raise CompileError("the parameters of a BatchNormalization must be constant", [operation.name])
    scale, shift, mean, variance = map(builder.reading.constant_array, given)
    epsilon = operation.attributes["epsilon"]
    with np.errstate(divide="ignore", invalid="ignore"):
        factors, shifts = normalization_factors(scale, shift, mean, variance, epsilon)
    if not (np.isfinite(factors).all() and np.isfinite(shifts).all()):
        raise CompileError("the factors of a BatchNormalization must be finite", [operation.name])
    return factors, shifts
