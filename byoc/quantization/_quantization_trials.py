"""Trials of a model's variants on samples, of which the best is taken."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from byoc.errors import InputError
from byoc.model import Model
from byoc.quantization._accuracy_measures import SampleValues
from byoc.quantization._class_logits import run_with_logits
from byoc.quantization._coarse_tensors import (
    CoarseConcat,
    count_usual_steps,
    describe_steps,
    find_coarse_concats,
)
from byoc.quantization._network_ends import find_head_units, find_tail_before
from byoc.quantization._output_accuracies import LEAST_GAIN, OutputAccuracies, measure_outputs
from byoc.quantization._output_refinement import (
    FinerUnits,
    OutputRefinement,
    list_output_rows,
    merge_units,
)
from byoc.quantization._patch_moments import MAX_INPUTS
from byoc.quantization._prepare_model import SIXTEEN_BITS, upgrade_opset
from byoc.quantization._quantization_variants import QuantizationVariant, VariantMaker
from byoc.quantization._quantize_model import QuantizedModel, WideUnits
from byoc.quantization._ranges import Ranges
from byoc.quantization._weight_rounding import count_large_nodes

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

    `maker` quantizes them; `expected` are the float model's outputs of the samples, and the logits of
    those that a Softmax makes.
    """

    maker: VariantMaker
    expected: Sequence[SampleValues]
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
        """Measure a variant: each half of the samples with what the other half gives.

        So no variant is better for the samples that its factors, ranges and biases are from. A single
        sample is measured with its own.
        """
        count = 2 if len(self.maker.samples) > 1 else 1
        outputs: list[Any] = [None] * len(self.maker.samples)
        for half in range(count):
            made, *_ = self.maker.quantize(variant, None if count == 1 else 1 - half)
            part = slice(half, None, count)
            outputs[part] = run_with_logits(made.model, self.maker.samples[part])
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
        if not self.maker.request.any_wide or not self._has_wide:
            return found
        return replace(found, wide_ranges=self.maker.measure_wide_ranges(variant))

    def leave_head_in_float(self) -> None:
        """Try the best with units behind the inputs in floating point; keep that if it is worth it."""
        best = self.best
        units = find_head_units(self.maker.floats.index, best.quantized.units)
        if not units:
            return
        coarse = self._find_coarse_concats(units)
        note = f"{len(units)} units behind the inputs are left in floating point"
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

        search = OutputRefinement(rows, float_tails, measure, predict, TIME_PRICE, self._has_wide)
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
    def _has_wide(self) -> bool:
        """Whether some target takes units in 16 bits, and the model may be of an operator set for it."""
        try:
            upgrade_opset(self.maker.floats, SIXTEEN_BITS)
        except InputError:
            return False
        return bool(self.maker.request.wide_targets)

    def is_worth_its_time(self, one: QuantizationTrial, plain: QuantizationTrial) -> bool:
        """Return whether a trial has less noise than a plain one, for few enough predicted seconds."""
        if not one.is_better(plain):
            return False
        predict = self.maker.request.predict
        if predict is None:
            return True
        limit = (1 + TIME_PRICE * min(one.score - plain.score, 1.0)) * predict(plain.quantized.model)
        return predict(one.quantized.model) <= limit
