"""Pools."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .lowering import LOWERINGS, Lowering, Value, is_same, real_scale
from .tosa_graph import ACCUMULATORS, Tensor
from .windows import Window, convolve_ones, fit_window, pad_ahead, read_image

_MOST_PADDED = 8  # the height and width of an AVG_POOL2D with padding


@LOWERINGS.op("MaxPool")
def lower_max_pool(operation: Operation, lowering: Lowering) -> None:
    """MAX_POOL2D, which pads with the least integer, then the result's quantization."""
    if len(operation.outputs) > 1 and operation.outputs[1]:
        raise CompileError("the indices of a MaxPool are not made")
    image, window, kernel = _read_pool(operation, lowering)
    image, window = pad_ahead(image, lowering, window, np.iinfo(image.tensor.dtype).min)
    wanted = image.quantization if not _is_stated(operation) else lowering.result(operation)
    assert wanted is not None
    made = lowering.graph.add(
        "MAX_POOL2D",
        [image.tensor],
        image.tensor.dtype,
        window.shape,
        kernel=kernel,
        nan_mode=1,
        **window.pool,
    )
    lowering.finish(operation, lowering.requantize(replace(image, tensor=made), wanted))


@LOWERINGS.op("AveragePool")
def lower_average_pool(operation: Operation, lowering: Lowering) -> None:
    """AVG_POOL2D where the quantization stays; else sums by a convolution with weights of 1."""
    image, window, kernel = _read_pool(operation, lowering)
    wanted = lowering.result(operation)
    padded, counts = any(window.pads), bool(operation.attributes.get("count_include_pad", 0))
    if padded and counts and operation.attributes.get("ceil_mode", 0):
        raise CompileError("an AveragePool that counts padding and rounds its extents up is not taken")
    assert image.quantization is not None
    fits = window.shape[0] == 1 and (not padded or (max(kernel) <= _MOST_PADDED and not counts))
    if fits and is_same(image.quantization, wanted):
        lowering.finish(operation, _average(image, lowering, kernel, window))
        return
    sums, scale = convolve_ones(image, lowering, kernel, window), 1.0
    if padded and not counts:
        sums, scale = _even_out(image, lowering, sums, kernel, window)
    factor = scale * real_scale(image) / float(wanted.scale) / (kernel[0] * kernel[1])
    stored = lowering.narrow(sums, factor, wanted)
    lowering.finish(operation, replace(image, tensor=stored, quantization=wanted))


def _read_pool(operation: Operation, lowering: Lowering) -> tuple[Value, Window, list[int]]:
    """Return a pool's operand in NHWC, its window, and the window's height and width."""
    source = lowering.read(operation, 0)
    if source.rank != 4 or set(operation.attributes.get("dilations") or [1]) != {1}:
        raise CompileError(f"{operation.op} is taken of images, without dilation")
    kernel = [int(each) for each in operation.attributes["kernel_shape"]]
    image, window = fit_window(read_image(source, lowering), lowering, operation, kernel)
    return image, window, kernel


def _is_stated(operation: Operation) -> bool:
    """Return whether the result has a quantization; what a MaxPool makes may keep the operand's."""
    return bool(operation.output_quantization) and operation.output_quantization[0] is not None


def _even_out(
    image: Value, lowering: Lowering, sums: Tensor, kernel: Sequence[int], window: Window
) -> tuple[Tensor, float]:
    """Return sums of windows as if padding held the mean of the rest, and their scale.

    Each is times the elements of the kernel, by those of the image among them.
    """
    counts = []
    for axis in (0, 1):
        first = np.arange(sums.shape[1 + axis]) * window.strides[axis] - window.pads[2 * axis]
        last = np.minimum(first + kernel[axis], image.tensor.shape[1 + axis])
        counts.append(last - np.maximum(first, 0))
        if np.any(counts[-1] <= 0):
            raise CompileError("an AveragePool with a window of padding alone is not taken")
    ratios = kernel[0] * kernel[1] / np.outer(*counts)
    bits = 31 - int(np.ceil(np.log2(256 * kernel[0] * kernel[1] * ratios.max())))
    factors = lowering.graph.constant(np.rint(ratios * 2**bits)[None, :, :, None], "int32")
    return lowering.graph.combine("MUL", sums, factors), 2.0**-bits


def _average(image: Value, lowering: Lowering, kernel: Sequence[int], window: Window) -> Value:
    """Return AVG_POOL2D of an image, in its own quantization."""
    assert image.quantization is not None
    graph, dtype = lowering.graph, image.tensor.dtype
    point = graph.constant(np.array([int(image.quantization.zero_point)]), dtype)
    given = {"kernel": list(kernel), "acc_type": ACCUMULATORS["int32"], **window.pool}
    made = graph.add("AVG_POOL2D", [image.tensor, point, point], dtype, window.shape, **given)
    return replace(image, tensor=made)
