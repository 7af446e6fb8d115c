"""Finer units before outputs: the last ones in floating point, those before them in 16 bits.

Weights have 8 bits in either type of integers. Where an output is a sum of large numbers that cancel,
its last unit needs finer weights as well, and those before it finer activations alone. What an output
gains hardly depends on units that lead to others alone, so one trial measures a step for all outputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from byoc.model import GraphIndex
from byoc.quantization._coarse_outputs import find_units_before, list_read_tensors
from byoc.quantization._output_accuracies import OutputAccuracies

_GAIN = 0.25  # dB for which more units are finer
_DEPTH = 6  # how many units in a row, at most, are finer before an output
_MAX_NAMES = 3

Rows = Sequence[tuple[str, ...]]
Step = tuple[int, int]  # so many rows in floating point, so many finer


@dataclass(frozen=True)
class FinerUnits:
    """Units that are left in floating point, and units in 16 bits; none of either at first."""

    in_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    def keep_quantized(self, units: Collection[str]) -> "FinerUnits":
        """Return the same with units in floating point that are not among quantized ones."""
        refused = tuple(unit for unit in self.wide if unit not in units)
        wide = tuple(unit for unit in self.wide if unit in units)
        return FinerUnits((*self.in_float, *refused), wide)

    def describe(self, outputs: Sequence[str]) -> str:
        """Describe how the units before outputs are computed, for a note."""
        more = f" and {len(outputs) - _MAX_NAMES} more outputs" if len(outputs) > _MAX_NAMES else ""
        names = ", ".join(f"'{name}'" for name in outputs[:_MAX_NAMES])
        parts = ((self.in_float, "left in floating point"), (self.wide, "computed in 16 bits"))
        counted = [f"{len(units)} {how}" for units, how in parts if units]
        return f"units before {names}{more}: {', '.join(counted)}"


@dataclass(eq=False)
class OutputRefinement:
    """Searches for the units before outputs that it pays to compute in a finer type.

    `rows` are these units by output, the last ones first; of the outputs in `kept` the first row is in
    floating point in any case. `measure` tries some units, and `predict` returns the seconds of the
    model with them. `price` is the share of the seconds that a decibel may take, and that all steps
    together may take, but for outputs of which next to nothing is left. With `has_wide` units may be in
    16 bits.
    """

    rows: Mapping[str, Rows]
    kept: Collection[str]
    measure: Callable[[FinerUnits], OutputAccuracies]
    predict: Callable[[FinerUnits], float]
    price: float
    has_wide: bool
    _seconds: dict[FinerUnits, float] = field(default_factory=dict)

    def find(self) -> dict[str, FinerUnits]:
        """Return the units that are to be finer by output: more of them while outputs gain enough.

        Of several steps the one is taken whose gain less the price of its time is largest.
        """
        taken = {name: (1, 1) if name in self.kept else (0, 0) for name in self.rows}
        now = self.measure(self.take_units(taken))
        first = self._predict(taken)
        while True:
            before = self._predict(taken)
            best = 0.0, taken, now
            for name, step, found in self._try_steps(taken, now):
                gain = found.rate(name) - now.rate(name)
                if gain < _GAIN:
                    continue
                after = self._predict({**taken, name: step})
                left = gain - (after - before) / first / self.price
                may = after <= (1 + self.price) * first or now.is_poor(name)
                if may and left > best[0]:
                    best = left, {**taken, name: step}, found
            if not best[0]:
                break
            _, taken, now = best
        return {name: _take_rows(self.rows[name], step) for name, step in taken.items() if any(step)}

    def _try_steps(
        self, taken: Mapping[str, Step], now: OutputAccuracies
    ) -> Iterator[tuple[str, Step, OutputAccuracies]]:
        """Yield each output with a step from those taken, and the accuracies with it alone."""
        changes = ((1, 1), (0, 1), (1, 0)) if self.has_wide else ((1, 1),)
        for floats, finer in changes:
            steps = {}
            for name, step in taken.items():
                after = step[0] + floats, step[1] + finer
                if after[0] <= after[1] <= len(self.rows[name]):
                    steps[name] = after
            if steps:
                tried = self.measure(self.take_units({**taken, **steps}))
                yield from ((name, step, now.take_output(name, tried)) for name, step in steps.items())

    def _predict(self, taken: Mapping[str, Step]) -> float:
        units = self.take_units(taken)
        if units not in self._seconds:
            self._seconds[units] = self.predict(units)
        return self._seconds[units]

    def take_units(self, taken: Mapping[str, Step]) -> FinerUnits:
        """Return the units of several outputs together; in floating point where one wants them so."""
        return merge_units([_take_rows(self.rows[name], step) for name, step in taken.items()])


def merge_units(parts: Sequence[FinerUnits]) -> FinerUnits:
    """Return the units of all parts; those that any leaves in floating point are left so."""
    in_float = dict.fromkeys(chain.from_iterable(each.in_float for each in parts))
    wide = dict.fromkeys(chain.from_iterable(each.wide for each in parts))
    return FinerUnits(tuple(in_float), tuple(unit for unit in wide if unit not in in_float))


def list_output_rows(
    index: GraphIndex,
    units: Mapping[str, Sequence[str]],
    tails: Mapping[str, tuple[str, ...]],
    kept: Collection[str],
    coarse: Collection[str],
) -> dict[str, Rows]:
    """Return the units before each output that may be finer, in rows: the last ones first.

    The tail of an output is one row, and all that there is unless eight bits are too coarse for the
    output: then there are rows of single steps back, behind the tail where that is to be `kept` whole.
    """
    found: dict[str, Rows] = {}
    for name, tail in tails.items():
        if name not in coarse:
            found[name] = [tail] if tail else []
            continue
        first = [tail] if name in kept else []
        others = {unit: nodes for unit, nodes in units.items() if not first or unit not in tail}
        found[name] = [*first, *list_rows(index, others, name)]
    return found


def list_rows(index: GraphIndex, units: Mapping[str, Sequence[str]], output: str) -> Rows:
    """Return the units before an output, at most six rows: the last ones first, then those before."""
    rows: list[tuple[str, ...]] = []
    read: tuple[str, ...] = (output,)
    while len(rows) < _DEPTH:
        known = {*chain.from_iterable(rows)}
        before = find_units_before(index, units, read)
        row = tuple(unit for unit in before if unit not in known)
        if not row:
            break
        rows.append(row)
        read = list_read_tensors(index, units, row)
    return rows


def _take_rows(rows: Rows, taken: Step) -> FinerUnits:
    """Return the units of the first rows in floating point, and of those behind them in 16 bits."""
    floats, all_finer = taken
    return FinerUnits(
        tuple(chain.from_iterable(rows[:floats])), tuple(chain.from_iterable(rows[floats:all_finer]))
    )
