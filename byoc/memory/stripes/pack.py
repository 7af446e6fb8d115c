"""Offsets for storages of which different bytes are in use at different moments.

Two storages may overlap where one lies above the other by a distance, and the lower one grows into what
the upper one has left: the result of a cascade over the dead rows of its operand. For each pair and
either way round, the least such distance follows from their lives. What is packed is such distances;
packing intervals is the special case that a distance is a size.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.clock import Life

_FREE = -(1 << 60)
"""The distance of two storages of which no moment sees both."""
_MOST = 1 << 60
_LOOKED = 20_000_000
"""Moments at which pairs are compared, each pair as long as `_PAIR` more; then all of both lives is."""
_PAIR = 300
_MEETINGS = 8_000_000
"""Pairs that packing in one order after another looks at, of which DenseNet-121 has 11,850 an order."""


@dataclass(frozen=True)
class Packing:
    """A byte for each storage to begin at, and the bytes of all of them together."""

    offsets: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Distances:
    """For each pair the bytes by which the first has to begin above the second, if it lies above it.

    They are the least ones if `is_exact`; else some are larger, for what is in use at any time.
    """

    apart: NDArray[np.int64]
    is_exact: bool


def distances(lives: Sequence[Life]) -> Distances:
    """Compare all pairs that meet, moment by moment where bytes come or go."""
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
            found[number, other], found[other, number] = _pair(lives[number], lives[other])
        active = np.append(active, number)
    return Distances(found, looked <= _LOOKED)


def _is_steady(life: Life) -> bool:
    """Whether the same bytes are in use all the time."""
    low, high = life.low[:1], life.high[:1]
    same = np.all(life.low == low) and np.all(life.high == high)
    return len(low) > 0 and bool(same and high[0] > low[0])


def _pair(one: Life, two: Life) -> tuple[int, int]:
    start, end = max(one.start, two.start), min(one.end, two.end)
    a, b = slice(start - one.start, end - one.start), slice(start - two.start, end - two.start)
    both = (one.high[a] > one.low[a]) & (two.high[b] > two.low[b])
    above = np.max(two.high[b] - one.low[a], where=both, initial=_FREE)
    below = np.max(one.high[a] - two.low[b], where=both, initial=_FREE)
    return int(above), int(below)


_Meets = list[list[tuple[int, int, int]]]
"""For each storage those that it meets, by how much they have to be above it, and it above them."""


class Packer:
    """Packs one after the other as close to one end as each fits; a few hundred orders are tried.

    Either end: where the dead rows of a large operand are at its lower end, its result finds room below
    it, and the operand goes first where both go to the upper end.
    """

    def __init__(self, lives: Sequence[Life], alignment: int = 1) -> None:
        """Find which storages meet, and how far apart they have to be."""
        self.alignment = alignment
        self.sizes = [-(-life.size // alignment) * alignment for life in lives]
        self.starts = [life.start for life in lives]
        compared = distances(lives)
        apart = compared.apart
        size = np.array(self.sizes, dtype=np.int64)
        turned = np.where(apart > _FREE, apart.T + size[None, :] - size[:, None], _FREE)
        self.sides = [_meets(apart)]
        self.exact = [life.size for life in lives]
        self.meetings = sum(map(len, self.sides[0]))
        self.is_cut_short = not compared.is_exact
        self.is_tried_once = 2 * self.meetings > _MEETINGS
        if not self.is_tried_once:
            self.sides.append(_meets(turned))

    def pack(self, floor: int, tries: int) -> Packing:
        """The best that is found; trying ends at `floor`, below which no size can be."""
        affordable = _MEETINGS // max(self.meetings, 1)
        size, start = self.sizes, self.starts
        items = [n for n, each in enumerate(size) if each]
        orders = [
            sorted(items, key=lambda n: (-size[n], start[n], n)),
            sorted(items, key=lambda n: (-start[n], -size[n], n)),
            sorted(items, key=lambda n: (start[n], -size[n], n)),
        ]
        best, order, meets = Packing((0,) * len(size), sum(size)), orders[0], self.sides[0]
        first = [(side, each) for side in self.sides for each in orders]
        for side, each in first[: max(affordable, 1)]:
            now = self._place(each, side, best.size)
            if now is not None:
                best, order, meets = now, each, side
        chance = random.Random(0)
        for _ in range(min(tries, affordable)):
            if best.size <= floor:
                break
            changed = self._changed(order, best, meets, chance)
            now = self._place(changed, meets, best.size)
            if now is not None:
                best, order = now, changed
        else:
            self.is_cut_short |= affordable < max(tries, len(first))
        return self._real(best, meets)

    def _real(self, packing: Packing, meets: _Meets) -> Packing:
        """Offsets from below."""
        offsets = packing.offsets
        if meets is not self.sides[0]:
            both = zip(offsets, self.sizes, strict=True)
            offsets = tuple(max(packing.size - size - offset, 0) for offset, size in both)
        ends = (offset + size for offset, size in zip(offsets, self.exact, strict=True) if size)
        return Packing(offsets, max(ends, default=0))

    def _changed(
        self, order: Sequence[int], packing: Packing, meets: _Meets, chance: random.Random
    ) -> list[int]:
        """One of those that hold up the highest goes earlier, before one that it meets."""
        offsets = packing.offsets
        under = chance.choice([n for n in order if offsets[n] + self.sizes[n] == packing.size])
        pile = [under]
        while offsets[under] > 0:
            held = [
                n
                for n, _, above in meets[under]
                if 0 <= offsets[under] - offsets[n] - above < self.alignment
            ]
            if not held or held[0] in pile:
                break
            under = chance.choice(held)
            pile.append(under)
        moved = chance.choice([pile[0], chance.choice(pile)])
        changed = list(order)
        at = changed.index(moved)
        others = {other for other, _, _ in meets[moved]}
        rivals = [i for i in range(at) if changed[i] in others]
        if rivals:
            changed.insert(chance.choice(rivals), changed.pop(at))
        return changed

    def _place(self, order: Sequence[int], meets: _Meets, limit: int) -> Packing | None:
        """Each of them in this order; None where that takes more than `limit` bytes."""
        offsets = [-1] * len(self.sizes)
        top = 0
        for number in order:
            offsets[number] = self._lowest(meets[number], offsets)
            top = max(top, offsets[number] + self.sizes[number])
            if top > limit:
                return None
        return Packing(tuple(max(offset, 0) for offset in offsets), top)

    def _lowest(self, meets: Sequence[tuple[int, int, int]], offsets: Sequence[int]) -> int:
        """The lowest offset that keeps its distance from all that is placed."""
        taken = sorted(
            (offsets[other] - below, offsets[other] + above)
            for other, below, above in meets
            if offsets[other] >= 0
        )
        lowest = 0
        for begin, end in taken:  # it can lie at `begin` or lower, or at `end` or higher
            if begin >= lowest:
                break
            if end > lowest:
                lowest = -(-end // self.alignment) * self.alignment
        return lowest


def _meets(apart: NDArray[np.int64]) -> _Meets:
    return [
        [
            (int(other), int(apart[other, number]), int(apart[number, other]))
            for other in np.flatnonzero(row > _FREE)
        ]
        for number, row in enumerate(apart)
    ]
