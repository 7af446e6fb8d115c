"""Lower convolutions, matrix products and normalizations; all of them become convolutions."""

from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .layer_groups import LayerGroup
from .layer_tensors import INT16, TO_NHWC, LayerTensor, SlidingWindow
from .layers import Array, ConvLayer
from .lower_matrices import lower_matrix_product
from .machine_functions import find_function
from .network_builder import NetworkBuilder
from .output_shapes import window_of
from .region_reading import Operand, list_operands
from .weight_folding import ConvWeights, normalization_factors, normalization_weights, requantize_weights

_NO_MULTIPLIERS = np.zeros(0)
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
    if not builder.reading.is_weights(matrix):
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
