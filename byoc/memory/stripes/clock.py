"""The clock of a cascade: which unit computes a row when.

Nothing runs before it is asked for. The units at the end of the cascade, whose results somebody else
reads, advance evenly; a row of theirs asks for the rows that it reads, those for theirs, and so on: of two
orders, the one that makes rows later holds fewer of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.problem import Rows
from byoc.memory.stripes.units import Units


@dataclass(frozen=True)
class Clock:
    """The units of a cascade, moment by moment: which one runs, one row of it."""

    first: int
    end: int
    moments: NDArray[np.int32]


def clock_of(units: Units, first: int, end: int) -> Clock:
    """Let the units `[first, end)` take turns."""
    demands = _Demands(units, first, end)
    sinks = [unit for unit in range(first, end) if demands.is_sink(unit)]
    steps = {unit: units.units[unit].steps for unit in sinks}
    turns = sorted(((row + 1) / steps[unit], unit, row) for unit in sinks for row in range(steps[unit]))
    for _, unit, row in turns:
        demands.ask(unit, row + 1)
    return Clock(first, end, np.array(demands.moments, dtype=np.int32))


class _Demands:
    """What has run so far."""

    def __init__(self, units: Units, first: int, end: int) -> None:
        self.units = units
        self.first, self.end = first, end
        self.moments: list[int] = []
        self.done = [0] * (end - first)
        self.needs = [self._needs(unit) for unit in range(first, end)]

    def is_sink(self, unit: int) -> bool:
        """Whether somebody outside the cascade reads its result, or nobody at all."""
        made = [self.units.storages[number] for number in self.units.units[unit].makes]
        return any(
            each.kept or not each.readers or any(reader >= self.end for reader, _ in each.readers)
            for each in made
        )

    def ask(self, unit: int, rows: int) -> None:
        """Run until `unit` has computed `rows` rows."""
        asked = [(unit - self.first, rows)]
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

    def _needs(self, unit: int) -> list[tuple[int, Sequence[int]]]:
        """For each operand made in this cascade its maker and, row by row, how far it has to be."""
        needs = []
        for number, rows in self.units.units[unit].reads:
            storage = self.units.storages[number]
            if storage.maker >= self.first:
                ends = _ends(rows, storage.rows, self.units.units[unit].steps)
                maker = self.units.units[storage.maker]
                if maker.mode != "rows":
                    ends = [maker.steps if end else 0 for end in ends]
                needs.append((storage.maker - self.first, ends))
        return needs


def _ends(rows: Rows, height: int, steps: int) -> list[int]:
    row = np.arange(steps, dtype=np.int64)
    reached = row * rows.stride // rows.repeat - rows.before + rows.extent
    ends: list[int] = np.clip(reached, 0, height).tolist()
    return ends
