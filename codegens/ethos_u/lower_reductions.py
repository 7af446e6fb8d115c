"""Reductions: sums, means and extremes along axes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import Operation

from .constant_operands import real_scale
from .lowering import LOWERINGS, Lowering
from .region_values import IMAGE, Value, arrange, reshape_value
from .tosa_graph import Tensor
from .windows import Filters, Window, convolve, convolve_ones

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
