"""Execution order of rows inside a cascade, live rows over time, and offsets for storages that change.

Rows are computed on demand. The last units of a cascade, whose results are read elsewhere, advance
evenly; each of their rows requests the rows it reads, which request theirs in turn: of two orders, the
one that computes rows later keeps fewer of them. The last rows of a tensor may never be requested, for
instance with a stride of two, and are not computed. A layer none of whose rows is requested, below a
convolution that reads only padding, runs after all readers of its result.

A storage keeps its rows adjacent (`window` = all rows) if at some moment all of them are live; the bytes
in use are then those from the first live row to the last. Otherwise rows reuse a window cyclically, and
the whole window is in use whenever any row is live.
"""

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.memory.arena import DistancePacking
from byoc.memory.stripes._striping_problem import RowStorage, RowUnits, first_rows_read
from byoc.numerics import round_up


@dataclass(frozen=True)
class CascadeClock:
    """The units `[first, end)` of a cascade: for each moment the unit that computes one row."""

    first: int
    end: int
    moments: NDArray[np.int32]


def build_clock(units: RowUnits, first: int, end: int) -> CascadeClock:
    """Interleave the rows of the units `[first, end)`."""
    demands = _RowDemands(units, first, end)
    each = [(number, units.units[number]) for number in range(first, end)]
    sinks = [(number, unit.steps) for number, unit in each if not first <= unit.last_reader < end]
    for _, number, row in sorted(((r + 1) / steps, n, r) for n, steps in sinks for r in range(steps)):
        demands.request_rows(number, row + 1)
    for number, unit in each:  # one of which only padding is read, by a unit that itself ends early
        if not demands.done[number - first]:
            demands.request_rows(number, unit.steps)
    return CascadeClock(first, end, np.array(demands.moments, dtype=np.int32))


class _RowDemands:
    """The rows computed so far, and the rows that each unit needs."""

    def __init__(self, units: RowUnits, first: int, end: int) -> None:
        self.units, self.first = units, first
        self.moments: list[int] = []
        self.done = [0] * (end - first)
        self.needs = [self._needed_rows(unit) for unit in range(first, end)]
        self.readers = [0] * (end - first)
        for maker in (maker for needs in self.needs for maker in {maker for maker, _ in needs}):
            self.readers[maker] += 1

    def request_rows(self, number: int, rows: int) -> None:
        """Run until a unit has computed the given number of rows."""
        asked = [(number - self.first, rows)]
        while asked:
            unit, rows = asked[-1]
            row = self.done[unit]
            if row >= rows:
                asked.pop()
                continue
            for maker, ends in self.needs[unit]:
                if self.done[maker] < ends[row]:
                    asked.append((maker, ends[row]))
                    break
            else:
                self.done[unit] = row + 1
                self.moments.append(unit + self.first)
                if row + 1 == self._steps(unit):
                    asked += self._requests_for_unread(unit)

    def _steps(self, unit: int) -> int:
        return self.units.units[unit + self.first].steps

    def _requests_for_unread(self, unit: int) -> list[tuple[int, int]]:
        """Return requests for all rows of units that nobody has read, or will, once a unit is done."""
        makers = list(dict.fromkeys(maker for maker, _ in self.needs[unit]))
        for maker in makers:
            self.readers[maker] -= 1
        return [
            (maker, self._steps(maker))
            for maker in makers
            if not self.readers[maker] and not self.done[maker]
        ]

    def _needed_rows(self, number: int) -> list[tuple[int, Sequence[int]]]:
        """Return for each operand made in this cascade its maker and the rows needed, row by row."""
        needs: list[tuple[int, Sequence[int]]] = []
        row = np.arange(self.units.units[number].steps, dtype=np.int64)
        for read in self.units.units[number].reads:
            if read.maker >= self.first:
                height = self.units.storages[read.storage].rows
                ends = np.clip(first_rows_read(read.rows, row) + read.rows.extent, 0, height)
                maker = self.units.units[read.maker]
                if maker.mode != "rows":
                    ends = np.where(ends > 0, maker.steps, 0)
                needs.append((read.maker - self.first, ends.tolist()))
        return needs


Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class StorageLiveRange:
    """The live range of a storage: its bytes `[low, high)` at each moment from `start` on."""

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
        """Bytes from the beginning to the last byte ever in use."""
        return int(self.high.max(initial=0))


@dataclass(frozen=True)
class LiveRows:
    """Rows `[first, end)` of a storage that are live, for each moment of one cascade."""

    first: Bytes
    end: Bytes


@dataclass(frozen=True)
class RowCounts:
    """The number of rows each unit of a cascade has computed before and after each moment."""

    clock: CascadeClock
    order: NDArray[np.intp]
    bounds: NDArray[np.intp]

    @classmethod
    def count(cls, clock: CascadeClock) -> "RowCounts":
        """Count the rows of all units at once."""
        order = np.argsort(clock.moments, kind="stable")
        units = np.arange(clock.first, clock.end + 1)
        return cls(clock, order, np.searchsorted(clock.moments[order], units))

    def count_before(self, unit: int) -> Bytes:
        """Rows computed before each moment."""
        return self._count(unit, 1)

    def count_after(self, unit: int) -> Bytes:
        """Rows computed at the end of each moment."""
        return self._count(unit, 0)

    def _count(self, unit: int, late: int) -> Bytes:
        at = unit - self.clock.first
        count = np.zeros(len(self.order) + 1, dtype=np.int64)
        count[self.order[self.bounds[at] : self.bounds[at + 1]] + late] = 1
        return np.cumsum(count)[:-1]


def find_live_rows(storage: RowStorage, units: RowUnits, counts: RowCounts) -> LiveRows:
    """Return the live rows of a storage during a cascade."""
    clock = counts.clock
    none = np.zeros(len(clock.moments), dtype=np.int64)
    whole = none + storage.rows
    end = whole
    if storage.maker >= clock.first:
        end = counts.count_after(storage.maker)
        if units.units[storage.maker].mode != "rows":
            end = np.where(end > 0, storage.rows, 0)
    if storage.kept or storage.last >= clock.end:
        return LiveRows(none, end)
    first = whole
    for reader, rows in storage.readers:
        if reader < clock.first:
            continue
        row = counts.count_before(reader)
        begins = np.clip(first_rows_read(rows, row), 0, storage.rows)
        first = np.minimum(first, np.where(row < units.units[reader].steps, begins, storage.rows))
    last = storage.writers[-1] if storage.writers else -1
    if (
        last >= clock.first
    ):  # rows are in use until the last writer has made them, even if nobody reads them
        row, unit = counts.count_before(last), units.units[last]
        runs = row < unit.steps
        first = np.where(runs, np.minimum(first, row if unit.mode == "rows" else 0), first)
    return LiveRows(np.minimum(first, end), end)


def find_storage_live_ranges(units: RowUnits, clocks: Sequence[CascadeClock]) -> list[StorageLiveRange]:
    """Return the live range of each storage over a sequence of cascades."""
    parts: list[list[LiveRows]] = [[] for _ in units.storages]
    starts_at = [0] * len(units.storages)
    now = 0
    for clock in clocks:
        counts = RowCounts.count(clock)
        for number, storage in enumerate(units.storages):
            if storage.maker >= clock.end or (storage.last < clock.first and not storage.kept):
                continue
            if not parts[number]:
                starts_at[number] = now
            parts[number].append(find_live_rows(storage, units, counts))
        now += len(clock.moments)
    return [
        _build_live_range(storage, starts_at[n], parts[n]) for n, storage in enumerate(units.storages)
    ]


def find_scratch_live_range(units: RowUnits, clocks: Sequence[CascadeClock]) -> StorageLiveRange:
    """Return the live range of the scratch of all units, as one more storage."""
    needed = np.array([unit.scratch for unit in units.units] or [0], dtype=np.int64)
    moments = np.concatenate([np.zeros(0, dtype=np.int32), *(clock.moments for clock in clocks)])
    high = needed[moments]
    return StorageLiveRange(0, np.zeros_like(high), high, 1)


def _build_live_range(storage: RowStorage, start: int, parts: Sequence[LiveRows]) -> StorageLiveRange:
    none = np.zeros(0, dtype=np.int64)
    first = np.concatenate([none, *(part.first for part in parts)])
    end = np.concatenate([none, *(part.end for part in parts)])
    if storage.maker < 0:  # all of it is given, even what nobody reads
        first = np.concatenate([[0], first[1:]])
        end = np.concatenate([[storage.rows], end[1:]])
    alive = np.flatnonzero(end > first)
    if not len(alive):
        return StorageLiveRange(start, none, none, storage.rows)
    first, end = first[alive[0] : alive[-1] + 1], end[alive[0] : alive[-1] + 1]
    window = int((end - first).max())
    if window < storage.rows:
        first, end = np.zeros_like(first), np.where(end > first, window, 0)
    unit = storage.row_bytes
    return StorageLiveRange(start + int(alive[0]), first * unit, end * unit, window)


# Offsets for storages whose bytes in use change over time.
#
# Two storages may overlap if one lies above the other by some distance and the lower one grows into
# bytes that the upper one no longer uses: the result of a cascade over the dead rows of its
# operand. The smallest such distance follows from both live ranges, for each pair and either order.
# Packing works on these distances; packing of intervals is the special case in which a distance is
# a size.

_FREE = -(1 << 60)
"""The distance of two storages of which no moment sees both."""
_MOST = 1 << 60
_LOOKED = 20_000_000
"""The budget for comparing pairs, in moments; each pair costs `_PAIR` more."""
_PAIR = 300  # what comparing a pair takes beside its moments, in moments
_MEETINGS = 8_000_000
"""Pairs that packing in one order after another looks at, of which DenseNet-121 has 11,850 an order."""


@dataclass(frozen=True)
class WindowPacking:
    """An offset for each storage, and the bytes of all together."""

    offsets: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class StorageDistances:
    """For each pair the bytes by which the first has to begin above the second, if it lies above it.

    They are minimal if `is_exact`; otherwise some are larger, computed from all bytes ever in use.
    """

    apart: NDArray[np.int64]
    is_exact: bool


def find_distances(lives: Sequence[StorageLiveRange]) -> StorageDistances:
    """Compare all pairs of storages that are live together, moment by moment."""
    found = np.full((len(lives), len(lives)), _FREE, dtype=np.int64)
    order = sorted((life.start, life.end, number) for number, life in enumerate(lives) if len(life.low))
    ends = np.array([life.end for life in lives], dtype=np.int64)
    low = np.array([life.low.min(initial=_MOST) for life in lives], dtype=np.int64)
    high = np.array([life.size for life in lives], dtype=np.int64)
    steady = np.array([_is_steady(life) for life in lives], dtype=bool)
    active = np.zeros(0, dtype=np.int64)
    looked = 0
    for start, _, number in order:
        active = active[ends[active] > start]
        found[number, active] = high[active] - low[number]
        found[active, number] = high[number] - low[active]
        for other in active[~(steady[active] & steady[number])].tolist():
            looked += min(lives[number].end, lives[other].end) - start + _PAIR
            if looked > _LOOKED:
                break
            found[number, other], found[other, number] = _pair_distances(lives[number], lives[other])
        active = np.append(active, number)
    return StorageDistances(found, looked <= _LOOKED)


def _is_steady(life: StorageLiveRange) -> bool:
    """Tell whether the same bytes are in use all the time."""
    low, high = life.low[:1], life.high[:1]
    same = np.all(life.low == low) and np.all(life.high == high)
    return len(low) > 0 and bool(same and high[0] > low[0])


def _pair_distances(one: StorageLiveRange, two: StorageLiveRange) -> tuple[int, int]:
    start, end = max(one.start, two.start), min(one.end, two.end)
    a, b = slice(start - one.start, end - one.start), slice(start - two.start, end - two.start)
    both = (one.high[a] > one.low[a]) & (two.high[b] > two.low[b])
    above = np.max(two.high[b] - one.low[a], where=both, initial=_FREE)
    below = np.max(one.high[a] - two.low[b], where=both, initial=_FREE)
    return int(above), int(below)


class WindowPacker:
    """Places storages one after another as close to one end as possible, in a few hundred sequences.

    Either end is tried: if the dead rows of a large operand are at its lower end, its result has room
    below it, and the operand is placed first if both go to the upper end.
    """

    def __init__(self, lives: Sequence[StorageLiveRange], alignment: int = 1) -> None:
        """Find the storages that conflict, and their distances."""
        self.alignment = alignment
        self.sizes = [round_up(life.size, alignment) for life in lives]
        self.starts = [life.start for life in lives]
        compared = find_distances(lives)
        apart = compared.apart
        size = np.array(self.sizes, dtype=np.int64)
        turned = np.where(apart > _FREE, apart.T + size[None, :] - size[:, None], _FREE)
        self.sides = [self._build_side(apart)]
        self.exact = [life.size for life in lives]
        self.meetings = sum(map(len, self.sides[0].conflicts))
        self.is_cut_short = not compared.is_exact
        self.is_tried_once = 2 * self.meetings > _MEETINGS
        if not self.is_tried_once:
            self.sides.append(self._build_side(turned))

    def pack(self, floor: int, tries: int) -> WindowPacking:
        """Return the best packing found; the search ends at `floor`, a lower bound on the size."""
        affordable = _MEETINGS // max(self.meetings, 1)
        size, start = self.sizes, self.starts
        items = [n for n, each in enumerate(size) if each]
        orders = [
            sorted(items, key=lambda n: (-size[n], start[n], n)),
            sorted(items, key=lambda n: (-start[n], -size[n], n)),
            sorted(items, key=lambda n: (start[n], -size[n], n)),
        ]
        best, order, meets = WindowPacking((0,) * len(size), sum(size)), orders[0], self.sides[0]
        first = [(side, each) for side in self.sides for each in orders]
        for side, each in first[: max(affordable, 1)]:
            now = _place(side, each, best.size)
            if now is not None:
                best, order, meets = now, each, side
        chance = random.Random(0)
        for _ in range(min(tries, affordable)):
            if best.size <= floor:
                break
            changed = self._change_sequence(order, best, meets, chance)
            now = _place(meets, changed, best.size)
            if now is not None:
                best, order = now, changed
        else:
            self.is_cut_short |= affordable < max(tries, len(first))
        return self._to_lower_end(best, meets)

    def _to_lower_end(self, packing: WindowPacking, meets: DistancePacking) -> WindowPacking:
        """Return the packing with offsets from the lower end."""
        offsets = packing.offsets
        if meets is not self.sides[0]:
            both = zip(offsets, self.sizes, strict=True)
            # What no moment sees has no size and stays at 0, inside of the arena.
            offsets = tuple(max(packing.size - size - offset, 0) if size else 0 for offset, size in both)
        ends = (offset + size for offset, size in zip(offsets, self.exact, strict=True) if size)
        return WindowPacking(offsets, max(ends, default=0))

    def _change_sequence(
        self, order: Sequence[int], packing: WindowPacking, meets: DistancePacking, chance: random.Random
    ) -> list[int]:
        """Move one of the storages that support the highest one before a conflicting storage."""
        offsets = packing.offsets
        under = chance.choice([n for n in order if offsets[n] + self.sizes[n] == packing.size])
        pile = [under]
        while offsets[under] > 0:
            held = [n for n, _, above in meets.conflicts[under] if offsets[under] - offsets[n] == above]
            if not held or held[0] in pile:
                break
            under = chance.choice(held)
            pile.append(under)
        moved = chance.choice([pile[0], chance.choice(pile)])
        changed = list(order)
        at = changed.index(moved)
        others = {other for other, _, _ in meets.conflicts[moved]}
        rivals = [i for i in range(at) if changed[i] in others]
        if rivals:
            changed.insert(chance.choice(rivals), changed.pop(at))
        return changed

    def _build_side(self, apart: NDArray[np.int64]) -> DistancePacking:
        """Return the storages with their distances, at offsets that are multiples of the alignment."""
        conflicts = [
            [
                (
                    int(other),
                    -int(apart[other, number]),
                    round_up(int(apart[number, other]), self.alignment),
                )
                for other in np.flatnonzero(row > _FREE)
            ]
            for number, row in enumerate(apart)
        ]
        return DistancePacking(self.sizes, conflicts)


def _place(meets: DistancePacking, order: Sequence[int], limit: int) -> WindowPacking | None:
    """Place the storages in this sequence; None if that takes more than `limit` bytes."""
    offsets, above = meets.place_below(order, False, limit)
    return WindowPacking(tuple(offsets), meets.height(offsets)) if above is None else None
