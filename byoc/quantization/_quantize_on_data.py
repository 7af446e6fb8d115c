"""Quantization with samples at hand: what may help is kept where less noise is measured on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from byoc.model import Model
from byoc.quantization._bias_correction import measure_bias_shifts
from byoc.quantization._calibrate import calibrate
from byoc.quantization._equalization import equalize
from byoc.quantization._fixed_ranges import fix_ranges
from byoc.quantization._output_tail import count_levels, find_tail_units
from byoc.quantization._quantize_model import QuantizedModel, prepare_floats, quantize
from byoc.quantization._ranges import Ranges
from byoc.quantization._sensitivity import measure_accuracy, run_samples
from byoc.rules import Target
from byoc.samples import Preprocessing, find_samples
from byoc.support import report_step

_SAMPLES = 16  # that channels are measured on, and variants of the model compared
_METHODS = ("minmax", "mse")  # that are compared unless one is asked for
_FEW = 32  # steps of 255: with fewer a tensor is not joined with others in the tail
_TAIL_GAIN = 1.0  # dB for which what stands before outputs is left to the host
_EQUALIZED = "channels are equalized, which lowers the noise on the samples"
_SHIFTED = "biases are corrected by mean errors, which lowers the noise on the samples"


@dataclass(frozen=True, eq=False)
class QuantizedOnData:
    """A quantized model, and the floats and ranges that it is made from.

    `left` are the units that were left in floating point, `steps` says what was done, and `decibels` is
    the signal-to-noise ratio of the worst output, on the samples. Where biases are corrected, each half
    of the samples is run with the correction that was measured on the other half: `halves`.
    """

    quantized: QuantizedModel
    floats: Model
    ranges: Ranges
    left: tuple[str, ...]
    steps: tuple[str, ...]
    decibels: float
    halves: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, eq=False)
class DataQuantizer:
    """Quantizes models for `targets` with ranges that are measured on data.

    `data` is a folder of samples, of images prepared as `images` says, or `random`. `method` chooses
    ranges; if it is None, several are compared.
    """

    targets: Sequence[Target]
    data: str | Path
    images: Preprocessing
    method: str | None
    dtype: str | None

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise that is measured on samples.

        What is tried: channels equalized, ranges by several methods, biases corrected, and the units
        before the outputs left in floating point. Data that is made up chooses nothing. Raises
        InputError as `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        first, *methods = [self.method] if self.method else _METHODS
        samples = [sample.inputs for sample in islice(source.read_from(0), _SAMPLES)]
        measured = [] if source.random else samples
        expected = run_samples(floats.proto, floats, measured) if measured else []
        trials = _Trials(self, samples, measured, expected)
        trials.add(floats, self._calibrate(floats, first))
        if not measured or not trials.best.quantized.units:
            return trials.best
        equalized = equalize(floats, samples)
        if equalized is not floats:
            trials.add(equalized, self._calibrate(equalized, first), steps=(_EQUALIZED,))
        plain = [trials.best]
        for method in methods:
            ranges = self._calibrate(plain[0].floats, method)
            plain.append(trials.add(plain[0].floats, ranges, steps=plain[0].steps))
        for one in plain:
            trials.add_shifted(one)
        trials.add_without_tail()
        return trials.best

    def _calibrate(self, floats: Model, method: str) -> Ranges:
        report_step("calibrate")
        ranges = calibrate(floats, self.data, method=method, images=self.images)
        return fix_ranges(floats.index, ranges)


@dataclass(eq=False)
class _Trials:
    """Variants that are tried, each measured on samples if there are some; `best` is the best so far."""

    asked: DataQuantizer
    samples: Sequence[Mapping[str, Any]]
    measured: Sequence[Mapping[str, Any]]
    expected: Sequence[Mapping[str, Any]]
    found: list[QuantizedOnData] = field(default_factory=list)

    @property
    def best(self) -> QuantizedOnData:
        """The first of those with the least noise."""
        return max(self.found, key=lambda one: one.decibels)

    def add(
        self,
        floats: Model,
        ranges: Ranges,
        left: tuple[str, ...] = (),
        steps: tuple[str, ...] = (),
        halves: Sequence[Mapping[str, Any]] = (),
    ) -> QuantizedOnData:
        """Quantize a float model and measure it."""
        report_step("quantize")
        made = quantize(floats, self.asked.targets, ranges, self.asked.dtype, left)
        outputs: list[Any] = [None] * len(self.measured)
        for start, shifts in enumerate(halves or [ranges.shifts] if self.measured else ()):
            other = made
            if halves:
                own = replace(ranges, shifts=shifts)
                other = quantize(floats, self.asked.targets, own, self.asked.dtype, left)
            part = slice(start, None, max(len(halves), 1))
            outputs[part] = run_samples(other.model.proto, other.model, self.measured[part])
        decibels = measure_accuracy(self.expected, outputs).signal_to_noise if outputs else 0.0
        self.found.append(QuantizedOnData(made, floats, ranges, left, steps, decibels, halves))
        return self.found[-1]

    def add_shifted(self, one: QuantizedOnData) -> None:
        """Try a variant with its biases corrected, where there are samples to measure that on."""
        if len(self.measured) < 2:
            return
        shifts, *halves = (
            measure_bias_shifts(one.floats, one.quantized.model, samples)
            for samples in (self.samples, self.samples[1::2], self.samples[::2])
        )
        if shifts:
            ranges = replace(one.ranges, shifts=shifts)
            self.add(one.floats, ranges, steps=(*one.steps, _SHIFTED), halves=halves)

    def add_without_tail(self) -> None:
        """Try the best with the units before the outputs left in floating point, if that is worth it."""
        one = self.best
        left = find_tail_units(one.floats.index, one.quantized.units)
        if left:
            levels = count_levels(one.floats.index, left, one.ranges)
            why = f": a Concat leaves {levels} of 255 steps to what it reads" if levels < _FEW else ""
            note = f"{len(left)} units before the outputs are left in floating point{why}"
            other = self.add(one.floats, one.ranges, left, (*one.steps, note), one.halves)
            # The sum of errors of boxes and scores says nothing of scores.
            worth = levels < _FEW or other.decibels >= one.decibels + _TAIL_GAIN
            self.found = [other if worth else one]
