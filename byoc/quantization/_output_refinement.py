"""Finer units before outputs: the last ones in floating point, those before them in 16 bits.

Weights have 8 bits in either type of integers. Where an output is a sum of large numbers that cancel,
its last unit needs finer weights as well, and those before it finer activations alone. What an output
gains hardly depends on units that lead to others alone, so one trial measures a step for all outputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from byoc.model import GraphIndex
from byoc.quantization._network_ends import find_units_before, list_read_tensors
from byoc.quantization._output_accuracies import LEAST_GAIN, OutputAccuracies

_MAX_ROWS = 6  # that are finer before an output
_MAX_NAMES = 3

Rows = Sequence[tuple[str, ...]]
"""The units before an output that may be finer, in rows: the last ones first, then those before them."""


class Depth(NamedTuple):
    """The numbers of rows before an output that are finer: first those in floats, then in 16 bits.

    `finer` counts both, `in_float` the former alone.
    """

    in_float: int
    finer: int


@dataclass(frozen=True)
class FinerUnits:
    """Units that are finer than 8 bits: those left in floating point, and those in 16 bits."""

    in_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    def keep_quantized(self, units: Collection[str]) -> "FinerUnits":
        """Return the same with those in floating point that are not in 16 bits after all.

        `units` are those that were quantized; a target may have refused others.
        """
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

    `rows` are these units by output; of the outputs in `float_tails` the first row is in floating point
    in any case. `measure` returns the accuracies with some units finer, `predict` the seconds of the
    model with them. `price` is the share of the seconds that a decibel may take; all together may take
    as much, but for outputs of which next to nothing is left. With `has_wide` units may be in 16 bits.
    """

    rows: Mapping[str, Rows]
    float_tails: Collection[str]
    measure: Callable[[FinerUnits], OutputAccuracies]
    predict: Callable[[FinerUnits], float]
    price: float
    has_wide: bool
    _seconds: dict[FinerUnits, float] = field(default_factory=dict)

    def find(self) -> dict[str, FinerUnits]:
        """Return the units that are to be finer by output: more of them while outputs gain enough.

        Of several changes the one is taken whose gain less the price of its time is largest.
        """
        depths = {name: Depth(1, 1) if name in self.float_tails else Depth(0, 0) for name in self.rows}
        now = self.measure(self._take_units(depths))
        first = self._predict(depths)
        while True:
            before = self._predict(depths)
            best = 0.0, depths, now
            for name, deeper, tried in self._try_deeper(depths, now):
                gain = tried.rate(name) - now.rate(name)
                if gain < LEAST_GAIN:
                    continue
                after = self._predict({**depths, name: deeper})
                worth = gain - (after - before) / first / self.price
                is_allowed = after <= (1 + self.price) * first or now.is_poor(name)
                if is_allowed and worth > best[0]:
                    best = worth, {**depths, name: deeper}, tried
            if not best[0]:
                break
            _, depths, now = best
        found = {name: _take_rows(self.rows[name], depth) for name, depth in depths.items()}
        return {name: units for name, units in found.items() if depths[name].finer}

    def _try_deeper(
        self, depths: Mapping[str, Depth], now: OutputAccuracies
    ) -> Iterator[tuple[str, Depth, OutputAccuracies]]:
        """Yield each output with a row more that is finer, and the accuracies with that change alone.

        A trial changes all outputs at once. A change is a further row, and one more in floating point;
        a further row in 16 bits; or a row in floating point instead of 16 bits.
        """
        changes = (Depth(1, 1), Depth(0, 1), Depth(1, 0)) if self.has_wide else (Depth(1, 1),)
        for change in changes:
            deeper = {}
            for name, depth in depths.items():
                after = Depth(depth.in_float + change.in_float, depth.finer + change.finer)
                if after.in_float <= after.finer <= len(self.rows[name]):
                    deeper[name] = after
            if deeper:
                tried = self.measure(self._take_units({**depths, **deeper}))
                for name, depth in deeper.items():
                    yield name, depth, now.replace_output(name, tried)

    def _predict(self, depths: Mapping[str, Depth]) -> float:
        units = self._take_units(depths)
        if units not in self._seconds:
            self._seconds[units] = self.predict(units)
        return self._seconds[units]

    def _take_units(self, depths: Mapping[str, Depth]) -> FinerUnits:
        """Return the units of several outputs together; in floating point where one wants them so."""
        return merge_units([_take_rows(self.rows[name], depth) for name, depth in depths.items()])


def merge_units(parts: Sequence[FinerUnits]) -> FinerUnits:
    """Return the units of all parts; those that any leaves in floating point are left so."""
    in_float = dict.fromkeys(chain.from_iterable(each.in_float for each in parts))
    wide = dict.fromkeys(chain.from_iterable(each.wide for each in parts))
    return FinerUnits(tuple(in_float), tuple(unit for unit in wide if unit not in in_float))


def list_output_rows(
    index: GraphIndex,
    units: Mapping[str, Sequence[str]],
    tails: Mapping[str, tuple[str, ...]],
    float_tails: Collection[str],
    coarse: Collection[str],
) -> dict[str, Rows]:
    """Return the rows of units that may be finer before each output.

    Unless eight bits are too coarse for an output (`coarse`), its tail is its only row. For a coarse one
    a row has the units that make what the row before it reads; its first row is the whole tail if it is
    in `float_tails`.
    """
    found: dict[str, Rows] = {}
    for name, tail in tails.items():
        if name not in coarse:
            found[name] = [tail] if tail else []
            continue
        first = [tail] if name in float_tails else []
        others = {unit: nodes for unit, nodes in units.items() if not first or unit not in tail}
        found[name] = [*first, *list_rows(index, others, name)]
    return found


def list_rows(index: GraphIndex, units: Mapping[str, Sequence[str]], output: str) -> Rows:
    """Return the units before an output in at most six rows."""
    rows: list[tuple[str, ...]] = []
    read: tuple[str, ...] = (output,)
    while len(rows) < _MAX_ROWS:
        known = {*chain.from_iterable(rows)}
        before = find_units_before(index, units, read)
        row = tuple(unit for unit in before if unit not in known)
        if not row:
            break
        rows.append(row)
        read = list_read_tensors(index, units, row)
    return rows


def _take_rows(rows: Rows, depth: Depth) -> FinerUnits:
    """Return the units of the rows that are finer."""
    return FinerUnits(
        tuple(chain.from_iterable(rows[: depth.in_float])),
        tuple(chain.from_iterable(rows[depth.in_float : depth.finer])),
    )
