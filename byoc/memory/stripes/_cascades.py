"""Division of a network into cascades.

Between two cascades, everything still to be read is stored completely, so a cut is good where that is
little; inside a cascade all its windows are live at once, so short cascades are good. The path of cuts
from the first unit to the last that minimizes its most expensive cascade is found by bisection on bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes._row_clock import CascadeClock, RowCounts, build_clock, find_live_rows
from byoc.memory.stripes._striping_problem import RowUnits

_NEAR = 0.01
"""Budgets closer to one another than this part are one."""
_EFFORT = 250_000
"""Moments of cascades that are looked at for one budget; DenseNet-121 takes 0.5 million for all."""
_WORK, _CASCADE = 200_000_000, 4_000_000
"""Moments times storages that are looked at for all budgets, and for one cascade (DenseNet-121: 168 and
2.7 million); a storage takes as long as so many moments more:"""
_STORAGE = 100  # what visiting a storage takes beside its moments, in moments
_UNKNOWN = 1 << 60
_MORE = (1.0, 1.02, 1.05)
"""Budgets from the least on, whose ways may be packed better."""
_PATIENCE = 12
"""After so many longer cascades in a row that are too dear, none cheaper than the last, none fits."""


class CascadeCuts:
    """The units of a network in order, and the cost of cascades."""

    def __init__(self, units: RowUnits) -> None:
        """Start without any known cost."""
        self.units = units
        self.clocks: dict[tuple[int, int], CascadeClock] = {}
        self.costs: dict[tuple[int, int], int] = {}
        self.effort = self.allowed = 0
        self.left = _WORK
        self.is_cut_short = False

    @cached_property
    def bytes_across(self) -> NDArray[np.int64]:
        """For each position the bytes live between the units before it and those from it on."""
        count = len(self.units.units)
        change = np.zeros(count + 2, dtype=np.int64)
        np.add.at(change, self.first_cut, self.size)
        np.subtract.at(change, self.end_cut, self.size)
        return np.cumsum(change)[: count + 1]

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """For each storage its bytes."""
        return np.array([each.rows * each.row_bytes for each in self.units.storages], dtype=np.int64)

    @cached_property
    def first_cut(self) -> NDArray[np.int64]:
        """For each storage the first cut at which it is live."""
        return np.array([each.maker + 1 for each in self.units.storages], dtype=np.int64)

    @cached_property
    def end_cut(self) -> NDArray[np.int64]:
        """For each storage the first cut after `first_cut` at which it is no longer live."""
        after = len(self.units.units) + 1
        last = [after if each.kept else each.last + 1 for each in self.units.storages]
        return np.array(last, dtype=np.int64)

    @cached_property
    def steps(self) -> list[int]:
        """For each position the rows of all units before it."""
        return [0, *accumulate(unit.steps for unit in self.units.units)]

    @cached_property
    def touches(self) -> list[int]:
        """For each position the storages used by the units before it, counted once for each unit."""
        return [0, *accumulate(map(len, self.touched))]

    @cached_property
    def touched(self) -> list[list[int]]:
        """For each unit the storages that it reads or makes."""
        found: list[list[int]] = [[] for _ in self.units.units]
        for number, storage in enumerate(self.units.storages):
            for unit in storage.touched:
                found[unit].append(number)
        return found

    def get_clock(self, first: int, end: int) -> CascadeClock:
        """Return the clock of a cascade."""
        if (first, end) not in self.clocks:
            self.clocks[first, end] = build_clock(self.units, first, end)
        return self.clocks[first, end]

    def get_cost(self, first: int, end: int) -> int:
        """Return the peak of a cascade in bytes; a value too large to fit if the effort is used up."""
        if (first, end) not in self.costs:
            if end > first + 1 and self._is_too_much(first, end):
                return _UNKNOWN
            self.costs[first, end] = self._cost(first, end)
        return self.costs[first, end]

    def _is_too_much(self, first: int, end: int) -> bool:
        """Tell whether the effort is used up or the cascade is too long."""
        work = self._work(first, end)
        self.is_cut_short |= work > min(_CASCADE, self.left)
        return work > min(_CASCADE, self.left) or self.effort > self.allowed

    def _work(self, first: int, end: int) -> int:
        moments = self.steps[end] - self.steps[first]
        return (moments + _STORAGE) * (self.touches[end] - self.touches[first])

    def _cost(self, first: int, end: int) -> int:
        clock = self.get_clock(first, end)
        self.effort += len(clock.moments)
        self.left -= self._work(first, end)
        counts = RowCounts.count(clock)
        scratch = np.array([unit.scratch for unit in self.units.units[first:end]], dtype=np.int64)
        total = scratch[clock.moments - first]
        through = np.flatnonzero((self.first_cut <= first) & (self.end_cut > end))
        total += int(self.size[through].sum())
        for number in {number for unit in range(first, end) for number in self.touched[unit]}:
            storage = self.units.storages[number]
            if self.first_cut[number] <= first and self.end_cut[number] > end:
                continue
            rows = find_live_rows(storage, self.units, counts)
            live = rows.end - rows.first
            if self.first_cut[number] > first and self.end_cut[number] <= end:
                live = np.where(live > 0, live.max(initial=0), 0)
            total += live * storage.row_bytes
        return int(total.max(initial=0))

    def find_paths(self) -> list[list[int]]:
        """Return paths as lists of cuts, first and last position included, cheapest first.

        The cheapest path is not always the one that packs best, so more expensive ones found on the way
        are included.
        """
        count = len(self.units.units)
        low = int(max(self.bytes_across[0], self.bytes_across[count]))
        ways = [list(range(count + 1))]
        high = self.path_cost(ways[0])
        while high > low * (1 + _NEAR):
            budget = int((low * high) ** 0.5)
            found = self.find_path_within(budget)
            if found:
                ways.append(found)
                high = self.path_cost(found)
            else:
                low = budget + 1
        for more in _MORE:
            ways += self.find_both_paths(int(high * more))
        return sorted({tuple(way): way for way in ways if way}.values(), key=self.path_cost)

    @cached_property
    def valleys(self) -> list[int]:
        """Positions with fewer live bytes than their neighbours, and the first and last position."""
        cut, last = self.bytes_across, len(self.bytes_across) - 1
        return [
            at
            for at in range(last + 1)
            if at in (0, last) or (cut[at] <= cut[at - 1] and cut[at] <= cut[at + 1])
        ]

    def path_cost(self, way: Sequence[int]) -> int:
        """Return the cost of the most expensive cascade on a path."""
        return max((self.get_cost(a, b) for a, b in pairwise(way)), default=0)

    def find_path_within(self, budget: int) -> list[int]:
        """Return a path on which no cascade exceeds the budget, empty if none is found.

        Cascades of a few lengths, growing by a factor, are tried first, then all.
        """
        self.allowed = self.effort + _EFFORT
        return self._find_path(budget, few=True) or self._find_path(budget, few=False)

    def find_both_paths(self, budget: int) -> list[list[int]]:
        """Return the paths found with few and with all lengths of cascades, empty if none is found."""
        self.allowed = self.effort + _EFFORT
        return [self._find_path(budget, few=True), self._find_path(budget, few=False)]

    def _find_path(self, budget: int, few: bool) -> list[int]:
        count = len(self.units.units)
        good = [at for at in self.valleys if self.bytes_across[at] <= budget]
        before = {0: 0}
        pending = [0]
        while pending and count not in before:
            at = max(pending)
            pending.remove(at)
            rising, last = 0, 0
            ends = good[bisect_right(good, at) :]
            for end in _sample_ends(ends) if few else ends:
                if end in before:
                    continue
                cost = self.get_cost(at, end)
                if cost <= budget:
                    before[end] = at
                    pending.append(end)
                rising = rising + 1 if cost > budget and cost >= last else 0
                last = cost
                if rising == _PATIENCE:
                    break
        if count not in before:
            return []
        way = [count]
        while way[-1]:
            way.append(before[way[-1]])
        return way[::-1]


def _sample_ends(ends: Sequence[int]) -> list[int]:
    """Return the first, second, third, fourth, sixth, eighth, twelfth, ... and the last one."""
    numbers = {len(ends)}
    for power in range(len(ends).bit_length()):
        numbers |= {1 << power, 3 << power}
    return [ends[n - 1] for n in sorted(numbers) if 1 <= n <= len(ends)]
