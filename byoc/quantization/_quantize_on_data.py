"""Quantization with samples at hand: what may help is kept where less noise is measured on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from byoc.model import Model
from byoc.quantization._bias_correction import measure_bias_shifts
from byoc.quantization._calibrate import calibrate
from byoc.quantization._equalization import equalize
from byoc.quantization._fixed_ranges import fix_ranges
from byoc.quantization._output_tail import count_levels, find_tail_units
from byoc.quantization._quantize_model import QuantizedModel, prepare_floats, quantize
from byoc.quantization._range_refinement import (
    Float64Array,
    RangeRefinement,
    falls_on_samples,
    measure_noise_by_sample,
    read_roundings,
)
from byoc.quantization._ranges import Ranges
from byoc.quantization._sensitivity import measure_accuracy, run_samples
from byoc.rules import Target
from byoc.samples import NO_PREPROCESSING, Preprocessing, find_samples
from byoc.support import report_step

_SAMPLES = 16  # that channels are measured on, and variants of the model compared
_METHODS = ("minmax", "mse")  # that are compared unless one is asked for
_TENSOR_METHODS = ("minmax", "mse", "percentile")  # that are compared for the noisiest tensors
_PERCENTILE = 99.9
# With fewer of 255 steps for a Concat's operand, the tail stays in float whatever the noise: large
# errors of boxes hide those of scores.
_FEW_STEPS = 32
_TAIL_GAIN = 1.0  # dB for which what stands before outputs is left to the host
_TAIL_SECONDS = 1.03  # what that may take, as a share of the predicted seconds with all in integers
_GAIN = 0.25  # dB for which channels or ranges are changed: less is chance on so few samples
_DEVIATIONS = 1.5  # standard errors by which noise then has to fall: once in fifteen it does by chance
_EQUALIZED = "channels are equalized, which lowers the noise on the samples"
_REFINED = (
    "{} tensors have ranges by another method than the rest, which lowers the noise on the samples"
)
_SHIFTED = "biases are corrected by mean errors, which lowers the noise on the samples"


@dataclass(frozen=True, eq=False)
class QuantizedOnData:
    """A quantized model, and the floats and ranges that it is made from.

    `in_float` are the units that were left in floating point, `steps` says what was done, and `decibels`
    is the signal-to-noise ratio of the worst output on the samples, each half of which is run with
    ranges and biases from the other half.
    """

    quantized: QuantizedModel
    floats: Model
    ranges: Ranges
    in_float: tuple[str, ...]
    steps: tuple[str, ...]
    decibels: float


@dataclass(frozen=True, eq=False)
class DataQuantizer:
    """Quantizes models for `targets` with ranges that are measured on data.

    `data` is a folder of samples, of images prepared as `images` says, or `random`. `method` chooses
    ranges; if it is None, several are compared. `predict` returns the predicted seconds of a quantized
    model; without it time does not count.
    """

    targets: Sequence[Target]
    data: str | Path
    images: Preprocessing
    method: str | None
    dtype: str | None
    predict: Callable[[Model], float] | None = None

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise that is measured on samples.

        What is tried: channels equalized, ranges by several methods, for all tensors and for the
        noisiest alone, biases corrected, and the units before the outputs left in floating point, unless
        `predict` finds that too slow. Data that is made up chooses nothing. Raises InputError as
        `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        first, *methods = [self.method] if self.method else _METHODS
        read = [] if source.random else islice(source.read_from(0), _SAMPLES)
        samples = [each.inputs for each in read]
        expected = run_samples(floats.proto, floats, samples) if samples else []
        trials = _QuantizationTrials(self, samples, expected)
        plain = trials.add(_QuantizationVariant(floats, first))
        if not samples or not plain.quantized.units:
            return trials.finish()
        equalized = equalize(floats, samples)
        if equalized is not floats:
            trials.add(_QuantizationVariant(equalized, first, steps=(_EQUALIZED,)))
        best = trials.best.variant  # those that change less come first
        tried = [best, *(replace(best, method=method) for method in methods)]
        for variant in tried:
            if variant is not best:
                trials.add(variant)
        if methods:
            tried += trials.refine_ranges(tried)
        for variant in tried:
            trials.add(replace(variant, corrected=True, steps=(*variant.steps, _SHIFTED)))
        trials.add_without_tail()
        return trials.finish()


@dataclass(frozen=True, eq=False)
class _QuantizationVariant:
    """A way to quantize: the float model, how ranges are chosen, and whether biases are corrected.

    `of_tensors` are the methods of tensors that have another than `method`. `in_float` are units that
    are left in floating point, `steps` says what was done.
    """

    floats: Model
    method: str
    of_tensors: tuple[tuple[str, str], ...] = ()
    corrected: bool = False
    in_float: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def ranges_key(self) -> object:
        """A key that variants of the same ranges have in common."""
        return id(self.floats), self.method, self.of_tensors


@dataclass(frozen=True, eq=False)
class _QuantizationTrial:
    """A variant, one of the models that it was measured with, and their signal-to-noise ratio.

    `noise` is that of each sample, `[samples]`.
    """

    variant: _QuantizationVariant
    quantized: QuantizedModel
    decibels: float
    noise: Float64Array

    @property
    def score(self) -> float:
        """The mean of two measures (dB): of the worst output over all samples, and sample by sample.

        A few samples with large values decide the former, however many there are; the latter is
        of all outputs, and each sample counts alike.
        """
        samples = -10 * np.log10(np.maximum(self.noise * len(self.noise), 1e-30))
        return float((self.decibels + samples.mean()) / 2) if samples.size else 0.0


@dataclass(eq=False)
class _QuantizationTrials:
    """Variants that are tried, each measured on samples if there are some; `best` is the best so far."""

    asked: DataQuantizer
    samples: Sequence[Mapping[str, Any]]
    expected: Sequence[Mapping[str, Any]]
    found: list[_QuantizationTrial] = field(default_factory=list)
    _ranges: dict[tuple[int, str, int | None], Ranges] = field(default_factory=dict)

    @property
    def best(self) -> _QuantizationTrial:
        """The first trial, or a later one that has less noise, and that on average over samples.

        One of other channels or ranges has to have less by more than chance.
        """
        best = self.found[0]
        for one in self.found[1:]:
            alike = one.variant.ranges_key == best.variant.ranges_key
            gain, deviations = (0.0, 0.0) if alike else (_GAIN, _DEVIATIONS)
            if one.score > best.score + gain and falls_on_samples(best.noise, one.noise, deviations):
                best = one
        return best

    def refine_ranges(self, variants: Sequence[_QuantizationVariant]) -> list[_QuantizationVariant]:
        """Measure the variants with ranges of the noisiest tensors by other methods, and return them."""
        made = []
        for variant in variants:
            methods = dict.fromkeys((variant.method, *_TENSOR_METHODS))
            roundings = {
                method: [
                    read_roundings(self._quantize(replace(variant, method=method), half)[0].model)
                    for half in range(2)
                ]
                for method in (methods if len(self.samples) > 1 else ())
            }
            if not roundings:
                continue
            refinement = RangeRefinement(variant.floats, self.samples, self.expected, roundings)
            chosen = refinement.choose()
            if chosen:
                step = _REFINED.format(len(chosen))
                one = replace(variant, of_tensors=(*chosen.items(),), steps=(*variant.steps, step))
                self.add(one)
                made.append(one)
        return made

    def add(self, variant: _QuantizationVariant) -> _QuantizationTrial:
        """Measure a variant: each half of the samples with what the other half gives.

        So no variant is better for the samples that its ranges and biases are from. A single sample is
        measured with its own.
        """
        count = 2 if len(self.samples) > 1 else 1
        outputs: list[Any] = [None] * len(self.samples)
        for half in range(count):
            made, _ = self._quantize(variant, None if count == 1 else 1 - half)
            part = slice(half, None, count)
            outputs[part] = run_samples(made.model.proto, made.model, self.samples[part])
        decibels = measure_accuracy(self.expected, outputs).signal_to_noise if outputs else 0.0
        noise = measure_noise_by_sample(self.expected, outputs)
        self.found.append(_QuantizationTrial(variant, made, decibels, noise))
        return self.found[-1]

    def finish(self) -> QuantizedOnData:
        """Return the best variant, with ranges and biases from all data."""
        variant = self.best.variant
        made, ranges = self._quantize(variant, None)
        return QuantizedOnData(
            made, variant.floats, ranges, variant.in_float, variant.steps, self.best.decibels
        )

    def add_without_tail(self) -> None:
        """Try the best with the units before the outputs left in floating point, if that is worth it."""
        best = self.best
        one = best.variant
        tail = find_tail_units(one.floats.index, best.quantized.units)
        if tail:
            levels = count_levels(one.floats.index, tail, self._measure_ranges(one, None))
            why = (
                f": a Concat leaves {levels} of 255 steps to what it reads"
                if levels < _FEW_STEPS
                else ""
            )
            note = f"{len(tail)} units before the outputs are left in floating point{why}"
            other = self.add(replace(one, in_float=tail, steps=(*one.steps, note)))
            gains = other.score >= best.score + _TAIL_GAIN and not self._is_slow(other, best)
            self.found = [other if levels < _FEW_STEPS or gains else best]

    def _is_slow(self, one: _QuantizationTrial, plain: _QuantizationTrial) -> bool:
        """Return whether a variant takes more predicted seconds than its gain is worth."""
        predict = self.asked.predict
        if predict is None:
            return False
        return predict(one.quantized.model) > _TAIL_SECONDS * predict(plain.quantized.model)

    def _quantize(
        self, variant: _QuantizationVariant, half: int | None
    ) -> tuple[QuantizedModel, Ranges]:
        """Quantize a variant with ranges and biases from a half of the samples, or from all data."""
        ranges = self._measure_ranges(variant, half)
        asked = self.asked
        report_step("quantize")
        made = quantize(variant.floats, asked.targets, ranges, asked.dtype, variant.in_float)
        if not variant.corrected:
            return made, ranges
        samples = self.samples if half is None else self.samples[half::2]
        ranges = replace(ranges, shifts=measure_bias_shifts(variant.floats, made.model, samples))
        report_step("quantize")
        return quantize(variant.floats, asked.targets, ranges, asked.dtype, variant.in_float), ranges

    def _measure_ranges(self, variant: _QuantizationVariant, half: int | None) -> Ranges:
        found = self._measure_method(variant.floats, variant.method, half)
        if not variant.of_tensors:
            return found
        tensors = dict(found.tensors)
        for name, method in variant.of_tensors:
            tensors[name] = self._measure_method(variant.floats, method, half).tensors[name]
        return replace(found, tensors=tensors)

    def _measure_method(self, floats: Model, method: str, half: int | None) -> Ranges:
        key = id(floats), method, half
        if key not in self._ranges:
            report_step("calibrate")
            data = self.asked.data if half is None else self.samples[half::2]
            images = self.asked.images if half is None else NO_PREPROCESSING
            percentile = _PERCENTILE if method == "percentile" else None
            ranges = calibrate(floats, data, method=method, percentile=percentile, images=images)
            self._ranges[key] = fix_ranges(floats.index, ranges)
        return self._ranges[key]
