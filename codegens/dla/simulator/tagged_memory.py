"""Simulated memories; a tagged memory records for each byte the tensor and row last written there."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..machine import Operand

Array = NDArray[Any]


class FaultError(Exception):
    """A violation of the rules of the machine by a command."""


class PlainMemory:
    """A memory without tags: the class itself serves the weights."""

    def __init__(self, name: str, content: NDArray[np.uint8]) -> None:
        """Take the bytes, and the name of the memory in messages."""
        self.name = name
        self.bytes = content

    def read(self, box: Operand) -> Array:
        """Return a box as an array [rows, cols, channels]; it may be a view of the memory.

        Raises FaultError if the box exceeds the memory.
        """
        views = []
        for run in _row_runs(box):
            self._check_bounds(box, run)
            self._check_tags(box, run)
            views.append(_view_elements(self.bytes, box, run))
        return views[0] if len(views) == 1 else np.concatenate(views)

    def _check_bounds(self, box: Operand, run: "_RowRun") -> None:
        end, size = _end_of_run(box, run), len(self.bytes)
        if end > size:
            raise FaultError(f"it needs byte {end - 1} of the {self.name}, which has {size} bytes")
        if box.nbytes > size:
            raise FaultError(f"it has {box.nbytes} bytes, but the {self.name} only {size}")

    def _check_tags(self, box: Operand, run: "_RowRun") -> None:
        """Raise FaultError if the tags are not those of a box; plain bytes have none."""


class TaggedMemory(PlainMemory):
    """A memory with a tag for each byte, all of them 0 at first.

    A tag is tensor * 2**32 + row, and 0 if nothing was ever written. Reading an operand checks that
    every byte of it has the operand's tags. So bytes that were overwritten or never written, and those
    of another row of a rolling window, are detected when they are read.
    """

    def __init__(self, name: str, size: int) -> None:
        """Create a memory of `size` bytes without any written."""
        super().__init__(name, np.zeros(size, np.uint8))
        self.tags = np.zeros(size, np.uint64)

    def write(self, box: Operand, values: Array) -> None:
        """Write an array [rows, cols, channels] to a box, and tag it.

        Raises FaultError if the box exceeds the memory, or does not fit the array.
        """
        if values.dtype != box.dtype.array_type or values.shape != (box.rows, box.cols, box.channels):
            raise FaultError(f"{values.shape} {values.dtype} do not fit the operand that is written")
        start = 0
        for run in _row_runs(box):
            self._check_bounds(box, run)
            _view_elements(self.bytes, box, run)[...] = values[start : start + run.rows]
            tags = _view_tags(self.tags, box, run)
            tags[...] = _expected_tags(box, run, tags.ndim)
            start += run.rows

    def _check_tags(self, box: Operand, run: "_RowRun") -> None:
        tags = _view_tags(self.tags, box, run)
        expected = _expected_tags(box, run, tags.ndim)
        if (tags == expected).all():
            return
        place = np.argwhere(tags != expected)[0]
        found = int(tags[tuple(place)])
        byte = run.address + int(place @ np.array(tags.strides)) // self.tags.itemsize
        there = f"row {found % 2**32} of tensor {found >> 32}" if found else "nothing yet"
        raise FaultError(
            f"byte {byte} of the {self.name} should hold row {run.first + int(place[0])} of tensor "
            f"{box.tensor}, but {there} was written there"
        )


def check_box(name: str, box: Operand) -> None:
    """Raise FaultError for an operand that is absent, is empty, or has more rows than its window."""
    if not (box.tensor and box.rows and box.cols and box.channels):
        raise FaultError(f"the operand {name} has no tensor or no elements")
    if box.rows > box.window:
        raise FaultError(f"the operand {name} has {box.rows} rows, but its window only {box.window}")


def end_of(box: Operand) -> int:
    """Return one past the last byte of a box that passes `check_box`."""
    return max(_end_of_run(box, run) for run in _row_runs(box))


class _RowRun(NamedTuple):
    """Consecutive rows of a box that do not wrap around its window."""

    first: int
    rows: int
    address: int


def _row_runs(box: Operand) -> Iterator[_RowRun]:
    row, end = box.first_row, box.first_row + box.rows
    while row < end:
        slot = row % box.window
        rows = min(end - row, box.window - slot)
        yield _RowRun(row, rows, box.address + slot * box.row_pitch)
        row += rows


def _end_of_run(box: Operand, run: _RowRun) -> int:
    last = run.address + (run.rows - 1) * box.row_pitch + (box.cols - 1) * box.pixel_pitch
    return last + (box.channels - 1) * box.channel_pitch + box.dtype.size


def _view_elements(memory: Array, box: Operand, run: _RowRun) -> Array:
    """Return a view [rows, cols, channels] of the elements."""
    shape = (run.rows, box.cols, box.channels)
    strides = (box.row_pitch, box.pixel_pitch, box.channel_pitch)
    return np.ndarray(shape, box.dtype.array_type, memory.data, run.address, strides)


def _view_tags(tags: Array, box: Operand, run: _RowRun) -> Array:
    """Return a view [rows, ...] of the tags of the elements' bytes, in as few dimensions as possible."""
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


def _expected_tags(box: Operand, run: _RowRun, dimensions: int) -> Array:
    """Return the expected tags of some rows, to compare with a view of so many dimensions."""
    rows = np.arange(run.first, run.first + run.rows, dtype=np.uint64)
    tags = (np.uint64(box.tensor) << np.uint64(32)) + rows
    return tags.reshape(-1, *[1] * (dimensions - 1))
