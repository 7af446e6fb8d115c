"""Trials of a model's variants on samples, of which the best is taken."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf
from time import monotonic
from typing import NamedTuple

from byoc._dataclasses import dataclass, field, replace
from byoc.console import format_count
from byoc.errors import InputError
from byoc.model import GraphIndex, Model
from byoc.quantization._accuracy_measures import SampleValues, run_with_logits
from byoc.quantization._calibrators import Ranges
from byoc.quantization._equalization import (
    CoarseConcat,
    count_usual_steps,
    describe_steps,
    find_coarse_concats,
)
from byoc.quantization._prepare_model import (
    SIXTEEN_BITS,
    find_head_units,
    find_tail_before,
    find_units_before,
    list_read_tensors,
    upgrade_opset,
)
from byoc.quantization._quantization_variants import (
    LEAST_GAIN,
    QUICK,
    THOROUGH,
    OutputAccuracies,
    QuantizationVariant,
    VariantMaker,
    measure_outputs,
)
from byoc.quantization._quantize_model import QuantizedModel, WideUnits
from byoc.quantization._weight_rounding import MAX_INPUTS, count_large_nodes
from byoc.support import hide_steps, report_step

# Finer units before outputs: the last ones in floating point, those before them in 16 bits.
#
# Weights have 8 bits in either type of integers. Where an output is a sum of large numbers that
# cancel, its last unit needs finer weights as well, and those before it finer activations alone.
# What an output gains hardly depends on units that lead to others alone, so one trial measures a
# step for all outputs.

_MAX_ROWS = 6  # that are finer before an output
_MAX_NAMES = 3  # of outputs in a sentence

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
        a further row in 16 bits, for outputs that gain by that row in floating point; or a row in
        floating point instead of 16 bits.
        """
        changes = (Depth(1, 1), Depth(0, 1), Depth(1, 0)) if self.has_wide else (Depth(1, 1),)
        gaining = set(depths)
        for change in changes:
            deeper = {}
            for name, depth in depths.items():
                if not change.in_float and name not in gaining:
                    continue
                after = Depth(depth.in_float + change.in_float, depth.finer + change.finer)
                if after.in_float <= after.finer <= len(self.rows[name]):
                    deeper[name] = after
            if deeper:
                tried = self.measure(self._take_units({**depths, **deeper}))
                for name, depth in deeper.items():
                    found = now.replace_output(name, tried)
                    if found.rate(name) - now.rate(name) < LEAST_GAIN:
                        gaining.discard(name)
                    yield name, depth, found

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


# Trials of a model's variants on samples, of which the best is taken.

TIME_PRICE = 0.03
"""The share of the predicted seconds that a change may add for each decibel of its gain.

For more than a decibel it may add no more. Groups of channels and finer composites together may add as
much as that, and so may all units before outputs.
"""

_POOR = "too few, and what would help in the units before it takes too long or is not there"
_LARGE = "weights keep the nearest integers where nodes add up over {:,} products, as {} do"
_SHIFTED = "biases are corrected by the mean errors that rounding makes on the samples"


@dataclass(frozen=True, eq=False)
class QuantizedOnData:
    """A quantized model, and the floats and ranges that it is made from.

    `in_float` are the units that were left in floating point, and `steps` says what was done.
    `warnings` say what was not reached.
    `wide_units` are those in 16 bits; `wide_ranges` are the ranges for any others in 16 bits, where they
    are asked for.
    """

    quantized: QuantizedModel
    floats: Model
    ranges: Ranges
    in_float: tuple[str, ...]
    steps: tuple[str, ...]
    wide_units: WideUnits | None = None
    wide_ranges: Ranges | None = None
    warnings: tuple[str, ...] = ()


_MOST_TRIALS = {QUICK: 4, "normal": 13, THOROUGH: 17}
"""About how many variants are tried by each effort, of a network in which all of them can be."""


@dataclass(eq=False)
class TrialClock:
    """Counts the variants that are tried, and estimates the seconds of those that are left."""

    effort: str
    count: int = 0
    started: float = field(default_factory=monotonic)

    def begin_trial(self) -> None:
        """Report the next variant, with the seconds that are left if all are like those before it."""
        most = max(_MOST_TRIALS[self.effort], self.count + 1)
        each = (monotonic() - self.started) / max(self.count, 1)
        left = f", at most about {each * (most - self.count):.0f} s left" if self.count else ""
        self.count += 1
        report_step(f"variant {self.count} of {most} (--effort {self.effort}{left})")


@dataclass(frozen=True, eq=False)
class QuantizationTrial:
    """A variant, the last of the models that it was measured with, and the accuracies of its outputs."""

    variant: QuantizationVariant
    quantized: QuantizedModel
    accuracies: OutputAccuracies

    @property
    def score(self) -> float:
        """The score of the outputs (dB)."""
        return self.accuracies.score

    def is_better(self, other: "QuantizationTrial") -> bool:
        """Return whether the score is higher than that of another trial, by more than chance."""
        return self.score - other.score > LEAST_GAIN


@dataclass(eq=False)
class QuantizationTrials:
    """Variants of a float model that are tried, each measured on samples if there are some.

    `maker` quantizes them; `expected` are the float model's outputs of the samples that are measured,
    and the logits of those that a Softmax makes.
    """

    maker: VariantMaker
    expected: Sequence[SampleValues]
    clock: "TrialClock"
    trials: list[QuantizationTrial] = field(default_factory=list)

    @property
    def best(self) -> QuantizationTrial:
        """The first trial, or a later one that is better."""
        best = self.trials[0]
        for one in self.trials[1:]:
            if one.is_better(best):
                best = one
        return best

    def add(self, variant: QuantizationVariant) -> QuantizationTrial:
        """Measure a variant on a half of the samples with what the other half gives.

        So no variant is better for the samples that its factors, ranges and biases are from. If the
        effort is thorough, the halves change places as well. A single sample is measured with its own.
        """
        self.clock.begin_trial()
        outputs = list(self.expected)
        halves = self.maker.measured_halves
        for half in halves:
            with hide_steps():
                made, *_ = self.maker.quantize(variant, None if half is None else 1 - half)
                samples = self.maker.take_half(half)
                outputs[half or 0 :: len(halves)] = run_with_logits(made.model, samples)
        accuracies = measure_outputs(self.expected, outputs, self.coarse_outputs)
        self.trials.append(QuantizationTrial(variant, made, accuracies))
        return self.trials[-1]

    @cached_property
    def coarse_outputs(self) -> Mapping[str, float]:
        """The outputs whose usual values share few of 255 steps, and how many those are."""
        return count_usual_steps(self.maker.floats.index, self.expected) if self.expected else {}

    def finish(self) -> QuantizedOnData:
        """Return the best variant, with ranges and biases from all data."""
        variant = self.best.variant
        made, ranges, wide = self.maker.quantize(variant, None)
        steps = (*variant.steps, _SHIFTED) if ranges.shifts else variant.steps
        large = count_large_nodes(made.floats, made.model) if self.maker.samples else 0
        steps = (*steps, _LARGE.format(MAX_INPUTS, large)) if large else steps
        found = QuantizedOnData(made, made.floats, ranges, variant.in_float, steps, wide)
        found = replace(found, warnings=tuple(self.best.accuracies.list_warnings()))
        if not self.maker.request.any_wide or not self.has_wide:
            return found
        return replace(found, wide_ranges=self.maker.measure_wide_ranges(variant))

    def leave_head_in_float(self) -> None:
        """Try the best with units behind the inputs in floating point; keep that if it is worth it."""
        best = self.best
        units = find_head_units(self.maker.floats.index, best.quantized.units)
        if not units:
            return
        coarse = self._find_coarse_concats(units)
        be = "is" if len(units) == 1 else "are"
        note = f"{format_count(len(units), 'unit')} behind the inputs {be} left in floating point"
        step = "; ".join([note, *map(str, coarse)])
        other = self.add(best.variant.extend(units, steps=[step]))
        self.trials = [other if coarse or self.is_worth_its_time(other, best) else best]

    def _find_coarse_concats(self, units: Collection[str]) -> tuple[CoarseConcat, ...]:
        """Return the Concats among units that leave few steps to an operand, the coarsest one alone."""
        ranges = self.maker.measure_ranges(self.best.variant, None)
        found = find_coarse_concats(self.maker.floats.index, units, ranges)
        return tuple(sorted(found, key=lambda each: each.steps)[:1])

    def refine_outputs(self) -> None:
        """Compute units before outputs in finer types where that is worth its time.

        These are the tail of the network, and more of them before an output that eight bits are too
        coarse for.
        """
        best = self.best
        index, units = self.maker.floats.index, best.quantized.units
        tails = {name: find_tail_before(index, units, name) for name in index.outputs}
        concats = {name: self._find_coarse_concats(tail) for name, tail in tails.items()}
        float_tails = [name for name, coarse in concats.items() if coarse]
        rows = list_output_rows(index, units, tails, float_tails, self.coarse_outputs)
        tried = {FinerUnits(): best}

        def vary(finer: FinerUnits) -> QuantizationVariant:
            return best.variant.extend(finer.in_float, finer.wide)

        def measure(finer: FinerUnits) -> OutputAccuracies:
            if finer not in tried:
                tried[finer] = self.add(vary(finer))
            return tried[finer].accuracies

        def predict(finer: FinerUnits) -> float:
            seconds = self.maker.request.predict
            return seconds(self.maker.quantize_plainly(vary(finer))) if seconds else 1.0

        search = OutputRefinement(rows, float_tails, measure, predict, TIME_PRICE, self.has_wide)
        found = search.find()
        finer = merge_units([*found.values()])
        before, after = measure(FinerUnits()), measure(finer)
        if not float_tails and all(after.rate(name) <= before.rate(name) + LEAST_GAIN for name in found):
            found, finer = {}, FinerUnits()
        taken = tried[finer]
        computed = finer.keep_quantized(taken.quantized.units)  # a target may refuse 16 bits
        concat_notes = [str(coarse) for name in float_tails for coarse in concats[name]]
        notes = self._describe_refinement(found, computed, taken.accuracies, concat_notes)
        self.trials = [replace(taken, variant=vary(finer).extend(steps=notes))]

    def _describe_refinement(
        self,
        outputs: Collection[str],
        computed: FinerUnits,
        after: OutputAccuracies,
        concat_notes: Sequence[str],
    ) -> list[str]:
        """Describe how units before `outputs` are computed and why, and the outputs that stay poor."""
        few_steps = {name: describe_steps(name, steps) for name, steps in self.coarse_outputs.items()}
        why = [*concat_notes, *(text for name, text in few_steps.items() if name in outputs)]
        notes = ["; ".join([computed.describe([*outputs]), *why])] if outputs else []
        return notes + [f"{text}, {_POOR}" for name, text in few_steps.items() if after.is_poor(name)]

    @cached_property
    def has_wide(self) -> bool:
        """Whether some target takes units in 16 bits, and the model may be of an operator set for it."""
        try:
            upgrade_opset(self.maker.floats, SIXTEEN_BITS)
        except InputError:
            return False
        return bool(self.maker.request.wide_targets)

    def is_worth_its_time(
        self,
        one: QuantizationTrial,
        plain: QuantizationTrial,
        price: float = TIME_PRICE,
        most: float = 1.0,
    ) -> bool:
        """Return whether a trial has less noise than a plain one, for few enough predicted seconds.

        `price` is the share of the seconds that a decibel may add, to `most` decibels.
        """
        if not one.is_better(plain):
            return False
        return self.predict_longer(one, plain) <= price * min(one.score - plain.score, most)

    def predict_longer(self, one: QuantizationTrial, plain: QuantizationTrial) -> float:
        """Return the share of the seconds of a plain trial that another takes more, as predicted."""
        predict = self.maker.request.predict
        if predict is None:
            return 0.0
        after, before = predict(one.quantized.model), predict(plain.quantized.model)
        if after == before:  # perhaps 0: a cost model may count nothing, or what stays the same alone
            return 0.0
        return after / before - 1 if before else inf
