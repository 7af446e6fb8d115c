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

from byoc.memory.stripes.lives import Life

_FREE = -(1 << 60)
"""The distance of two storages of which no moment sees both."""


@dataclass(frozen=True)
class Packing:
    """A byte for each storage to begin at, and the bytes of all of them together."""

    offsets: tuple[int, ...]
    size: int


def distances(lives: Sequence[Life]) -> NDArray[np.int64]:
    """For each pair the bytes by which the first has to begin above the second, if it lies above it."""
    found = np.full((len(lives), len(lives)), _FREE, dtype=np.int64)
    order = sorted((life.start, life.end, number) for number, life in enumerate(lives) if len(life.low))
    active: list[int] = []
    for start, _, number in order:
        active = [other for other in active if lives[other].end > start]
        for other in active:
            found[number, other], found[other, number] = _pair(lives[number], lives[other])
        active.append(number)
    return found


def _pair(one: Life, two: Life) -> tuple[int, int]:
    start, end = max(one.start, two.start), min(one.end, two.end)
    a, b = slice(start - one.start, end - one.start), slice(start - two.start, end - two.start)
    both = (one.high[a] > one.low[a]) & (two.high[b] > two.low[b])
    above = np.max(two.high[b] - one.low[a], where=both, initial=_FREE)
    below = np.max(one.high[a] - two.low[b], where=both, initial=_FREE)
    return int(above), int(below)


class Packer:
    """Packs one after the other as low as each fits; a few hundred orders are tried."""

    def __init__(self, lives: Sequence[Life], alignment: int = 1, tries: int = 200) -> None:
        """Find which storages meet, and how far apart they have to be."""
        self.sizes = [life.size for life in lives]
        self.starts = [life.start for life in lives]
        self.alignment, self.tries = alignment, tries
        apart = distances(lives)
        self.meets: list[list[tuple[int, int, int]]] = [
            [(other, int(apart[other, n]), int(apart[n, other])) for other in np.flatnonzero(row > _FREE)]
            for n, row in enumerate(apart)
        ]

    def pack(self, floor: int) -> Packing:
        """The best that is found; trying ends at `floor`, below which no size can be."""
        size, start = self.sizes, self.starts
        items = [n for n, each in enumerate(size) if each]
        orders = [
            sorted(items, key=lambda n: (-size[n], start[n], n)),
            sorted(items, key=lambda n: (-start[n], -size[n], n)),
            sorted(items, key=lambda n: (-size[n], -start[n], n)),
        ]
        packed = [(self._place(order), order) for order in orders]
        best, order = min(packed, key=lambda each: each[0].size)
        chance = random.Random(0)
        for _ in range(self.tries):
            if best.size <= floor:
                break
            changed = self._changed(order, best, chance)
            now = self._place(changed)
            if now.size <= best.size:
                best, order = now, changed
        return best

    def _changed(self, order: Sequence[int], packing: Packing, chance: random.Random) -> list[int]:
        """One of the storages at the top goes earlier, before one that it meets."""
        top = chance.choice([n for n in order if packing.offsets[n] + self.sizes[n] == packing.size])
        changed = list(order)
        at = changed.index(top)
        meets = {other for other, _, _ in self.meets[top]}
        rivals = [i for i in range(at) if changed[i] in meets]
        if rivals:
            changed.insert(chance.choice(rivals), changed.pop(at))
        return changed

    def _place(self, order: Sequence[int]) -> Packing:
        offsets = [-1] * len(self.sizes)
        for number in order:
            offsets[number] = self._lowest(number, offsets)
        top = max((offsets[n] + self.sizes[n] for n in order), default=0)
        return Packing(tuple(max(offset, 0) for offset in offsets), top)

    def _lowest(self, number: int, offsets: Sequence[int]) -> int:
        """The lowest offset that keeps its distance from all that is placed."""
        taken = sorted(
            (offsets[other] - below, offsets[other] + above)
            for other, below, above in self.meets[number]
            if offsets[other] >= 0
        )
        lowest = 0
        for begin, end in taken:  # it can lie at `begin` or lower, or at `end` or higher
            if begin >= lowest:
                break
            if end > lowest:
                lowest = -(-end // self.alignment) * self.alignment
        return lowest
