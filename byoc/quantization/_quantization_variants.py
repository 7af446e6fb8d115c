"""Ways to quantize a model with samples at hand, and the models that they make."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    Model,
)
from byoc.numerics import convert_to_db
from byoc.planning import WIDE
from byoc.quantization._accuracy_measures import find_float_outputs, measure_noise_by_sample
from byoc.quantization._biases import ChannelMeans, measure_bias_shifts
from byoc.quantization._calibrate import CalibrationState, measure_ranges
from byoc.quantization._calibrators import CHANNELS, ChannelRange, Ranges
from byoc.quantization._candidates import TargetRequirements
from byoc.quantization._equalization import Outputs, equalize, fix_ranges, join_samples
from byoc.quantization._feature_scaling import scale_features
from byoc.quantization._prepare_model import count_channels
from byoc.quantization._quantize_model import QuantizedModel, WideUnits, quantize
from byoc.quantization._weight_rounding import round_weights
from byoc.rules import Target
from byoc.samples import NO_PREPROCESSING, Preprocessing, find_samples
from byoc.support import report_step

# Accuracies of the outputs of a quantized model on samples, one by one and together.

LEAST_GAIN = 0.25
"""The gain (dB) from which a variant is better than another: less is chance on few samples."""

_LEAST_NOISE = 1e-10  # that counts: 100 dB
_POOR = 10.0  # dB: errors are then a third of what sizes differ by, and more
_NEAR = 0.1  # the quantile of sizes below which values are near to 0
_FEW_VALUES = 32  # with one sign in a channel, in all samples, for which errors are chance
_MAX_ACCURACY = 30.0  # dB; more does not count: errors are then 3 % of the deviation of usual values


class CoarseAccuracy(NamedTuple):
    """Two ratios (dB) of an output that eight bits are too coarse for, each at most 30.

    Noise as a share of the whole power is next to nothing there even where all small values are lost.
    """

    size: float
    sign: float


@dataclass(frozen=True, eq=False)
class OutputAccuracies:
    """The accuracy of outputs on samples.

    `noise` is that of each float output in each sample as a share of its signal, `[samples, outputs]`,
    and `names` are these outputs. `coarse` are the accuracies of those that eight bits are too coarse
    for.
    """

    names: tuple[str, ...]
    noise: NDArray[np.float64]
    coarse: Mapping[str, CoarseAccuracy]

    @property
    def score(self) -> float:
        """The mean of two measures (dB): of the worst output over all samples, and of each in each.

        A few samples with large values decide the former, however many there are; in the latter each
        sample and each output counts alike.
        """
        if not self.noise.size:
            return 0.0
        worst = -10 * np.log10(max(float(self.noise.mean(axis=0).max()), _LEAST_NOISE))
        each = -10 * np.log10(np.maximum(self.noise, _LEAST_NOISE))
        return float((worst + each.mean()) / 2)

    @property
    def missing(self) -> float:
        """The decibels that the worst output lacks to 10, over all samples."""
        worst = float(self.noise.mean(axis=0).max()) if self.noise.size else 0.0
        return max(0.0, _POOR + 10 * float(np.log10(max(worst, _LEAST_NOISE))))

    def list_warnings(self) -> list[str]:
        """Return a sentence where less than 10 dB are left of the worst output."""
        if not self.missing:
            return []
        name, left = self.names[int(self.noise.mean(axis=0).argmax())], _POOR - self.missing
        return [f"only {left:.1f} dB are left of '{name}' on the samples: --accuracy-budget keeps more"]

    def rate(self, name: str) -> float:
        """Return the rating of an output (dB): the score, or for a coarse one the sum of its ratios."""
        return sum(self.coarse[name]) if name in self.coarse else self.score

    def is_poor(self, name: str) -> bool:
        """Return whether next to nothing is left of an output that eight bits are too coarse for."""
        return name in self.coarse and self.coarse[name].size < _POOR

    def replace_output(self, name: str, other: "OutputAccuracies") -> "OutputAccuracies":
        """Return the accuracies with that of one output from another variant."""
        noise = self.noise.copy()
        for column, each in enumerate(self.names):
            if each == name:
                noise[:, column] = other.noise[:, column]
        coarse = {each: (other if each == name else self).coarse[each] for each in self.coarse}
        return replace(self, noise=noise, coarse=coarse)


def measure_outputs(expected: Outputs, actual: Outputs, coarse: Collection[str]) -> OutputAccuracies:
    """Return the accuracies of outputs against those expected, sample by sample.

    `coarse` are the outputs that eight bits are too coarse for.
    """
    noise = measure_noise_by_sample(expected, actual)
    ratios = {
        name: CoarseAccuracy(
            measure_size_accuracy(name, expected, actual),
            measure_sign_accuracy(name, expected, actual),
        )
        for name in coarse
    }
    return OutputAccuracies(find_float_outputs(expected), noise, ratios)


def measure_size_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the signal-to-noise ratio (variance to noise) of the sizes of an output, to 30 dB.

    Sizes are asinh(x / s), where a tenth of the values that are not 0 are nearer to 0 than s: so noise
    counts by itself in these, and in larger ones by its share of the value.
    """
    signal, other = join_samples(expected, name), join_samples(actual, name)
    sizes = np.abs(signal[signal != 0])
    near = max(float(np.quantile(sizes, _NEAR)), float(np.finfo(np.float32).tiny)) if sizes.size else 1.0
    signal, other = np.arcsinh(signal / near), np.arcsinh(other / near)
    noise = float(np.mean((signal - other) ** 2))
    return min(convert_to_db(float(np.var(signal)), noise), _MAX_ACCURACY)


def measure_sign_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the accuracy of the signs of an output in its worst channel, at most 30 dB.

    It is the share of errors, 1 - F1, of the sign that is the rarer one in a channel (axis 1; an output
    without is one channel): where logits are above 0 stands for where applications find something.
    Channels with few values of a sign do not count.
    """
    signs, others = (_split_channels(outputs, name) > 0 for outputs in (expected, actual))
    counts, wholes = signs.sum(axis=1), signs.shape[1]
    found = [_MAX_ACCURACY]
    for sign, other, count in zip(signs, others, counts, strict=True):
        if min(count, wholes - count) < _FEW_VALUES:
            continue
        rarer = count <= wholes - count
        kept = int(((sign == rarer) & (other == rarer)).sum())
        wrong = int((sign != other).sum())
        found.append(convert_to_db(2 * kept + wrong, wrong))
    return min(found)


def _split_channels(outputs: Outputs, name: str) -> NDArray[np.float64]:
    """Return the values of an output in all samples, `[channels, values]`; one channel if these vary."""
    values = [np.asarray(each[name], np.float64) for each in outputs]
    counts = {each.shape[CHANNELS] if each.ndim > CHANNELS else 1 for each in values}
    if len(counts) > 1 or counts == {1}:
        return join_samples(outputs, name).reshape(1, -1)
    rows = [np.moveaxis(each, CHANNELS, 0).reshape(each.shape[CHANNELS], -1) for each in values]
    return np.concatenate(rows, axis=1)


QUICK, THOROUGH = "quick", "thorough"
"""The efforts beside the usual one."""

METHODS = ("minmax", "mse")
"""The methods that are compared unless one is asked for; the first is that of units in 16 bits."""


@dataclass(frozen=True, eq=False)
class DataRequest:
    """The request for models quantized for `targets`, with ranges that are measured on data.

    `data` is a folder of samples, of images prepared as `images` says, or `random`. `method` chooses
    ranges; if it is None, several are compared. `predict` returns the predicted seconds of a quantized
    model; without it time does not count. `wide_targets` are those that take units in 16 bits. With
    `any_wide` ranges for any units in 16 bits are measured, too. `effort` is one of `EFFORTS`.
    """

    targets: Sequence[Target]
    data: str | Path
    images: Preprocessing
    method: str | None
    dtype: str | None
    predict: Callable[[Model], float] | None = None
    wide_targets: Sequence[Target] = ()
    any_wide: bool = False
    effort: str = "normal"


@dataclass(frozen=True, eq=False)
class QuantizationVariant:
    """A way to quantize: how ranges are chosen, and whether channels are equalized before.

    `rounded` says that weights are rounded by the errors of what they make, `steps` what was done;
    `in_float` are units that are left in floating point, and `wide` those in 16 bits where a target
    takes them so, else in floating point. `wide_tensors` are made in 16 bits by units in 8.
    """

    method: str
    equalized: bool = False
    rounded: bool = False
    steps: tuple[str, ...] = ()
    in_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    wide_tensors: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The names that decide on the types of units: they do not depend on ranges."""
        return self.in_float, self.wide, self.wide_tensors

    def extend(
        self, in_float: Sequence[str] = (), wide: Sequence[str] = (), steps: Sequence[str] = ()
    ) -> "QuantizationVariant":
        """Return the variant with further units in finer types, and further steps."""
        return replace(
            self,
            in_float=(*self.in_float, *in_float),
            wide=(*self.wide, *wide),
            steps=(*self.steps, *steps),
        )


@dataclass(eq=False)
class VariantMaker:
    """Quantizes a model in variants, with what is measured on all data or on a half of the samples.

    The halves are the even and the odd samples, 0 and 1; all data is None. Unless the effort is
    thorough, variants are measured on the even samples alone, and factors, biases and roundings are
    those of the odd ones in the end as well; ranges are of all data. What was measured is kept, and so
    is what the targets take of a variant, which does not depend on how ranges are measured.
    """

    request: DataRequest
    floats: Model
    samples: Sequence[Mapping[str, Any]]
    channel_tensors: tuple[str, ...] | None = None
    _equalized: dict[int | None, Model] = field(default_factory=dict)
    _ranges: dict[tuple[str, bool, int | None], Ranges] = field(default_factory=dict)
    _extremes: dict[tuple[bool, int | None], CalibrationState] = field(default_factory=dict)
    _taken: dict[tuple[Any, ...], QuantizedModel] = field(default_factory=dict)
    _means: dict[tuple[bool, int | None], ChannelMeans] = field(default_factory=dict)
    _weights: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    @property
    def measured_halves(self) -> tuple[int | None, ...]:
        """The halves of the samples that variants are measured on; None is all."""
        if len(self.samples) <= 1:
            return (None,)
        return (0, 1) if self.request.effort == THOROUGH else (0,)

    @property
    def measured_samples(self) -> Sequence[Mapping[str, Any]]:
        """The samples that variants are measured on."""
        halves = self.measured_halves
        return self.samples if len(halves) > 1 else self.take_half(halves[0])

    @property
    def fitted_samples(self) -> Sequence[Mapping[str, Any]]:
        """The samples that what is made of all data takes factors, biases and roundings from."""
        return self.take_half(self._find_fitted(None))

    def _find_fitted(self, half: int | None) -> int | None:
        """Return the half that factors, biases and roundings are from, for a half of ranges."""
        return 1 if half is None and self.measured_halves == (0,) else half

    def quantize(
        self, variant: QuantizationVariant, half: int | None
    ) -> tuple[QuantizedModel, Ranges, WideUnits | None]:
        """Quantize a variant with ranges and biases from a half of the samples, or from all data.

        Returns the model, and ranges with biases: for all units, and for those in 16 bits.
        """
        ranges = self.measure_ranges(variant, half)
        wide = self._measure_wide_units(variant, half) if variant.wide else None
        report_step("quantize")
        # Of a half, the model is for measuring alone; what is from all data, the targets are asked of.
        like = None if half is None else self._find_alike(variant)
        made = self._quantize_in_ranges(variant, half, ranges, wide, like)
        if not self.samples:
            return made, ranges, wide
        fitted = self._find_fitted(half)
        samples = self.take_half(fitted)
        if variant.rounded:
            key = variant.method, variant.equalized, variant.units, fitted
            if key not in self._weights:
                self._weights[key] = round_weights(made.floats, made.model, samples)
            ranges, wide = _change(ranges, wide, weights=self._weights[key])
            made = self._quantize_in_ranges(variant, half, ranges, wide, made)
        means = self._means.setdefault((variant.equalized, fitted), ChannelMeans(samples))
        shifts = measure_bias_shifts(made.floats, made.model, means)
        ranges, wide = _change(ranges, wide, shifts=shifts)
        report_step("quantize")
        return self._quantize_in_ranges(variant, half, ranges, wide, made), ranges, wide

    def _find_alike(self, variant: QuantizationVariant) -> QuantizedModel | None:
        """Return a variant whose units the targets were asked of, None where there is none yet."""
        return self._taken.get((variant.equalized, variant.units))

    def quantize_plainly(self, variant: QuantizationVariant) -> Model:
        """Quantize a variant without correcting biases or rounding weights, to predict its seconds."""
        ranges = self.measure_ranges(variant, None)
        wide = self._measure_wide_units(variant, None) if variant.wide else None
        like = self._find_alike(variant)
        return self._quantize_in_ranges(variant, None, ranges, wide, like).model

    def _quantize_in_ranges(
        self,
        variant: QuantizationVariant,
        half: int | None,
        ranges: Ranges,
        wide: WideUnits | None,
        like: QuantizedModel | None,
    ) -> QuantizedModel:
        floats = self.equalize(half) if variant.equalized else self.floats
        request = self.request
        made = quantize(floats, request.targets, ranges, request.dtype, variant.in_float, wide, like)
        self._taken.setdefault((variant.equalized, variant.units), made)
        return made

    def _measure_wide_units(self, variant: QuantizationVariant, half: int | None) -> WideUnits:
        """Return the units in 16 bits of a variant, with ranges that clip nothing."""
        ranges = self.measure_ranges(replace(variant, method=self.request.method or METHODS[0]), half)
        names, tensors = frozenset(variant.wide), frozenset(variant.wide_tensors)
        return WideUnits(names, replace(ranges, channels={}), tensors)

    def measure_ranges(self, variant: QuantizationVariant, half: int | None) -> Ranges:
        """Return the ranges of tensors and channels, by all data or by a half of the samples."""
        key = variant.method, variant.equalized, half
        if key not in self._ranges:
            report_step("calibrate")
            floats = self.equalize(half) if variant.equalized else self.floats
            data = self.request.data if half is None else self.take_half(half)
            images = self.request.images if half is None else NO_PREPROCESSING
            source = find_samples(data, floats, images, None)
            seen = self._extremes.get((variant.equalized, half))
            ranges, seen = measure_ranges(floats, source, variant.method, seen)
            self._extremes[variant.equalized, half] = seen
            ranges = fix_ranges(floats.index, ranges, self.request.dtype)
            if self.channel_tensors is None:
                request = self.request
                self.channel_tensors = find_channel_tensors(
                    floats, request.targets, ranges, request.dtype
                )
            known = ranges.channels  # without tensors that are empty or infinite in these samples
            channels = {name: known[name] for name in self.channel_tensors if name in known}
            self._ranges[key] = replace(ranges, channels=channels)
        return self._ranges[key]

    def measure_wide_ranges(self, variant: QuantizationVariant) -> Ranges:
        """Return ranges and biases for any units in 16 bits, for which nothing needs to be clipped."""
        wide = replace(variant, method=self.request.method or METHODS[0], wide=(), wide_tensors=())
        request = replace(self.request, targets=self.request.wide_targets, dtype=WIDE)
        others = replace(self, request=request, channel_tensors=None, _ranges={}, _taken={}, _weights={})
        return others.quantize(wide, None)[1]

    def equalize(self, half: int | None) -> Model:
        """Return the float model with channels equalized on all samples, or on a half of them."""
        fitted = self._find_fitted(half)
        if fitted not in self._equalized:
            samples = self.take_half(fitted)
            self._equalized[fitted] = scale_features(equalize(self.floats, samples), samples)
        return self._equalized[fitted]

    def take_half(self, half: int | None) -> Sequence[Mapping[str, Any]]:
        """Return a half of the samples, or all."""
        return self.samples if half is None else self.samples[half::2]


def _change(ranges: Ranges, wide: WideUnits | None, **parts: Any) -> tuple[Ranges, WideUnits | None]:
    """Return ranges with other parts, and units in 16 bits whose ranges have the same."""
    if wide is not None:
        wide = replace(wide, ranges=replace(wide.ranges, **parts))
    return replace(ranges, **parts), wide


# Scales for each channel: the tensors that get them.


def find_channel_tensors(
    floats: Model, targets: Sequence[Target], ranges: Ranges, dtype: str | None = None
) -> tuple[str, ...]:
    """Return the tensors of a prepared model that get a scale for each channel (axis 1).

    A depthwise convolution reads them, where no other channel makes up for one that is inexact, and all
    that make and read them take such scales by the rules of the targets. `ranges` are those of tensors.
    """
    index = floats.index
    wishes = [TargetRequirements(target) for target in targets if target.has_quantized_rules]
    if not any(requirement.names_channels for requirement in wishes):
        return ()
    tried = {
        name: ChannelRange(np.zeros(count), np.zeros(count))
        for name, count in count_channels(index, [*ranges.tensors]).items()
    }
    return quantize(floats, targets, replace(ranges, channels=tried), dtype).channels
