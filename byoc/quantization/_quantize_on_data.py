"""Quantization with samples at hand: what may help is kept where less noise is measured on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from byoc.model import Model
from byoc.quantization._channel_groups import find_channel_groups
from byoc.quantization._class_logits import run_with_logits
from byoc.quantization._finer_composites import choose_finer, find_finer_composites
from byoc.quantization._group_writer import GroupedModel
from byoc.quantization._quantization_trials import TIME_PRICE, QuantizationTrials, QuantizedOnData
from byoc.quantization._quantization_variants import (
    METHODS,
    DataRequest,
    QuantizationVariant,
    VariantMaker,
)
from byoc.quantization._quantize_model import prepare_floats, quantize
from byoc.quantization._ranges import Ranges
from byoc.samples import find_samples
from byoc.support import report_step

_SAMPLES = 16  # that channels are measured on, and variants of the model compared
_EQUALIZED = "channels are equalized, which lowers the noise on the samples"
_ROUNDED = "weights are rounded by the errors of what they make on the samples, not by their own"
_GROUPED = "channels of {} depthwise convolutions are in groups with scales of their own"
_FINER = "{} functions of sums are computed before these are rounded to 8 bits"


@dataclass(frozen=True, eq=False)
class DataQuantizer(DataRequest):
    """Quantizes models with ranges that are measured on data, as is asked for."""

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise that is measured on samples.

        What is tried, in this order: ranges by several methods, channels equalized, channels in groups,
        finer composites, units behind the inputs in floating point, units before outputs there or in 16
        bits, and weights rounded by the errors of what they make. What takes longer is kept where that
        is worth the seconds that `predict` returns. Biases are corrected in each variant. Data that is
        made up chooses and corrects nothing. Raises InputError as `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        read = [] if source.random else islice(source.read_from(0), _SAMPLES)
        samples = [each.inputs for each in read]
        methods = [self.method] if self.method else METHODS
        expected = run_with_logits(floats, samples) if samples else []
        trials = QuantizationTrials(VariantMaker(self, floats, samples), expected)
        plain = trials.add(QuantizationVariant(methods[0]))
        if not samples or not plain.quantized.units:
            return trials.finish()
        variants = [QuantizationVariant(method) for method in methods]
        if trials.maker.equalize(None) is not floats:
            equalized = [replace(each, equalized=True) for each in variants]
            variants += [each.extend(steps=[_EQUALIZED]) for each in equalized]
        for variant in variants[1:]:  # those that change less come first
            trials.add(variant)
        trials = self._group_channels(trials, methods)
        trials = self._compute_functions_finer(trials, plain.quantized.model)
        trials.leave_head_in_float()
        trials.refine_outputs()
        best = trials.best.variant
        trials.add(replace(best.extend(steps=[_ROUNDED]), rounded=True))
        return trials.finish()

    def _group_channels(self, trials: QuantizationTrials, methods: Sequence[str]) -> QuantizationTrials:
        """Return trials of a model with channels in groups instead, where that is worth its time."""
        best, maker = trials.best, trials.maker
        groups = find_channel_groups(maker.floats, maker.samples, maker.channel_tensors or ())
        if not groups.chains:
            return trials
        report_step("choose groups of channels")
        ranges = maker.measure_ranges(best.variant, None)
        known = ranges.tensors

        def predict(grouped: GroupedModel) -> float:
            parts = {made: known[name] for made, name in grouped.sources.items() if name in known}
            return self._predict_floats(grouped.model, replace(ranges, tensors={**known, **parts}))

        chosen = groups.choose(predict, TIME_PRICE)
        if not chosen.count:
            return trials
        variant = best.variant.extend(steps=[_GROUPED.format(chosen.count)])
        grouped = QuantizationTrials(VariantMaker(self, chosen.model, maker.samples), trials.expected)
        for method in methods:
            grouped.add(replace(variant, method=method))
        return grouped if grouped.is_worth_its_time(grouped.best, best) else trials

    def _compute_functions_finer(self, trials: QuantizationTrials, plain: Model) -> QuantizationTrials:
        """Return trials of a model with finer composites instead, where those are worth their time.

        With groups of channels, it may take as much longer than the `plain` one as either alone.
        """
        if self.predict is None:
            return trials
        best, maker = trials.best, trials.maker
        places = find_finer_composites(maker.floats, self.targets, maker.samples)
        if not places:
            return trials
        report_step("choose finer composites")
        ranges = maker.measure_ranges(best.variant, None)
        most = (1 + TIME_PRICE) * self.predict(plain) / self.predict(best.quantized.model) - 1
        predict = partial(self._predict_floats, ranges=ranges)
        marked, count = choose_finer(maker.floats, places, predict, most)
        if not count:
            return trials
        finer = QuantizationTrials(VariantMaker(self, marked, maker.samples), trials.expected)
        finer.add(best.variant.extend(steps=[_FINER.format(count)]))
        return finer if finer.best.is_better(best) else trials

    def _predict_floats(self, floats: Model, ranges: Ranges) -> float:
        """Return the predicted seconds of a float model as quantized, 0 where time does not count."""
        if self.predict is None:
            return 0.0
        return self.predict(quantize(floats, self.targets, ranges, self.dtype).model)
