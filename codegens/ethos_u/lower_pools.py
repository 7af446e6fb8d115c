"""Pools."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .lowering import IMAGE, LOWERINGS, Lowering, Value, arrange, is_same, real_scale, reshape_value
from .tosa_graph import ACCUMULATORS, Tensor, TosaGraph
from .windows import Filters, Window, convolve, convolve_ones, fit_window, pad_ahead, read_image

# Reductions: sums, means and extremes along axes.

# Softmax of int8 in integers: exponentials by tables, and a division by Newton's method.
#
# TOSA has no division, and TABLE of int8 gives int8 alone. So an exponential is two tables of a
# byte each, and the reciprocal of the sum is computed in fixed point, as gemmlowp and Vela's own
# Softmax for TFLite do (gemmlowp, fixedpoint.h, one_over_one_plus_x_for_x_in_0_1).

_EXPONENTIAL_BITS = 16
_MOST_SUMMANDS = 1 << 15  # of 16 bits each: an int32 holds their sum
_QUOTIENT_BITS = 29
_DIVISOR_BITS = 31
_STEPS = 3  # of Newton's method, each of which doubles the digits


@LOWERINGS.op("Softmax")
def lower_softmax(operation: Operation, lowering: Lowering) -> None:
    """The exponentials of what each element is below the largest, divided by their sum."""
    source = lowering.read(operation, 0)
    wanted = lowering.result(operation)
    if source.tensor.dtype != "int8" or wanted.dtype != "int8":
        raise CompileError("a Softmax is taken of int8")
    axis = int(operation.attributes["axis"]) % source.rank
    flattens = _is_flattening(lowering)
    shape = source.shape
    if flattens:  # before version 13 of ONNX, all axes from that one on were one
        source = reshape_value(
            lowering.graph, source, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
        )
        axis = 1
    rows = arrange(lowering.graph, source, [*(each for each in source.order if each != axis), axis])
    count = rows.tensor.shape[-1]
    if count > _MOST_SUMMANDS:
        raise CompileError(f"a Softmax of {count} elements is not taken; at most {_MOST_SUMMANDS} are")
    flat = lowering.graph.reshape(rows.tensor, (1, rows.tensor.elements // count, 1, count))
    quotient = _divide(lowering.graph, _exponentiate(lowering, replace(rows, tensor=flat)))
    stored = lowering.narrow(quotient, 2.0**-_QUOTIENT_BITS / float(wanted.scale), wanted)
    made = Value(lowering.graph.reshape(stored, rows.tensor.shape), rows.order, wanted)
    if flattens:
        made = reshape_value(lowering.graph, made, shape)
    lowering.finish(operation, made)


def _exponentiate(lowering: Lowering, rows: Value) -> Tensor:
    """Return the exponentials of rows less their largest elements: int32, 65535 for the largest one."""
    graph = lowering.graph
    assert rows.quantization is not None
    largest = graph.reduce("REDUCE_MAX", rows.tensor, len(rows.tensor.shape) - 1)
    wide, most_wide = (graph.rescale(each, "int32", 1.0) for each in (rows.tensor, largest))
    below = graph.rescale(graph.combine("SUB", wide, most_wide), "int8", 1.0, (0, 127))
    distances = np.arange(256) - 255.0
    most = 2**_EXPONENTIAL_BITS - 1
    values = np.rint(np.exp(distances * float(rows.quantization.scale)) * most).astype(np.int64)
    high, low = (
        graph.look_up(below, (part - 128).astype(np.int8)) for part in (values >> 8, values & 255)
    )
    return graph.combine(
        "ADD",
        graph.rescale(high, "int32", 256.0, (-128, 0)),
        graph.rescale(low, "int32", 1.0, (-128, 0)),
    )


def _divide(graph: TosaGraph, rows: Tensor) -> Tensor:
    """Return rows divided by their sums, in units of 2**-29.

    A sum is shifted to have its first digit at 2**30, so that it is a divisor in [0.5, 1) of 31 bits;
    its reciprocal has 29 bits behind the point.
    """
    shape = [1] * len(rows.shape)
    total = graph.reduce("REDUCE_SUM", rows, len(rows.shape) - 1)
    zeros = graph.add("CLZ", [total], "int32", total.shape)
    shift = graph.combine("SUB", zeros, _fill(graph, 1, shape))
    divisor = graph.combine("LOGICAL_LEFT_SHIFT", total, shift)
    reciprocal = graph.combine(
        "SUB",
        _fill(graph, round(48 / 17 * 2**_QUOTIENT_BITS), shape),
        graph.combine(
            "MUL", divisor, _fill(graph, round(32 / 17 * 2**_QUOTIENT_BITS), shape), _DIVISOR_BITS
        ),
    )
    for _ in range(_STEPS):
        product = graph.combine("MUL", divisor, reciprocal, _DIVISOR_BITS)
        error = graph.combine("SUB", _fill(graph, 2**_QUOTIENT_BITS, shape), product)
        change = graph.combine("MUL", reciprocal, error, _QUOTIENT_BITS)
        reciprocal = graph.combine("ADD", reciprocal, change)
    quotient = graph.combine("MUL", rows, reciprocal, _EXPONENTIAL_BITS)
    back = graph.combine("SUB", _fill(graph, _EXPONENTIAL_BITS, shape), zeros)
    return graph.combine("ARITHMETIC_RIGHT_SHIFT", quotient, back)


def _fill(graph: TosaGraph, value: int, shape: Sequence[int]) -> Tensor:
    return graph.constant(np.full(shape, value), "int32")


def _is_flattening(lowering: Lowering) -> bool:
    """Return whether Softmax is of a version before 13."""
    versions = [
        each.version for each in lowering.region.model.opset_import if each.domain in ("", "ai.onnx")
    ]
    return bool(versions) and versions[0] < 13


_MOST_ROWS = 64
_MOST_ELEMENTS = 4096


@LOWERINGS.op("GlobalMaxPool")
def lower_global_max_pool(operation: Operation, lowering: Lowering) -> None:
    """REDUCE_MAX along height and width."""
    _reduce_extreme(operation, lowering, range(2, lowering.read(operation, 0).rank))


@LOWERINGS.op("ReduceMax", "ReduceMin")
def lower_reduce_extreme(operation: Operation, lowering: Lowering) -> None:
    """REDUCE_MAX or REDUCE_MIN along each axis."""
    _reduce_extreme(operation, lowering, _read_axes(operation, lowering))


@LOWERINGS.op("GlobalAveragePool")
def lower_global_average_pool(operation: Operation, lowering: Lowering) -> None:
    """The mean over height and width."""
    _reduce_sum(operation, lowering, range(2, lowering.read(operation, 0).rank), is_mean=True)


@LOWERINGS.op("ReduceMean", "ReduceSum")
def lower_reduce_sum(operation: Operation, lowering: Lowering) -> None:
    """Sums by a convolution with weights of 1, over an image's height and width or a last axis."""
    axes = _read_axes(operation, lowering)
    _reduce_sum(operation, lowering, axes, is_mean=operation.op == "ReduceMean")


def _reduce_sum(operation: Operation, lowering: Lowering, axes: Sequence[int], is_mean: bool) -> None:
    source = lowering.read(operation, 0)
    wanted = lowering.result(operation)
    shape = source.shape
    count = int(np.prod([shape[axis] for axis in axes], dtype=np.int64))
    order: tuple[int, ...] = IMAGE
    if list(axes) == [2, 3] and source.rank == 4 and _fits_kernel(shape[2], shape[3]):
        image = arrange(lowering.graph, source, IMAGE)
        sums = convolve_ones(image, lowering, shape[2:], Window((shape[0], 1, 1, shape[1])))
    else:
        kept = [axis for axis in source.order if axis not in axes]
        order = (*kept, *axes)
        last = arrange(lowering.graph, source, order)
        rows = lowering.graph.reshape(last.tensor, (1, last.tensor.elements // count, 1, count))
        sums = _sum_rows(replace(last, tensor=rows), lowering)
        sums = lowering.graph.reshape(sums, [shape[axis] for axis in kept] + [1] * len(axes))
    factor = real_scale(source) / float(wanted.scale) / (count if is_mean else 1)
    _finish(operation, lowering, Value(lowering.narrow(sums, factor, wanted), order, wanted))


def _sum_rows(rows: Value, lowering: Lowering) -> Tensor:
    """Return the sums along the last axis: a convolution with one filter of ones."""
    batch, height, width, depth = rows.tensor.shape
    filters = Filters("CONV2D", np.ones((1, 1, 1, depth), np.int8), np.zeros(1, np.int64))
    window = Window((batch, height, width, 1))
    return convolve(lowering, rows, filters, {"shape": window.shape, **window.convolution})


def _reduce_extreme(operation: Operation, lowering: Lowering, axes: Sequence[int]) -> None:
    source = lowering.read(operation, 0)
    op = "REDUCE_MIN" if operation.op == "ReduceMin" else "REDUCE_MAX"
    tensor = source.tensor
    for axis in axes:
        if source.shape[axis] > 1:
            tensor = lowering.graph.reduce(op, tensor, source.position(axis))
    made = replace(source, tensor=tensor)
    if operation.output_quantization and operation.output_quantization[0] is not None:
        made = lowering.requantize(made, lowering.result(operation))
    _finish(operation, lowering, made)


def _finish(operation: Operation, lowering: Lowering, value: Value) -> None:
    """Enter a result, whose reduced axes may be dropped."""
    lowering.finish(operation, reshape_value(lowering.graph, value, lowering.shape(operation)))


def _read_axes(operation: Operation, lowering: Lowering) -> list[int]:
    """Return the axes of a reduction, counted from the front; all if none are stated."""
    given = operation.attributes.get("axes")
    if given is None:
        given = lowering.constant(operation, 1)
    rank = lowering.read(operation, 0).rank
    axes = [] if given is None else sorted(int(axis) % rank for axis in given)
    if not axes and operation.attributes.get("noop_with_empty_axes", 0):
        return []
    return axes or list(range(rank))


def _fits_kernel(height: int, width: int) -> bool:
    """Return whether a convolution can sum over an image of that size at once."""
    return height <= _MOST_ROWS and height * width <= _MOST_ELEMENTS


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
