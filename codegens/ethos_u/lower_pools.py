"""Pools."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation

from .lowering import IMAGE, LOWERINGS, Lowering, Value, arrange, is_same, real_scale, reshape_value
from .tosa_graph import ACCUMULATORS, Array, Tensor, TosaGraph

# Windows that move over images: what convolutions and pools have in common.

_MOST_STEP = 3  # stride that Vela takes with padding


@dataclass(frozen=True)
class Window:
    """The moves of a window: pads above, below, left and right, and steps of height and width.

    `shape` is that of the result, NHWC.
    """

    shape: tuple[int, ...]
    pads: tuple[int, ...] = (0, 0, 0, 0)
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)

    @property
    def pool(self) -> dict[str, Any]:
        """The attributes of a pool."""
        return {"pad": self.pads, "stride": self.strides}

    @property
    def convolution(self) -> dict[str, Any]:
        """The attributes of CONV2D and DEPTHWISE_CONV2D."""
        return {**self.pool, "dilation": self.dilations}


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters of an operator: int8 weights in its layout, and a bias in units of the sums."""

    op: str
    weights: Array
    bias: Array


def read_image(source: Value, lowering: Lowering) -> Value:
    """Return an operand in NHWC; rows, which have rank 3, become images of height 1."""
    if source.rank == 3:
        batch, channels, width = source.shape
        rows = arrange(lowering.graph, source, (0, 2, 1))
        tensor = lowering.graph.reshape(rows.tensor, (batch, 1, width, channels))
        return replace(source, tensor=tensor, order=IMAGE)
    return arrange(lowering.graph, source, IMAGE)


def order_image(shape: Sequence[int]) -> tuple[int, ...]:
    """Return extents of an image, or of rows, in NHWC."""
    if len(shape) == 3:
        return shape[0], 1, shape[2], shape[1]
    return tuple(shape[axis] for axis in IMAGE)


def read_pair(operation: Operation, name: str) -> tuple[int, ...]:
    """Return an attribute of height and width, 1 where it is not stated; that of rows has height 1."""
    values = tuple(int(each) for each in operation.attributes.get(name) or (1, 1))
    return (1, *values) if len(values) == 1 else values


def fit_window(
    image: Value, lowering: Lowering, operation: Operation, kernel: Sequence[int]
) -> tuple[Value, Window]:
    """Return an image, and a window that ends at its last row and column.

    TOSA asks that height plus pads less window be a multiple of the stride. What no window reads is cut
    off.
    """
    shape = order_image(lowering.shape(operation))
    strides, dilations = read_pair(operation, "strides"), read_pair(operation, "dilations")
    begins = find_begins(operation, image.tensor.shape[1:3], shape[1:3], kernel)
    pads, extents = list[int](), list(image.tensor.shape)
    for axis in (0, 1):
        reach = (shape[1 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        end = reach - begins[axis] - extents[1 + axis]
        extents[1 + axis] += min(end, 0)
        pads += [begins[axis], max(end, 0)]
    tensor = lowering.graph.slice(image.tensor, [0] * 4, extents)
    return replace(image, tensor=tensor), Window(shape, tuple(pads), strides, dilations)


def pad_ahead(image: Value, lowering: Lowering, window: Window, filler: int) -> tuple[Value, Window]:
    """Return an image with its padding, and a window without pads, for steps above 3.

    Vela takes such steps where there is neither padding nor dilation.
    """
    if max(window.strides) <= _MOST_STEP or not any(window.pads):
        return image, window
    top, bottom, left, right = window.pads
    pads = [(0, 0), (top, bottom), (left, right), (0, 0)]
    padded = replace(image, tensor=lowering.graph.pad(image.tensor, pads, filler))
    return padded, replace(window, pads=(0, 0, 0, 0))


def find_begins(
    operation: Operation, inside: Sequence[int], outside: Sequence[int], kernel: Sequence[int]
) -> tuple[int, ...]:
    """Return the rows above and the columns left of an image that an operator's pads add.

    A window of `kernel` moves over `inside` rows and columns, and is in `outside` places.
    """
    auto = operation.attributes.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto == "VALID":
        return 0, 0
    if auto == "NOTSET":
        pads = [int(pad) for pad in operation.attributes.get("pads") or [0] * 4]
        return (0, pads[0]) if len(pads) == 2 else (pads[0], pads[1])
    strides, dilations = read_pair(operation, "strides"), read_pair(operation, "dilations")
    begins = list[int]()
    for axis in (0, 1):
        reach = (outside[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = max(reach - inside[axis], 0)
        begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return tuple(begins)


def convolve(lowering: Lowering, source: Value, filters: Filters, attributes: dict[str, Any]) -> Tensor:
    """Return the sums of a convolution; `shape` among the attributes is that of the result."""
    assert source.quantization is not None
    graph = lowering.graph
    kind = "int48" if source.tensor.dtype == "int16" else "int32"
    operands = [
        source.tensor,
        graph.constant(filters.weights, "int8"),
        graph.constant(filters.bias, kind),
    ]
    point = int(source.quantization.zero_point)
    rest = {name: value for name, value in attributes.items() if name != "shape"}
    return graph.convolve(filters.op, operands, point, attributes["shape"], rest)


def convolve_depthwise(image: Value, lowering: Lowering, weights: Array, window: Window) -> Tensor:
    """Return the sums of a DEPTHWISE_CONV2D without a bias; weights are [h, w, channels, multiplier]."""
    bias = np.zeros(weights.shape[2] * weights.shape[3], np.int64)
    filters = Filters("DEPTHWISE_CONV2D", weights, bias)
    return convolve(lowering, image, filters, {"shape": window.shape, **window.convolution})


def convolve_ones(image: Value, lowering: Lowering, kernel: Sequence[int], window: Window) -> Tensor:
    """Return the sums of windows of an image, each channel alone: a convolution with weights of 1."""
    ones = np.ones((*kernel, image.tensor.shape[-1], 1), np.int8)
    return convolve_depthwise(image, lowering, ones, window)


# Reductions: sums, means and extremes along axes.

# Softmax of int8 in integers: exponentials by tables, and a division by Newton's method.
#
# TOSA has no division, and TABLE of int8 gives int8 alone. So an exponential is two tables of a
# byte each, and the reciprocal of the sum is computed in fixed point, as gemmlowp and Vela's own
# Softmax for TFLite do (gemmlowp, fixedpoint.h, one_over_one_plus_x_for_x_in_0_1).

_EXPONENTIAL_BITS = 16  # two tables of a byte each
_MOST_SUMMANDS = 1 << 15  # of 16 bits each: an int32 holds their sum
_QUOTIENT_BITS = 29  # behind the point, of an int32: reciprocals up to 2 fit
_DIVISOR_BITS = 31  # behind the point, of a divisor below 1
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


_MOST_ROWS = 64  # of a convolution's kernel, as Vela states its limits
_MOST_ELEMENTS = 4096  # of such a kernel, rows times columns


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
