"""The distance of a bundle from the float model, beside onnxruntime's with the same integers.

Two right executions of a quantized network may lie far apart, since a result that is rounded to the
other integer moves all that follows. What both keep is their distance from the float model, and by how
much right executions of this network lie apart can be measured: onnxruntime with its optimizations, and
with an eighth of each layer's results moved by one unit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from byoc.verification._noise import NoiseGauge
from byoc.verification._output_error import Fidelity, OutputError
from byoc.verification._thresholds import Thresholds

Array = NDArray[Any]
Values = Mapping[str, Any]

SPREAD = "onnxruntime's own spread on this network"
_SIDES = 2.0  # onnxruntime is off by the spread to one side, the bundle to the other
_LEAST_LOSS = 1.0  # dB that a right bundle may lose against onnxruntime
_SPREAD_SAMPLES = 4  # which right executions are compared on


@dataclass(frozen=True, eq=False)
class SampleRun:
    """A sample, what onnxruntime and the bundle made of it, and the float model's outputs.

    `exact` is empty where no float model is known.
    """

    inputs: Values
    expected: Values
    actual: Values
    exact: Values


@dataclass(eq=False)
class FidelityCheck:
    """The runs of a bundle on all samples, by which outputs beyond their tolerance are judged.

    `model` is what the bundle is compared with, `folder` has its external data.
    """

    model: ModelProto
    folder: Path | None
    runs: list[SampleRun] = field(default_factory=list)

    def judge(self, errors: Iterable[OutputError], thresholds: Thresholds) -> tuple[OutputError, ...]:
        """Return the errors; those beyond tolerance and noise have what else explains them.

        That is a distance from the float model, or onnxruntime's own spread. Limits of the user's hold.
        """
        return tuple(
            error
            if error.within
            or not error.is_measurable
            or error.tie_break is not None
            or thresholds.is_asked(error.dtype, error.measure)
            or not self._gauges[0].quantized
            else self._judge(error)
            for error in errors
        )

    def _judge(self, error: OutputError) -> OutputError:
        runs = [run for run in self.runs if _are_alike(run, error.name)]
        if len(runs) < len(self.runs):
            return error
        fidelity = self._measure_fidelity(error.name)
        if fidelity is not None and fidelity.within:
            return replace(error, fidelity=fidelity)
        right = list(self._list_right(error.name))
        largest = max((_measure_largest(pairs) for pairs in right), default=0.0)
        power = max((_measure_power(pairs) for pairs in right), default=0.0)
        actual = [(run.expected[error.name], run.actual[error.name]) for run in runs]
        if error.absolute <= _SIDES * largest and _measure_power(actual) <= _SIDES * power:
            return replace(error, noise=_SIDES * largest, noise_source=SPREAD)
        return replace(error, fidelity=fidelity)

    def _measure_fidelity(self, name: str) -> Fidelity | None:
        """Return the fidelity of an output; None where no float model is known."""
        runs = self.runs
        exact = [run.exact.get(name) for run in runs]
        if exact[0] is None:  # the model with its activations in floating point is the next best
            runs = runs[:_SPREAD_SAMPLES]
            exact = [gauge.run_float_twin().get(name) for gauge in self._gauges]
        if any(
            value is None or np.shape(value) != np.shape(r.actual[name])
            for value, r in zip(exact, runs, strict=True)
        ):
            return None
        bundle = _measure_ratio(exact, [run.actual[name] for run in runs])
        reference = _measure_ratio(exact, [run.expected[name] for run in runs])
        right = list(self._list_right(name))
        few = exact[: len(self._gauges)]
        start = _measure_ratio(few, [run.expected[name] for run in runs[: len(few)]])
        others = [_measure_ratio(few, [got for _, got in pairs]) for pairs in right]
        spread = max([0.0, *(start - each for each in others if np.isfinite(start))])
        return Fidelity(bundle, reference, spread, reference - spread - _LEAST_LOSS)

    @cached_property
    def _gauges(self) -> list[NoiseGauge]:
        """The gauges of the first samples, on which right executions are compared."""
        return [
            NoiseGauge(self.model, self.folder, run.inputs, run.expected)
            for run in self.runs[:_SPREAD_SAMPLES]
        ]

    def _list_right(self, name: str) -> Iterator[list[tuple[Any, Any]]]:
        """Yield an output of each right execution but the plain one, paired with the plain ones."""
        executions = [gauge.run_right_executions() for gauge in self._gauges]
        for each in zip(*executions, strict=False):
            values = [made.get(name) for made in each]
            pairs = [
                (gauge.expected[name], value) for gauge, value in zip(self._gauges, values, strict=True)
            ]
            if all(other is not None and np.shape(one) == np.shape(other) for one, other in pairs):
                yield pairs


def _are_alike(run: SampleRun, name: str) -> bool:
    wanted, got = run.expected.get(name), run.actual.get(name)
    return isinstance(wanted, np.ndarray) and isinstance(got, np.ndarray) and wanted.shape == got.shape


def _measure_largest(pairs: Iterable[tuple[Any, Any]]) -> float:
    return max(float(np.max(np.abs(_subtract(one, other)), initial=0.0)) for one, other in pairs)


def _measure_power(pairs: Iterable[tuple[Any, Any]]) -> float:
    errors = [_subtract(one, other) for one, other in pairs]
    return sum(float(np.sum(error**2)) for error in errors) / max(sum(e.size for e in errors), 1)


def _measure_ratio(exact: Sequence[Any], made: Sequence[Any]) -> float:
    """Return the signal-to-noise ratio over several tensors in dB; infinite without noise."""
    signal = noise = 0.0
    for wanted, got in zip(exact, made, strict=True):
        value = np.asarray(wanted).astype(np.float64)
        signal += float(np.sum(value[np.isfinite(value)] ** 2))
        noise += float(np.sum(_subtract(wanted, got) ** 2))
    if not noise:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal else float("-inf")


def _subtract(one: Any, other: Any) -> Array:
    """Return the finite differences of two tensors."""
    error = np.asarray(one).astype(np.float64) - np.asarray(other).astype(np.float64)
    return error[np.isfinite(error)]
