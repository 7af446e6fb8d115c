"""The clock of a cascade: which unit computes a row when.

Nothing runs before it is asked for. The units at the end of the cascade, whose results somebody else
reads, advance evenly; a row of theirs asks for the rows that it reads, those for theirs, and so on: of
two orders, the one that makes rows later holds fewer of them. The last rows of a tensor may never be
asked for, below a stride of two for instance, and are not computed. A layer of which no row at all is
asked for, under a convolution that reads padding alone, runs when all that read its result are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.over import starts
from byoc.memory.stripes.units import Units


@dataclass(frozen=True)
class Clock:
    """The units `[first, end)` of a cascade, moment by moment: which one runs, one row of it."""

    first: int
    end: int
    moments: NDArray[np.int32]


def clock_of(units: Units, first: int, end: int) -> Clock:
    """Let the units `[first, end)` take turns."""
    demands = _Demands(units, first, end)
    each = [(number, units.units[number]) for number in range(first, end)]
    sinks = [(number, unit.steps) for number, unit in each if not first <= unit.last_reader < end]
    for _, number, row in sorted(((r + 1) / steps, n, r) for n, steps in sinks for r in range(steps)):
        demands.ask(number, row + 1)
    return Clock(first, end, np.array(demands.moments, dtype=np.int32))


class _Demands:
    """What has run so far."""

    def __init__(self, units: Units, first: int, end: int) -> None:
        self.units, self.first = units, first
        self.moments: list[int] = []
        self.done = [0] * (end - first)
        self.needs = [self._needs(unit) for unit in range(first, end)]
        self.readers = [0] * (end - first)
        for maker in (maker for needs in self.needs for maker in {maker for maker, _ in needs}):
            self.readers[maker] += 1

    def ask(self, number: int, rows: int) -> None:
        """Run until a unit has computed so many rows."""
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
                    asked += self._unread(unit)

    def _steps(self, unit: int) -> int:
        return self.units.units[unit + self.first].steps

    def _unread(self, unit: int) -> list[tuple[int, int]]:
        """What to ask for once a unit is done: all rows of those that nobody has read, or will."""
        makers = list(dict.fromkeys(maker for maker, _ in self.needs[unit]))
        for maker in makers:
            self.readers[maker] -= 1
        return [
            (maker, self._steps(maker))
            for maker in makers
            if not self.readers[maker] and not self.done[maker]
        ]

    def _needs(self, number: int) -> list[tuple[int, Sequence[int]]]:
        """For each operand made in this cascade its maker and, row by row, how far it has to be."""
        needs: list[tuple[int, Sequence[int]]] = []
        row = np.arange(self.units.units[number].steps, dtype=np.int64)
        for read in self.units.units[number].reads:
            if read.maker >= self.first:
                height = self.units.storages[read.storage].rows
                ends = np.clip(starts(read.rows, row) + read.rows.extent, 0, height)
                maker = self.units.units[read.maker]
                if maker.mode != "rows":
                    ends = np.where(ends > 0, maker.steps, 0)
                needs.append((read.maker - self.first, ends.tolist()))
        return needs
