"""Which bytes of a storage are in use, moment by moment.

A storage has its rows one behind the other (`window` = all of them) where at some moment all of them
live; the bytes in use are then those from the first live row to the last. Elsewhere the rows go round in
a window, and all of its bytes are in use at a moment at which any row lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.clock import Clock
from byoc.memory.stripes.over import starts
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

    first: Bytes
    end: Bytes


@dataclass(frozen=True)
class Counts:
    """How many rows each unit of a cascade has computed before each moment, and after it."""

    clock: Clock
    order: NDArray[np.intp]
    bounds: NDArray[np.intp]

    @classmethod
    def of(cls, clock: Clock) -> "Counts":
        """Count once for all units."""
        order = np.argsort(clock.moments, kind="stable")
        units = np.arange(clock.first, clock.end + 1)
        return cls(clock, order, np.searchsorted(clock.moments[order], units))

    def before(self, unit: int) -> Bytes:
        """Rows computed before each moment."""
        return self._count(unit, 1)

    def after(self, unit: int) -> Bytes:
        """Rows computed when each moment is over."""
        return self._count(unit, 0)

    def _count(self, unit: int, late: int) -> Bytes:
        at = unit - self.clock.first
        count = np.zeros(len(self.order) + 1, dtype=np.int64)
        count[self.order[self.bounds[at] : self.bounds[at + 1]] + late] = 1
        return np.cumsum(count)[:-1]


def span(storage: Storage, units: Units, counts: Counts) -> Span:
    """The live rows of a storage in a cascade that makes or reads it, or leaves it alone."""
    clock = counts.clock
    none = np.zeros(len(clock.moments), dtype=np.int64)
    whole = none + storage.rows
    end = whole
    if storage.maker >= clock.first:
        end = counts.after(storage.maker)
        if units.units[storage.maker].mode != "rows":
            end = np.where(end > 0, storage.rows, 0)
    if storage.kept or storage.last >= clock.end:
        return Span(none, end)
    first = whole
    for reader, rows in storage.readers:
        if reader < clock.first:
            continue
        row = counts.before(reader)
        begins = np.clip(starts(rows, row), 0, storage.rows)
        first = np.minimum(first, np.where(row < units.units[reader].steps, begins, storage.rows))
    last = storage.writers[-1] if storage.writers else -1
    if (
        last >= clock.first
    ):  # rows are in use until the last writer has made them, even if nobody reads them
        row, unit = counts.before(last), units.units[last]
        runs = row < unit.steps
        first = np.where(runs, np.minimum(first, row if unit.mode == "rows" else 0), first)
    return Span(np.minimum(first, end), end)


def lives(units: Units, clocks: Sequence[Clock]) -> list[Life]:
    """The life of each storage over all cascades, one behind the other."""
    parts: list[list[Span]] = [[] for _ in units.storages]
    starts_at = [0] * len(units.storages)
    now = 0
    for clock in clocks:
        counts = Counts.of(clock)
        for number, storage in enumerate(units.storages):
            if storage.maker >= clock.end or (storage.last < clock.first and not storage.kept):
                continue
            if not parts[number]:
                starts_at[number] = now
            parts[number].append(span(storage, units, counts))
        now += len(clock.moments)
    return [_life(storage, starts_at[n], parts[n]) for n, storage in enumerate(units.storages)]


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
        first, end = np.zeros_like(first), np.where(end > first, window, 0)
    unit = storage.row_bytes
    return Life(start + int(alive[0]), first * unit, end * unit, window)
