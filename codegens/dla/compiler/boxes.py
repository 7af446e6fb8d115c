"""Spans and boxes of tensors, and the part of an input that a box of a result depends on."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..machine import NO_PADS, ZERO, Pads, Pair
from .layer_tensors import LayerTensor, SlidingWindow


@dataclass(frozen=True)
class AxisSpan:
    """A range of `count` positions along one axis, beginning at `start`."""

    start: int
    count: int

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.count


def split_span(whole: AxisSpan, most: int) -> Iterator[AxisSpan]:
    """Yield consecutive parts of a span, each of `most` positions but the last, which may be shorter."""
    for start in range(whole.start, whole.end, most):
        yield AxisSpan(start, min(most, whole.end - start))


@dataclass(frozen=True)
class TensorBox:
    """A box of a tensor; rows are counted over all images."""

    rows: AxisSpan
    cols: AxisSpan
    channels: AxisSpan


@dataclass(frozen=True)
class TileBox:
    """A box of one image of a tensor; rows are counted within the image."""

    image: int
    rows: AxisSpan
    cols: AxisSpan
    channels: AxisSpan

    def of(self, tensor: LayerTensor) -> TensorBox:
        """Return this box of a tensor."""
        rows = AxisSpan(self.image * tensor.height + self.rows.start, self.rows.count)
        return TensorBox(rows, self.cols, self.channels)


@dataclass(frozen=True)
class ReceptiveField:
    """The receptive field of a box of a result: rows and columns of the input, and padding.

    `overhang` counts rows and columns past the padding at the end, as ONNX's ceil_mode allows.
    """

    rows: AxisSpan
    cols: AxisSpan
    pads: Pads = NO_PADS
    overhang: Pair = ZERO


def receptive_field(
    window: SlidingWindow, x: LayerTensor, rows: AxisSpan, cols: AxisSpan
) -> ReceptiveField:
    """Return the receptive field of rows and columns of a result, for a window that slides over `x`."""
    down, top, bottom, below = _receptive_axis(window, 0, x.height, rows)
    right, left, end, beyond = _receptive_axis(window, 1, x.width, cols)
    return ReceptiveField(down, right, Pads(top, left, bottom, end), Pair(below, beyond))


def _receptive_axis(
    window: SlidingWindow, axis: int, size: int, made: AxisSpan
) -> tuple[AxisSpan, int, int, int]:
    """Return the span that is read, the padding before and after it, and the overhang."""
    stride, extent = window.strides[axis], window.extent[axis]
    first = made.start * stride - window.pads[axis]
    last = (made.end - 1) * stride - window.pads[axis] + extent
    low, high = max(first, 0), min(last, size)
    after = min(last - high, window.pads[axis + 2])
    return AxisSpan(low, high - low), low - first, after, last - high - after


def input_extent(window: SlidingWindow, axis: int, size: int, count: int) -> int:
    """Return the most positions of an input that `count` neighbours of a result read, along an axis."""
    return min((count - 1) * window.strides[axis] + window.extent[axis], size)


def split_images(y: LayerTensor, rows: AxisSpan) -> Iterator[tuple[int, AxisSpan]]:
    """Split rows that are counted over all images: yield each image with its rows."""
    row = rows.start
    while row < rows.end:
        image, inside = divmod(row, y.height)
        count = min(y.height - inside, rows.end - row)
        yield image, AxisSpan(inside, count)
        row += count
