"""Finer units before an output: the last ones in floating point, those before them in 16 bits.

Weights have 8 bits in either type of integers. Where an output is a sum of large numbers that cancel,
its last unit needs finer weights as well, and those before it finer activations alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from byoc.model import GraphIndex
from byoc.quantization._coarse_outputs import find_units_before, list_read_tensors

_GAIN = 1.0  # dB for which more units are finer
_DEPTH = 6  # how many units in a row, at most, are finer


@dataclass(frozen=True)
class FinerUnits:
    """Units that are left in floating point, and units in 16 bits; none of either at first."""

    in_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    def describe(self, output: str) -> str:
        """Describe how the units before an output are computed, for a note."""
        parts = ((self.in_float, "left in floating point"), (self.wide, "computed in 16 bits"))
        counted = [f"{len(units)} {how}" for units, how in parts if units]
        return f"units before '{output}': {', '.join(counted)}"


@dataclass(frozen=True)
class RefinedOutput:
    """The accuracy of an output (dB) with some units finer, and the predicted seconds of the model."""

    decibels: float
    seconds: float


@dataclass(eq=False)
class OutputRefinement:
    """Searches for the units before an output that it pays to compute in a finer type.

    `units` are the quantized units by name, each with its nodes; `measure` tries some. `price` is the
    share of the seconds that a decibel may take. With `has_wide` units may be in 16 bits.
    """

    index: GraphIndex
    units: Mapping[str, Sequence[str]]
    output: str
    measure: Callable[[FinerUnits], RefinedOutput]
    price: float
    has_wide: bool
    _measured: dict[tuple[int, int], RefinedOutput] = field(default_factory=dict)

    def find(self) -> FinerUnits:
        """Return the units that are to be finer: more of them while an output gains enough.

        Of two steps the one is taken whose gain less the price of its time is larger.
        """
        rows = self._list_rows()
        now = (0, 0)
        while True:
            before = self._measure_rows(rows, now)
            paying: list[tuple[float, tuple[int, int]]] = []
            for step in self._list_steps(now, len(rows)):
                after = self._measure_rows(rows, step)
                gain = after.decibels - before.decibels
                left = gain - (after.seconds / before.seconds - 1) / self.price
                if gain >= _GAIN and left >= 0:
                    paying.append((left, step))
            if not paying:
                return _take_rows(rows, now)
            now = max(paying)[1]

    def _list_rows(self) -> list[tuple[str, ...]]:
        """Return the units in the order in which they are taken: the last first, then those before."""
        rows: list[tuple[str, ...]] = []
        read: tuple[str, ...] = (self.output,)
        while len(rows) < _DEPTH:
            known = {*chain.from_iterable(rows)}
            before = find_units_before(self.index, self.units, read)
            row = tuple(unit for unit in before if unit not in known)
            if not row:
                break
            rows.append(row)
            read = list_read_tensors(self.index, self.units, row)
        return rows

    def _list_steps(self, now: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return the steps to try next, from so many rows in floating point, so many finer."""
        floats, all_finer = now
        steps = [(floats + 1, all_finer + 1)]
        if self.has_wide:
            steps += [(floats, all_finer + 1), (floats + 1, all_finer)]
        return [step for step in steps if step[0] <= step[1] <= most]

    def _measure_rows(self, rows: Sequence[tuple[str, ...]], taken: tuple[int, int]) -> RefinedOutput:
        if taken not in self._measured:
            self._measured[taken] = self.measure(_take_rows(rows, taken))
        return self._measured[taken]


def _take_rows(rows: Sequence[tuple[str, ...]], taken: tuple[int, int]) -> FinerUnits:
    """Return the units of the first rows in floating point, and of those behind them in 16 bits."""
    floats, all_finer = taken
    return FinerUnits(
        tuple(chain.from_iterable(rows[:floats])), tuple(chain.from_iterable(rows[floats:all_finer]))
    )
