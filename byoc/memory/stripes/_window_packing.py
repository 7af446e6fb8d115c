"""Offsets for storages whose bytes in use change over time.

Two storages may overlap if one lies above the other by some distance and the lower one grows into bytes
that the upper one no longer uses: the result of a cascade over the dead rows of its operand. The
smallest such distance follows from both live ranges, for each pair and either order. Packing works on
these distances; packing of intervals is the special case in which a distance is a size.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.arena import DistancePacking
from byoc.memory.stripes._row_clock import StorageLiveRange
from byoc.numerics import round_up

_FREE = -(1 << 60)
"""The distance of two storages of which no moment sees both."""
_MOST = 1 << 60
_LOOKED = 20_000_000
"""The budget for comparing pairs, in moments; each pair costs `_PAIR` more."""
_PAIR = 300
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
