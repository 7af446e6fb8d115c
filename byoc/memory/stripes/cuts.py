"""Where one cascade ends and the next begins.

Between two cascades all that is still to be read lies there whole, so a cut is good where that is little,
and inside a cascade all of its windows lie there at once, so short cascades are good. The way from the
first unit to the last over cuts whose dearest cascade is cheapest is found by bisection on the bytes.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.clock import Clock, clock_of
from byoc.memory.stripes.lives import Counts, span
from byoc.memory.stripes.units import Units

_NEAR = 0.01
"""Budgets closer to one another than this part are one."""


class Cuts:
    """The units of a network in their order, and what cascades of them cost."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.clocks: dict[tuple[int, int], Clock] = {}
        self.costs: dict[tuple[int, int], int] = {}

    @cached_property
    def cut(self) -> NDArray[np.int64]:
        """For each position the bytes that live between the units before it and those from it on."""
        count = len(self.units.units)
        change = np.zeros(count + 2, dtype=np.int64)
        for number, storage in enumerate(self.units.storages):
            begin, end = self.life[number]
            change[begin] += storage.rows * storage.row_bytes
            change[end] -= storage.rows * storage.row_bytes
        return np.cumsum(change)[: count + 1]

    @cached_property
    def life(self) -> list[tuple[int, int]]:
        """For each storage the cuts `[begin, end)` that it lives across."""
        count = len(self.units.units)
        return [
            (
                storage.maker + 1,
                count + 1 if storage.kept else 1 + max((r for r, _ in storage.readers), default=storage.maker),
            )
            for storage in self.units.storages
        ]

    def clock(self, first: int, end: int) -> Clock:
        """The clock of a cascade."""
        if (first, end) not in self.clocks:
            self.clocks[first, end] = clock_of(self.units, first, end)
        return self.clocks[first, end]

    def cost(self, first: int, end: int) -> int:
        """The most bytes in use at any moment of a cascade."""
        if (first, end) not in self.costs:
            self.costs[first, end] = self._cost(first, end)
        return self.costs[first, end]

    def _cost(self, first: int, end: int) -> int:
        clock = self.clock(first, end)
        counts = Counts(clock)
        scratch = np.array([unit.scratch for unit in self.units.units[first:end]], dtype=np.int64)
        total = scratch[clock.moments - first]
        for number, storage in enumerate(self.units.storages):
            begin, stop = self.life[number]
            if begin > end or stop <= first:
                continue
            if storage.maker < first and not any(first <= reader < end for reader, _ in storage.readers):
                total += storage.rows * storage.row_bytes
                continue
            rows = span(storage, self.units, clock, counts)
            live = np.maximum(rows.end - rows.first, 0)
            if begin > first and stop <= end:
                alive = np.flatnonzero(live)
                if len(alive):
                    total[alive[0] : alive[-1] + 1] += int(live.max()) * storage.row_bytes
            else:
                total += live * storage.row_bytes
        return int(total.max(initial=0))

    def best(self) -> list[int]:
        """The cuts, first and last position included, of the best way found."""
        count = len(self.units.units)
        low = int(max(self.cut[0], self.cut[count]))
        way = list(range(count + 1))
        high = self.dearest(way)
        while high > low * (1 + _NEAR):
            budget = int((low * high) ** 0.5)
            found = self.within(budget)
            if found:
                way, high = found, self.dearest(found)
            else:
                low = budget
        return way

    def dearest(self, way: Sequence[int]) -> int:
        """The cost of the dearest cascade on a way."""
        return max(self.cost(a, b) for a, b in zip(way, way[1:], strict=False))

    def within(self, budget: int) -> list[int]:
        """A way of which no cascade costs more than the budget, empty if none is found."""
        count = len(self.units.units)
        good = [int(at) for at in np.flatnonzero(self.cut <= budget)]
        before = {0: 0}
        pending = [0]
        while pending:
            at = max(pending)
            pending.remove(at)
            for end in good:
                if end <= at or end in before:
                    continue
                if self.cost(at, end) > budget:
                    continue
                before[end] = at
                pending.append(end)
        if count not in before:
            return []
        way = [count]
        while way[-1]:
            way.append(before[way[-1]])
        return way[::-1]
