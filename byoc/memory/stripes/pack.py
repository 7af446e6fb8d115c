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


@dataclass(frozen=True)
class Packer:
    """Packs one after the other as low as each fits; a few hundred orders are tried."""

    lives: Sequence[Life]
    apart: NDArray[np.int64]
    alignment: int = 1
    tries: int = 200

    def pack(self, floor: int) -> Packing:
        """The best that is found; trying ends at `floor`, below which no size can be."""
        size = [life.size for life in self.lives]
        start = [life.start for life in self.lives]
        items = range(len(self.lives))
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
            order_now = self._changed(order, best, chance)
            now = self._place(order_now)
            if now.size <= best.size:
                best, order = now, order_now
        return best

    def _changed(self, order: Sequence[int], packing: Packing, chance: random.Random) -> list[int]:
        """One of the storages at the top goes earlier."""
        tops = [n for n in order if packing.offsets[n] + self.lives[n].size == packing.size]
        changed = list(order)
        top = chance.choice(tops)
        at = changed.index(top)
        rivals = [i for i in range(at) if self.apart[top, changed[i]] > _FREE]
        if not rivals:
            return changed
        changed.insert(chance.choice(rivals), changed.pop(at))
        return changed

    def _place(self, order: Sequence[int]) -> Packing:
        offsets = np.zeros(len(order), dtype=np.int64)
        placed = np.zeros(len(order), dtype=bool)
        top = 0
        for number in order:
            size = self.lives[number].size
            if size:
                offsets[number] = self._lowest(number, offsets, placed)
                placed[number] = True
                top = max(top, int(offsets[number]) + size)
        return Packing(tuple(offsets.tolist()), top)

    def _lowest(self, number: int, offsets: NDArray[np.int64], placed: NDArray[np.bool_]) -> int:
        """The lowest offset that keeps its distance from all that is placed."""
        others = np.flatnonzero(placed & (self.apart[number] > _FREE))
        if not len(others):
            return 0
        begin = offsets[others] - self.apart[others, number]  # not above here,
        end = offsets[others] + self.apart[number, others]  # or not below here
        real = end > np.maximum(begin, 0)
        order = np.argsort(begin[real], kind="stable")
        begin, end = begin[real][order], end[real][order]
        end = -(-end // self.alignment) * self.alignment
        reached = np.maximum.accumulate(np.concatenate([[0], end]))
        fits = np.flatnonzero(reached[:-1] <= begin)
        return int(reached[fits[0]] if len(fits) else reached[-1])
