"""Quantization with samples at hand: what may help is kept where less noise is measured on them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from byoc.errors import InputError
from byoc.model import Model
from byoc.quantization._channel_groups import find_channel_groups
from byoc.quantization._coarse_tensors import (
    CoarseConcat,
    count_usual_steps,
    describe_steps,
    find_coarse_concats,
)
from byoc.quantization._finer_composites import choose_finer, find_finer_composites
from byoc.quantization._group_writer import GroupedModel
from byoc.quantization._network_ends import find_head_units, find_tail_before
from byoc.quantization._output_accuracies import OutputAccuracies, measure_outputs
from byoc.quantization._output_refinement import (
    FinerUnits,
    OutputRefinement,
    list_output_rows,
    merge_units,
)
from byoc.quantization._patch_moments import MAX_INPUTS
from byoc.quantization._prepare_model import SIXTEEN_BITS, upgrade_opset
from byoc.quantization._quantization_variants import (
    METHODS,
    DataRequest,
    QuantizationVariant,
    VariantMaker,
)
from byoc.quantization._quantize_model import (
    QuantizedModel,
    WideUnits,
    prepare_floats,
    quantize,
)
from byoc.quantization._ranges import Ranges
from byoc.quantization._sensitivity import measure_accuracy, run_samples
from byoc.quantization._weight_rounding import count_large_nodes
from byoc.samples import find_samples
from byoc.support import report_step

_SAMPLES = 16  # that channels are measured on, and variants of the model compared
# What it may take longer to compute the ends of a network in finer types, as a share of the predicted
# seconds: so much for each decibel that is gained, and at most for one.
_END_SECONDS = 0.03
_GAIN = 0.25  # dB for which anything is changed: less is chance on so few samples
_EQUALIZED = "channels are equalized, which lowers the noise on the samples"
_ROUNDED = "weights are rounded by the errors of what they make on the samples, not by their own"
_POOR = "too few, and what would help in the units before it takes too long or is not there"
_GROUPED = "channels of {} depthwise convolutions are in groups with scales of their own"
_LARGE = "weights keep the nearest integers where nodes add up over {:,} products, as {} do"
_FINER = "{} functions of sums are computed before these are rounded to 8 bits"
_SHIFTED = "biases are corrected by the mean errors that rounding makes on the samples"


@dataclass(frozen=True, eq=False)
class QuantizedOnData:
    """A quantized model, and the floats and ranges that it is made from.

    `in_float` are the units that were left in floating point, `steps` says what was done, and `decibels`
    is the signal-to-noise ratio of the worst output on the samples, each half of which is run with
    ranges and biases from the other half. `wide` are the units in 16 bits, `wide_ranges` the ranges for
    any others, where they are asked for.
    """

    quantized: QuantizedModel
    floats: Model
    ranges: Ranges
    in_float: tuple[str, ...]
    steps: tuple[str, ...]
    decibels: float
    wide: WideUnits | None = None
    wide_ranges: Ranges | None = None


@dataclass(frozen=True, eq=False)
class DataQuantizer(DataRequest):
    """Quantizes models with ranges that are measured on data, as is asked for."""

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise that is measured on samples.

        What is tried: channels equalized, ranges by several methods, the units behind the inputs and
        before the outputs left in floating point, unless `predict` finds that too slow, and weights
        rounded by the errors of what they make. Biases are corrected in each. Data that is made up
        chooses and corrects nothing. Raises InputError as `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        read = [] if source.random else islice(source.read_from(0), _SAMPLES)
        samples = [each.inputs for each in read]
        methods = [self.method] if self.method else METHODS
        expected = run_samples(floats.proto, floats, samples) if samples else []
        trials = _QuantizationTrials(VariantMaker(self, floats, samples), expected)
        plain = trials.add(QuantizationVariant(methods[0]))
        if not samples or not plain.quantized.units:
            return trials.finish()
        variants = [QuantizationVariant(method) for method in methods]
        if trials.maker.equalize(None) is not floats:
            variants += [replace(each, equalized=True, steps=(_EQUALIZED,)) for each in variants]
        for variant in variants[1:]:  # those that change less come first
            trials.add(variant)
        trials = self._group_channels(trials, methods)
        trials = self._compute_functions_finer(trials, plain.quantized.model)
        trials.leave_head_in_float()
        trials.refine_outputs()
        best = trials.best.variant
        trials.add(replace(best, rounded=True, steps=(*best.steps, _ROUNDED)))
        return trials.finish()

    def _group_channels(
        self, trials: "_QuantizationTrials", methods: Sequence[str]
    ) -> "_QuantizationTrials":
        """Return trials of a model with channels in groups instead, where that is worth its time."""
        best, maker = trials.best, trials.maker
        groups = find_channel_groups(maker.floats, maker.samples, maker.channel_tensors or ())
        if not groups.chains:
            return trials
        report_step("choose groups of channels")
        ranges = maker.measure_ranges(best.variant, None)
        chosen = groups.choose(partial(self._predict_groups, ranges), _END_SECONDS)
        if not chosen.count:
            return trials
        steps = (*best.variant.steps, _GROUPED.format(chosen.count))
        grouped = _QuantizationTrials(VariantMaker(self, chosen.model, maker.samples), trials.expected)
        for method in methods:
            grouped.add(replace(best.variant, method=method, steps=steps))
        gain = grouped.best.score - best.score
        keeps = gain > _GAIN and not grouped.is_slow(grouped.best, best, min(gain, 1.0))
        return grouped if keeps else trials

    def _compute_functions_finer(
        self, trials: "_QuantizationTrials", plain: Model
    ) -> "_QuantizationTrials":
        """Return trials of a model with finer composites instead, where those are worth their time.

        With groups of channels, it may take as much longer than the `plain` one as either alone.
        """
        best, maker = trials.best, trials.maker
        places = find_finer_composites(maker.floats, self.targets, maker.samples)
        if not places or self.predict is None:
            return trials
        report_step("choose finer composites")
        ranges, predict = maker.measure_ranges(best.variant, None), self.predict

        def predict_marked(marked: Model) -> float:
            return predict(quantize(marked, self.targets, ranges, self.dtype).model)

        most = (1 + _END_SECONDS) * predict(plain) / predict(best.quantized.model) - 1
        marked, count = choose_finer(maker.floats, places, predict_marked, most)
        if not count:
            return trials
        finer = _QuantizationTrials(VariantMaker(self, marked, maker.samples), trials.expected)
        finer.add(replace(best.variant, steps=(*best.variant.steps, _FINER.format(count))))
        gain = finer.best.score - best.score
        return finer if gain > _GAIN else trials

    def _predict_groups(self, ranges: Ranges, grouped: GroupedModel) -> float:
        """Return the predicted seconds of a model in groups, 0 where time does not count.

        `ranges` are those of the model without groups.
        """
        if self.predict is None:
            return 0.0
        known = ranges.tensors
        parts = {made: known[name] for made, name in grouped.sources.items() if name in known}
        made = quantize(
            grouped.model, self.targets, replace(ranges, tensors={**known, **parts}), self.dtype
        )
        return self.predict(made.model)


@dataclass(frozen=True, eq=False)
class _QuantizationTrial:
    """A variant, one of the models that it was measured with, and the accuracies of its outputs.

    `decibels` is the signal-to-noise ratio of the worst output.
    """

    variant: QuantizationVariant
    quantized: QuantizedModel
    decibels: float
    accuracies: OutputAccuracies

    @property
    def score(self) -> float:
        """The score of the outputs (dB)."""
        return self.accuracies.score


@dataclass(eq=False)
class _QuantizationTrials:
    """Variants that are tried, each measured on samples if there are some; `best` is the best so far.

    `expected` are the float model's outputs of the samples.
    """

    maker: VariantMaker
    expected: Sequence[Mapping[str, Any]]
    found: list[_QuantizationTrial] = field(default_factory=list)

    @property
    def best(self) -> _QuantizationTrial:
        """The first trial, or a later one that has less noise by more than chance."""
        best = self.found[0]
        for one in self.found[1:]:
            if one.score > best.score + _GAIN:
                best = one
        return best

    def add(self, variant: QuantizationVariant) -> _QuantizationTrial:
        """Measure a variant: each half of the samples with what the other half gives.

        So no variant is better for the samples that its factors, ranges and biases are from. A single
        sample is measured with its own.
        """
        count = 2 if len(self.maker.samples) > 1 else 1
        outputs: list[Any] = [None] * len(self.maker.samples)
        for half in range(count):
            made, *_ = self.maker.quantize(variant, None if count == 1 else 1 - half)
            part = slice(half, None, count)
            outputs[part] = run_samples(made.model.proto, made.model, self.maker.samples[part])
        decibels = measure_accuracy(self.expected, outputs).signal_to_noise if outputs else 0.0
        accuracies = measure_outputs(self.expected, outputs, self.coarse_outputs)
        self.found.append(_QuantizationTrial(variant, made, decibels, accuracies))
        return self.found[-1]

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
        decibels = self.best.decibels
        found = QuantizedOnData(made, made.floats, ranges, variant.in_float, steps, decibels, wide)
        if not self.maker.asked.any_wide or not self._has_wide:
            return found
        return replace(found, wide_ranges=self.maker.measure_wide_ranges(variant))

    def leave_head_in_float(self) -> None:
        """Try the best with units behind the inputs in floating point; keep that if it is worth it."""
        best = self.best
        units = find_head_units(self.maker.floats.index, best.quantized.units)
        if not units:
            return
        few = self._find_coarse_concats(units)
        note = f"{len(units)} units behind the inputs are left in floating point"
        steps = (*best.variant.steps, "; ".join([note, *map(str, few)]))
        other = self.add(replace(best.variant, in_float=units, steps=steps))
        gain = other.score - best.score
        keeps = bool(few) or (gain > _GAIN and not self.is_slow(other, best, min(gain, 1.0)))
        self.found = [other if keeps else best]

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
        kept = [name for name, few in concats.items() if few]
        rows = list_output_rows(index, units, tails, kept, self.coarse_outputs)
        tried = {FinerUnits(): best}

        def vary(finer: FinerUnits, steps: Sequence[str] = ()) -> QuantizationVariant:
            one = best.variant
            in_float, wide = (*one.in_float, *finer.in_float), (*one.wide, *finer.wide)
            return replace(one, in_float=in_float, wide=wide, steps=(*one.steps, *steps))

        def measure(finer: FinerUnits) -> OutputAccuracies:
            if finer not in tried:
                tried[finer] = self.add(vary(finer))
            return tried[finer].accuracies

        def predict(finer: FinerUnits) -> float:
            seconds = self.maker.asked.predict
            return seconds(self.maker.quantize_plainly(vary(finer))) if seconds else 1.0

        search = OutputRefinement(rows, kept, measure, predict, _END_SECONDS, self._has_wide)
        found = search.find()
        finer = merge_units([*found.values()])
        before, after = measure(FinerUnits()), measure(finer)
        if not kept and all(after.rate(name) <= before.rate(name) + _GAIN for name in found):
            found, finer, after = {}, FinerUnits(), before
        few_steps = {name: describe_steps(name, each) for name, each in self.coarse_outputs.items()}
        why = [str(few) for name in kept for few in concats[name]]
        why += [few_steps[name] for name in few_steps if name in found]
        computed = finer.keep_quantized(tried[finer].quantized.units)  # a target may refuse 16 bits
        notes = ["; ".join([computed.describe([*found]), *why])] if found else []
        notes += [f"{few_steps[name]}, {_POOR}" for name in few_steps if after.is_poor(name)]
        self.found = [replace(tried[finer], variant=vary(finer, notes))]

    @cached_property
    def _has_wide(self) -> bool:
        """Whether some target takes units in 16 bits, and the model may be of an operator set for it."""
        try:
            upgrade_opset(self.maker.floats, SIXTEEN_BITS)
        except InputError:
            return False
        return bool(self.maker.asked.wide_targets)

    def is_slow(self, one: _QuantizationTrial, plain: _QuantizationTrial, gain: float) -> bool:
        """Return whether a variant takes more predicted seconds than its gain (dB) is worth."""
        predict = self.maker.asked.predict
        if predict is None:
            return False
        limit = (1 + _END_SECONDS * gain) * predict(plain.quantized.model)
        return predict(one.quantized.model) > limit
