"""A memory that remembers for each byte which row of which tensor was written there last."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .operand import DType, Operand

Array = NDArray[Any]
_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.FLOAT32: np.dtype("<f4"),
    DType.INT8: np.dtype("i1"),
    DType.UINT8: np.dtype("u1"),
    DType.INT32: np.dtype("<i4"),
}


class FaultError(Exception):
    """What a command may not do; the message says what it was."""


class PlainMemory:
    """Bytes to be read, all of which are there: alone, it is that of the weights."""

    def __init__(self, name: str, content: NDArray[np.uint8]) -> None:
        """Take the bytes, and what the memory is called in messages."""
        self.name = name
        self.bytes = content

    def read(self, box: Operand) -> Array:
        """Return a box as an array [rows, cols, channels]; it may be a view of the memory.

        Raises FaultError where the box leaves the memory.
        """
        views = []
        for run in _runs(box):
            self._inside(box, run)
            self._check(box, run)
            views.append(_elements(self.bytes, box, run))
        return views[0] if len(views) == 1 else np.concatenate(views)

    def _inside(self, box: Operand, run: "_Run") -> None:
        end, size = _end(box, run), len(self.bytes)
        if end > size:
            raise FaultError(f"it needs byte {end - 1} of the {self.name}, which has {size} bytes")
        if box.nbytes > size:
            raise FaultError(f"it has {box.nbytes} bytes, and the {self.name} {size} in all")

    def _check(self, box: Operand, run: "_Run") -> None:
        """Raise FaultError where a box is not what lies there; of plain bytes all are."""


class TaggedMemory(PlainMemory):
    """Bytes and their tags, all of them 0 at first.

    A tag is tensor * 2**32 + row, 0 where nothing was ever written. Reading an operand checks that every
    byte of it has the operand's tags, so that what was overwritten, never written, or is another row of
    a rolling window is found where it is read.
    """

    def __init__(self, name: str, size: int) -> None:
        """Make a memory of some bytes in which nothing was written."""
        super().__init__(name, np.zeros(size, np.uint8))
        self.tags = np.zeros(size, np.uint64)

    def write(self, box: Operand, values: Array) -> None:
        """Write an array [rows, cols, channels] to a box, and tag it.

        Raises FaultError where the box leaves the memory, or is for another array.
        """
        if values.dtype != _NUMPY[box.dtype] or values.shape != (box.rows, box.cols, box.channels):
            raise FaultError(f"{values.shape} {values.dtype} do not fit the operand that is written")
        start = 0
        for run in _runs(box):
            self._inside(box, run)
            _elements(self.bytes, box, run)[...] = values[start : start + run.rows]
            tags = _tags(self.tags, box, run)
            tags[...] = _expected(box, run, tags.ndim)
            start += run.rows

    def _check(self, box: Operand, run: "_Run") -> None:
        tags = _tags(self.tags, box, run)
        expected = _expected(box, run, tags.ndim)
        if (tags == expected).all():
            return
        place = np.argwhere(tags != expected)[0]
        found = int(tags[tuple(place)])
        byte = run.address + int(place @ np.array(tags.strides)) // self.tags.itemsize
        there = f"row {found % 2**32} of tensor {found >> 32}" if found else "nothing yet"
        raise FaultError(
            f"byte {byte} of the {self.name} should hold row {run.first + int(place[0])} of tensor "
            f"{box.tensor}, and {there} was written there"
        )


def check_box(name: str, box: Operand) -> None:
    """Raise FaultError for an operand that is not there, is empty, or has more rows than its window."""
    if not (box.tensor and box.rows and box.cols and box.channels):
        raise FaultError(f"the operand {name} has no tensor or no elements")
    if box.rows > box.window:
        raise FaultError(f"the operand {name} has {box.rows} rows, and its window {box.window}")


def end_of(box: Operand) -> int:
    """Return one past the last byte that a box reaches; `check_box` has to have nothing against it."""
    return max(_end(box, run) for run in _runs(box))


def array_type(dtype: DType) -> np.dtype[Any]:
    """Return what numpy calls an element type."""
    return _NUMPY[dtype]


class _Run(NamedTuple):
    """Rows of a box that lie one after another, without a wrap around its window."""

    first: int
    rows: int
    address: int


def _runs(box: Operand) -> Iterator[_Run]:
    row, end = box.first_row, box.first_row + box.rows
    while row < end:
        slot = row % box.window
        rows = min(end - row, box.window - slot)
        yield _Run(row, rows, box.address + slot * box.row_pitch)
        row += rows


def _end(box: Operand, run: _Run) -> int:
    last = run.address + (run.rows - 1) * box.row_pitch + (box.cols - 1) * box.pixel_pitch
    return last + (box.channels - 1) * box.channel_pitch + box.dtype.size


def _elements(memory: Array, box: Operand, run: _Run) -> Array:
    """Return a view [rows, cols, channels] of the elements."""
    shape = (run.rows, box.cols, box.channels)
    strides = (box.row_pitch, box.pixel_pitch, box.channel_pitch)
    return np.ndarray(shape, _NUMPY[box.dtype], memory.data, run.address, strides)


def _tags(tags: Array, box: Operand, run: _Run) -> Array:
    """Return a view [rows, ...] of the tags of the elements' bytes, in as few dimensions as can be."""
    extents = [(box.dtype.size, 1)]
    for count, pitch in ((box.channels, box.channel_pitch), (box.cols, box.pixel_pitch)):
        inner, step = extents[0]
        if count == 1 or pitch == inner * step:
            extents[0] = (count * inner, step)
        else:
            extents.insert(0, (count, pitch))
    item = tags.itemsize
    shape = (run.rows, *(count for count, _ in extents))
    steps = (box.row_pitch * item, *(pitch * item for _, pitch in extents))
    return np.ndarray(shape, tags.dtype, tags.data, run.address * item, steps)


def _expected(box: Operand, run: _Run, dimensions: int) -> Array:
    """Return the tags of some rows, to be compared with a view of so many dimensions."""
    rows = np.arange(run.first, run.first + run.rows, dtype=np.uint64)
    tags = (np.uint64(box.tensor) << np.uint64(32)) + rows
    return tags.reshape(-1, *[1] * (dimensions - 1))
