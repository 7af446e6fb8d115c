"""Convolutions of images and of rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation, Quantization

from .lower_pools import (
    Filters,
    Window,
    convolve,
    find_begins,
    fit_window,
    order_image,
    pad_ahead,
    read_image,
    read_pair,
)
from .lowering import (
    IMAGE,
    LOWERINGS,
    Lowering,
    Value,
    arrange,
    arrange_plain,
    expand_rank,
    make_plain,
    read_bias,
    read_real,
    read_scales,
    real_scale,
)
from .tosa_graph import Array, Tensor

# Operators that scale and shift each channel of an image alone.

_WEIGHT = 127  # of each channel: biases are in units of an element by it, so they are fine
_MOST_BIAS = 2.0**30
_FINE = 2.0**-8  # the unit of the bias, in the result's scale, of a channel that is constant


@LOWERINGS.op("BatchNormalization")
def lower_batch_normalization(operation: Operation, lowering: Lowering) -> None:
    """One scale and one bias for each channel (ONNX, BatchNormalization at inference)."""
    source = lowering.read(operation, 0)
    if source.rank != 4 or source.tensor.dtype != "int8":
        raise CompileError("a BatchNormalization is taken of int8 images")
    if operation.attributes.get("training_mode", 0) or any(operation.outputs[1:]):
        raise CompileError("a BatchNormalization that trains is not taken")
    scale, bias, mean, variance = (
        read_real(operation, lowering, position).astype(np.float64) for position in range(1, 5)
    )
    factors = scale / np.sqrt(variance + float(operation.attributes.get("epsilon", 1e-5)))
    if not np.all(np.isfinite(factors)):
        raise CompileError("the factors of a BatchNormalization must be finite")
    wanted = lowering.result(operation)
    lowering.finish(operation, scale_channels(source, lowering, factors, bias - factors * mean, wanted))


def scale_channels(
    source: Value, lowering: Lowering, factors: Array, shifts: Array, wanted: Quantization
) -> Value:
    """Return `source * factors + shifts` of an int8 image, one factor and one shift for each channel.

    It is a DEPTHWISE_CONV2D of one element: weights have the signs of the factors, the rescaling behind
    it their magnitudes. A factor so small that the bias would not fit moves the result by less than a
    hundredth of its unit, and is 0.
    """
    given, made = real_scale(source), float(wanted.scale)
    units = np.abs(factors).astype(np.float64) * given / _WEIGHT
    with np.errstate(divide="ignore", invalid="ignore"):
        biases = np.where(units > 0, shifts / units, np.inf)
    fits = np.abs(biases) < _MOST_BIAS
    units = np.where(fits, units, made * _FINE)
    limit = made * 2.0**16  # beyond it the result is saturated
    biases = np.where(fits, biases, np.clip(shifts, -limit, limit) / units)
    weights = np.where(fits, np.sign(factors) * _WEIGHT, 0)
    image = arrange(lowering.graph, source, IMAGE)
    filters = Filters("DEPTHWISE_CONV2D", weights.reshape(1, 1, -1, 1), np.rint(biases))
    window = Window(image.tensor.shape)
    sums = convolve(lowering, image, filters, {"shape": window.shape, **window.convolution})
    scales = units / made
    one = scales if np.ptp(scales) else scales[:1]
    return Value(lowering.narrow(sums, one, wanted), IMAGE, wanted)


# Products of matrices.


@LOWERINGS.op("Gemm", "MatMul")
def lower_product(operation: Operation, lowering: Lowering) -> None:
    """CONV2D of a kernel of 1x1 where the second operand is constant, else MATMUL."""
    if lowering.is_constant(operation, 1):
        _multiply_by_weights(operation, lowering)
    elif operation.op == "Gemm":
        raise CompileError("a Gemm of two computed operands is not taken")
    else:
        _multiply_batches(operation, lowering)


def _multiply_by_weights(operation: Operation, lowering: Lowering) -> None:
    """CONV2D with the rows of the first operand as a batch of images of one element."""
    attributes = operation.attributes
    source = arrange_plain(lowering.graph, lowering.read(operation, 0))
    weights = lowering.constant(operation, 1)
    assert weights is not None
    if weights.ndim != 2 or attributes.get("transA", 0):
        raise CompileError("a product is taken with constants of rank 2, the first operand as it is")
    channels = 0 if attributes.get("transB", 0) else 1
    weights = weights.T if channels else weights
    count, depth = weights.shape
    wanted = lowering.result(operation)
    factors = real_scale(source) * read_scales(operation, channels) * float(attributes.get("alpha", 1.0))
    bias = read_bias(operation, lowering, source, factors, count) * float(attributes.get("beta", 1.0))
    filters = Filters("CONV2D", weights[:, None, None, :], np.rint(bias).astype(np.int64))
    rows = source.tensor.elements // depth
    batch = replace(source, tensor=lowering.graph.reshape(source.tensor, (rows, 1, 1, depth)))
    window = Window((rows, 1, 1, count))
    sums = convolve(lowering, batch, filters, {"shape": window.shape, **window.convolution})
    stored = lowering.narrow(sums, factors / float(wanted.scale), wanted)
    flat = lowering.graph.reshape(stored, lowering.shape(operation))
    lowering.finish(operation, make_plain(flat, wanted))


def _multiply_batches(operation: Operation, lowering: Lowering) -> None:
    """MATMUL of two computed operands, all axes but the last two as one batch."""
    graph = lowering.graph
    shape = lowering.shape(operation)
    wanted = lowering.result(operation)
    operands = [arrange_plain(graph, lowering.read(operation, position)) for position in (0, 1)]
    if any(each.rank < 2 or each.tensor.dtype != "int8" for each in operands):
        raise CompileError("a product of computed operands is taken of int8, of rank 2 and more")
    batches, points = [], []
    for each in operands:
        whole = expand_rank(graph, each, len(shape)).tensor
        pairs = zip(shape[:-2], whole.shape[:-2], strict=True)
        whole = graph.tile(whole, [*(wide // narrow for wide, narrow in pairs), 1, 1])
        count = int(np.prod(shape[:-2], dtype=np.int64))
        batches.append(graph.reshape(whole, (count, *whole.shape[-2:])))
        assert each.quantization is not None
        points.append(graph.constant(np.array([int(each.quantization.zero_point)]), "int8"))
    sums = graph.add("MATMUL", [*batches, *points], "int32", (batches[0].shape[0], *shape[-2:]))
    factor = real_scale(operands[0]) * real_scale(operands[1]) / float(wanted.scale)
    stored = lowering.narrow(sums, factor, wanted)
    lowering.finish(operation, make_plain(graph.reshape(stored, shape), wanted))


@LOWERINGS.op("Conv")
def lower_conv(operation: Operation, lowering: Lowering) -> None:
    """CONV2D for one group, DEPTHWISE_CONV2D for a group for each channel, else one CONV2D a group."""
    source = lowering.read(operation, 0)
    if source.rank not in (3, 4):
        raise CompileError(f"a Conv of rank {source.rank} is not taken")
    weights = _read_weights(operation, lowering, lambda stored: stored.transpose(0, 2, 3, 1))
    wanted = lowering.result(operation)
    factors = real_scale(source) * read_scales(operation, 0)
    bias = read_bias(operation, lowering, source, factors, weights.shape[0])
    assert source.quantization is not None
    image, window = fit_window(read_image(source, lowering), lowering, operation, weights.shape[1:3])
    image, window = pad_ahead(image, lowering, window, int(source.quantization.zero_point))
    group, channels = int(operation.attributes["group"]), image.tensor.shape[-1]
    if group > 1 and channels == group:  # [C*M, h, w, 1] to [h, w, C, M]
        deep = weights[..., 0].reshape(channels, -1, *weights.shape[1:3]).transpose(2, 3, 0, 1)
        filters = Filters("DEPTHWISE_CONV2D", deep, bias)
        sums = convolve(lowering, image, filters, {"shape": window.shape, **window.convolution})
    else:
        sums = _convolve_groups(lowering, image, Filters("CONV2D", weights, bias), window, group)
    _finish(operation, lowering, lowering.narrow(sums, factors / float(wanted.scale), wanted), wanted)


@LOWERINGS.op("ConvTranspose")
def lower_conv_transpose(operation: Operation, lowering: Lowering) -> None:
    """TRANSPOSE_CONV2D; pads that are cut off are negative there."""
    source = lowering.read(operation, 0)
    if source.rank != 4 or set(read_pair(operation, "dilations")) != {1}:
        raise CompileError("a ConvTranspose is taken of images, without dilation")
    if int(operation.attributes["group"]) != 1:
        raise CompileError("a ConvTranspose of several groups is not taken")
    weights = _read_weights(operation, lowering, lambda stored: stored.transpose(1, 2, 3, 0))
    wanted = lowering.result(operation)
    factors = real_scale(source) * read_scales(operation, 1)
    bias = read_bias(operation, lowering, source, factors, weights.shape[0])
    image, shape = read_image(source, lowering), order_image(lowering.shape(operation))
    strides, kernel = read_pair(operation, "strides"), weights.shape[1:3]
    begins = find_begins(operation, shape[1:3], image.tensor.shape[1:3], kernel)
    out_pad = list[int]()
    for axis in (0, 1):
        full = (image.tensor.shape[1 + axis] - 1) * strides[axis] + kernel[axis]
        out_pad += [-begins[axis], shape[1 + axis] - full + begins[axis]]
    filters = Filters("TRANSPOSE_CONV2D", weights, bias)
    sums = convolve(lowering, image, filters, {"shape": shape, "out_pad": out_pad, "stride": strides})
    _finish(operation, lowering, lowering.narrow(sums, factors / float(wanted.scale), wanted), wanted)


def _convolve_groups(
    lowering: Lowering, image: Value, filters: Filters, window: Window, group: int
) -> Tensor:
    """Return the sums of a convolution in groups: of one CONV2D for each, side by side."""
    graph = lowering.graph
    count, width = filters.weights.shape[0] // group, filters.weights.shape[3]
    shape = (*window.shape[:3], count)
    made = []
    for number in range(group):
        start = [0, 0, 0, number * width]
        tensor = graph.slice(image.tensor, start, [*image.tensor.shape[:3], width])
        rows = slice(number * count, (number + 1) * count)
        own = replace(filters, weights=filters.weights[rows], bias=filters.bias[rows])
        attributes = {"shape": shape, **window.convolution}
        made.append(convolve(lowering, replace(image, tensor=tensor), own, attributes))
    return graph.concatenate(made, 3)


def _read_weights(operation: Operation, lowering: Lowering, reorder: Callable[[Array], Array]) -> Array:
    """Return weights as OHWI: as the region stores them, or reordered. Those of rows have height 1."""
    name = operation.inputs[1]
    weights = lowering.constant(operation, 1)
    assert weights is not None
    stored = next((each for each in lowering.region.constants if each.name == name), None)
    layout = stored.layout if stored is not None else ""
    if layout not in ("", "OHWI"):
        raise CompileError(f"the weights '{name}' are packed as {layout}")
    if weights.ndim == 3:
        weights = weights[:, :, None, :]
    return weights if layout else reorder(weights)


def _finish(operation: Operation, lowering: Lowering, tensor: Tensor, wanted: Quantization) -> None:
    """Enter a result, which is in NHWC; rows lose their height."""
    shape = lowering.shape(operation)
    if len(shape) == 3:
        rows = lowering.graph.reshape(tensor, (shape[0], shape[2], shape[1]))
        lowering.finish(operation, Value(rows, (0, 2, 1), wanted))
    else:
        lowering.finish(operation, Value(tensor, IMAGE, wanted))
