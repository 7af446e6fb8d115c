"""Which bytes of a storage are in use, moment by moment.

A storage has its rows one behind the other (`window` = all of them) where at some moment all of them
live; the bytes in use are then those from the first live row to the last. Elsewhere the rows go round in
a window, and all of its bytes are in use as long as any row lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.clock import Clock
from byoc.memory.stripes.units import Storage, Units

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Life:
    """Bytes `[low, high)` from a storage's beginning on, for each moment from `start` on."""

    start: int
    low: Bytes
    high: Bytes
    window: int

    @property
    def end(self) -> int:
        """The moment after the last one."""
        return self.start + len(self.low)

    @property
    def size(self) -> int:
        """Bytes from the beginning to the last byte that is ever in use."""
        return int(self.high.max(initial=0))


@dataclass(frozen=True)
class Span:
    """Rows `[first, end)` of a storage that live, for each moment of one cascade."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def most(self) -> int:
        """The most rows that live at a time."""
        return int((self.end - self.first).max(initial=0))


class Counts:
    """How many rows each unit of a cascade has computed before each moment, and after it."""

    def __init__(self, clock: Clock) -> None:
        self.length = len(clock.moments)
        self._order = np.argsort(clock.moments, kind="stable")
        ids = np.arange(clock.first, clock.end + 1)
        self._bounds = np.searchsorted(clock.moments[self._order], ids)
        self._first = clock.first

    def before(self, unit: int) -> NDArray[np.int64]:
        """Rows computed before each moment."""
        return self._count(unit, 1)

    def after(self, unit: int) -> NDArray[np.int64]:
        """Rows computed when each moment is over."""
        return self._count(unit, 0)

    def _count(self, unit: int, late: int) -> NDArray[np.int64]:
        at = unit - self._first
        count = np.zeros(self.length + 1, dtype=np.int64)
        count[self._order[self._bounds[at] : self._bounds[at + 1]] + late] = 1
        return np.cumsum(count)[: self.length]


def span(storage: Storage, units: Units, clock: Clock, counts: Counts) -> Span:
    """The live rows of a storage that this cascade makes or reads."""
    end = np.full(counts.length, storage.rows, dtype=np.int64)
    if storage.maker >= clock.first:
        maker = units.units[storage.maker]
        after = counts.after(storage.maker)
        end = after if maker.mode == "rows" else np.where(after > 0, storage.rows, 0)
    if storage.kept or any(reader >= clock.end for reader, _ in storage.readers):
        return Span(np.zeros(counts.length, dtype=np.int64), end)
    first = end
    for reader, rows in storage.readers:
        if reader < clock.first:
            continue
        row = counts.before(reader)
        begins = np.clip(row * rows.stride // rows.repeat - rows.before, 0, storage.rows)
        first = np.minimum(first, np.where(row < units.units[reader].steps, begins, storage.rows))
    if not storage.readers:  # nobody reads it: it lives while it is made
        first = (
            np.maximum(end - 1, 0) if units.units[storage.maker].mode == "rows" else np.zeros_like(end)
        )
    return Span(first, end)


def lives(units: Units, clocks: Sequence[Clock]) -> list[Life]:
    """The life of each storage over all cascades, one behind the other."""
    parts: list[list[Span]] = [[] for _ in units.storages]
    starts = [0] * len(units.storages)
    now = 0
    for clock in clocks:
        counts = Counts(clock)
        for number, storage in enumerate(units.storages):
            last = max((reader for reader, _ in storage.readers), default=storage.maker)
            if storage.maker >= clock.end or (last < clock.first and not storage.kept):
                continue
            if not parts[number]:
                starts[number] = now
            parts[number].append(span(storage, units, clock, counts))
        now += counts.length
    return [_life(storage, starts[n], parts[n]) for n, storage in enumerate(units.storages)]


def scratches(units: Units, clocks: Sequence[Clock]) -> Life:
    """What units need while they run, as one more storage."""
    needed = np.array([unit.scratch for unit in units.units] or [0], dtype=np.int64)
    moments = np.concatenate([np.zeros(0, dtype=np.int32), *(clock.moments for clock in clocks)])
    high = needed[moments]
    return Life(0, np.zeros_like(high), high, 1)


def _life(storage: Storage, start: int, parts: Sequence[Span]) -> Life:
    none = np.zeros(0, dtype=np.int64)
    first = np.concatenate([none, *(part.first for part in parts)])
    end = np.concatenate([none, *(part.end for part in parts)])
    if storage.maker < 0:  # all of it is given, even what nobody reads
        first = np.concatenate([[0], first[1:]])
        end = np.concatenate([[storage.rows], end[1:]])
    alive = np.flatnonzero(end > first)
    if not len(alive):
        return Life(start, none, none, storage.rows)
    first, end = first[alive[0] : alive[-1] + 1], end[alive[0] : alive[-1] + 1]
    window = int((end - first).max())
    if window < storage.rows:
        first, end = np.zeros_like(first), np.full_like(end, window)
    unit = storage.row_bytes
    return Life(start + int(alive[0]), first * unit, end * unit, window)
