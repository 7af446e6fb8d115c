"""Parts of tensors: where a part of a layer's result lies, and what of its inputs it is made of."""

from collections.abc import Iterator
from dataclasses import dataclass

from .operand import NO_PADS, ZERO, Pads, Pair
from .tensors import Tensor, Window


@dataclass(frozen=True)
class Span:
    """Positions along one axis: `count` of them from `start` on."""

    start: int
    count: int

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.count


def spans(whole: Span, most: int) -> Iterator[Span]:
    """Yield a span cut into parts of at most so many positions, all but the last of them that long."""
    for start in range(whole.start, whole.end, most):
        yield Span(start, min(most, whole.end - start))


@dataclass(frozen=True)
class Box:
    """A part of one image of a tensor; rows are counted within the image."""

    image: int
    rows: Span
    cols: Span
    channels: Span


@dataclass(frozen=True)
class Field:
    """What a box of a result is made of along rows and columns: spans of the input, and the padding.

    `overhang` are rows and columns past the padding at the end, which ONNX's ceil_mode reaches.
    """

    rows: Span
    cols: Span
    pads: Pads = NO_PADS
    overhang: Pair = ZERO


def field_of(window: Window, x: Tensor, rows: Span, cols: Span) -> Field:
    """Return what rows and columns of a result read of an image, by the window that slides over it."""
    down, top, bottom, below = _axis(window, 0, x.height, rows)
    right, left, end, beyond = _axis(window, 1, x.width, cols)
    return Field(down, right, Pads(top, left, bottom, end), Pair(below, beyond))


def _axis(window: Window, axis: int, size: int, made: Span) -> tuple[Span, int, int, int]:
    """Return the span that is read, the padding before and after it, and what lies past that."""
    stride, extent = window.strides[axis], window.extent[axis]
    first = made.start * stride - window.pads[axis]
    last = (made.end - 1) * stride - window.pads[axis] + extent
    low, high = max(first, 0), min(last, size)
    after = min(last - high, window.pads[axis + 2])
    return Span(low, high - low), low - first, after, last - high - after


def reach(window: Window, axis: int, size: int, count: int) -> int:
    """Return the most positions that `count` neighbours of a result read along an axis of an input."""
    return min((count - 1) * window.strides[axis] + window.extent[axis], size)


def images_of(y: Tensor, rows: Span) -> Iterator[tuple[int, Span]]:
    """Yield the images that some rows of a tensor are of, and which of each image's rows they are."""
    row = rows.start
    while row < rows.end:
        image, inside = divmod(row, y.height)
        count = min(y.height - inside, rows.end - row)
        yield image, Span(inside, count)
        row += count
