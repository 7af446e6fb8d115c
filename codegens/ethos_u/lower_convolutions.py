"""Convolutions of images and of rows."""

from collections.abc import Callable
from dataclasses import replace

from byoc.codegen import CompileError, Operation, Quantization

from .constant_operands import read_bias, read_scales, real_scale
from .lowering import LOWERINGS, Lowering
from .region_values import IMAGE, Value
from .tosa_file import Array
from .tosa_graph import Tensor
from .windows import (
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
