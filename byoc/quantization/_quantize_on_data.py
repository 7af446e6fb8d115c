"""Quantization with samples at hand: what may help is kept where less noise is measured on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from byoc.model import Model
from byoc.quantization._calibrate import calibrate
from byoc.quantization._equalization import equalize
from byoc.quantization._quantize_model import QuantizedModel, prepare_floats, quantize
from byoc.quantization._ranges import Ranges
from byoc.quantization._sensitivity import measure_accuracy, run_samples
from byoc.rules import Target
from byoc.samples import Preprocessing, find_samples
from byoc.support import report_step

_SAMPLES = 16  # that channels are measured on
_EQUALIZED = "channels are equalized: that lowers the noise that is measured on the samples"
_MEASURED = 8  # of these, that variants of the model are compared on


@dataclass(frozen=True, eq=False)
class QuantizedOnData:
    """A quantized model and the ranges that it is made from; `steps` say what else was done."""

    quantized: QuantizedModel
    ranges: Ranges
    steps: tuple[str, ...]
    decibels: float
    """The signal-to-noise ratio of the worst output, on the samples."""


@dataclass(frozen=True, eq=False)
class DataQuantizer:
    """Quantizes models for `targets` with ranges that are measured on data by a method.

    `data` is a folder of samples, of images prepared as `images` says, or `random`.
    """

    targets: Sequence[Target]
    data: str | Path
    images: Preprocessing
    method: str
    dtype: str | None

    def quantize(self, model: Model) -> QuantizedOnData:
        """Return the variant of the least noise: the prepared model, or the same equalized.

        Data that is made up chooses nothing. Raises InputError as `calibrate` and `quantize` do.
        """
        floats = prepare_floats(model, self.targets, self.dtype)
        source = find_samples(self.data, floats, self.images, None)
        samples = [sample.inputs for sample in islice(source.read_from(0), _SAMPLES)]
        measured = () if source.random else samples[:_MEASURED]
        expected = run_samples(floats.proto, floats, measured) if measured else []
        best = self._make(floats, measured, expected)
        equalized = equalize(floats, samples) if measured and best.quantized.units else floats
        if equalized is not floats:
            other = self._make(equalized, measured, expected, _EQUALIZED)
            best = max(best, other, key=lambda one: one.decibels)
        return best

    def _make(
        self,
        floats: Model,
        samples: Sequence[Mapping[str, Any]],
        expected: Sequence[Mapping[str, Any]],
        *steps: str,
    ) -> QuantizedOnData:
        """Return a variant of the float model calibrated and quantized, and measured on samples."""
        report_step("calibrate")
        ranges = calibrate(floats, self.data, method=self.method, images=self.images)
        report_step("quantize")
        made = quantize(floats, self.targets, ranges, self.dtype)
        decibels = 0.0
        if samples:
            outputs = run_samples(made.model.proto, made.model, samples)
            decibels = measure_accuracy(expected, outputs).signal_to_noise
        return QuantizedOnData(made, ranges, steps, decibels)
