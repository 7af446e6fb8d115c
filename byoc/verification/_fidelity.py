"""The distance of a bundle from the float model, beside onnxruntime's with the same integers.

Two right executions of a quantized network may lie far apart, since a result that is rounded to the
other integer moves all that follows. What both keep is their distance from the float model, but for
chance and what onnxruntime itself loses with its optimizations. Where no float model is known, by how
much right executions of this network lie apart can be measured: onnxruntime with its optimizations, and
with an eighth of each layer's results moved by one unit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from byoc._dataclasses import dataclass, field, replace
from byoc.verification._noise import ROUNDING, NoiseGauge
from byoc.verification._quantization_noise import Thresholds
from byoc.verification._unit_noise import Fidelity, OutputError

Array = NDArray[Any]
Values = Mapping[str, Any]

SPREAD = "onnxruntime's own spread on this network"
_SIDES = 2.0  # onnxruntime is off by the spread to one side, the bundle to the other
_LEAST_LOSS = 1.0  # dB that a right bundle may lose against onnxruntime
_SPREAD_SAMPLES = 4  # which right executions are compared on
_DEVIATIONS = 4.0  # of a mean over all elements, which chance may explain
_FEW = 64  # elements: of fewer a ratio says little


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
        """Return the errors; those beyond their tolerance have what explains them, or do not.

        That is a distance from the float model, or onnxruntime's own spread. Where the float model is
        known, an output that is further from it than right executions are is off, though the noise of
        its activations explains the error. Limits of the user's hold.
        """
        return tuple(
            self._judge(error) if self._is_judged(error, thresholds) else error for error in errors
        )

    def _is_judged(self, error: OutputError, thresholds: Thresholds) -> bool:
        explained = error.within and (
            error.noise_source == ROUNDING or not self._knows_floats(error.name)
        )
        return not (
            error.is_tolerated
            or explained
            or not error.is_measurable
            or error.tie_break is not None
            or thresholds.is_asked(error.dtype, error.measure)
            or not self._gauges[0].quantized
        )

    def _knows_floats(self, name: str) -> bool:
        return any(name in run.exact for run in self.runs)

    def _judge(self, error: OutputError) -> OutputError:
        if not all(_are_alike(run, error.name) for run in self.runs):
            return error
        pairs = self._pair_with_floats(error.name)
        fidelity = self._measure_fidelity(error.name, pairs)
        if fidelity is None and error.within:
            return error
        if fidelity is not None and fidelity.within and self._is_near(error.name, pairs):
            return replace(error, fidelity=fidelity)
        count = sum(np.size(value) for value, _ in pairs)
        if fidelity is None or fidelity.within or not self._knows_floats(error.name) or count < _FEW:
            error = self._allow_spread(error)
        if error.noise_source == SPREAD:
            return error
        lost = None if fidelity is None or fidelity.within else fidelity
        return replace(error, fidelity=lost, noise=None, noise_source="")

    def _allow_spread(self, error: OutputError) -> OutputError:
        """Return an error with onnxruntime's own spread as its noise, where that explains it."""
        right = list(self._list_right(error.name))
        largest = max((_measure_largest(pairs) for pairs in right), default=0.0)
        power = max((_measure_power(pairs) for pairs in right), default=0.0)
        actual = [(run.expected[error.name], run.actual[error.name]) for run in self.runs]
        if error.absolute > _SIDES * largest or _measure_power(actual) > _SIDES * power:
            return error
        return replace(error, noise=_SIDES * largest, noise_source=SPREAD)

    def _pair_with_floats(self, name: str) -> list[tuple[Any, SampleRun]]:
        """Return pairs of the float model's output on a sample and the run on that sample.

        Without a float model it is the model with its activations in floating point, on a few samples.
        Where neither is known, there are none.
        """
        known = [(run.exact[name], run) for run in self.runs if name in run.exact]
        if not known:
            twins = [gauge.run_float_twin() for gauge in self._gauges]
            pairs = zip(twins, self.runs, strict=False)
            known = [(twin.get(name), run) for twin, run in pairs]
        alike = all(
            value is not None and np.shape(value) == np.shape(r.actual[name]) for value, r in known
        )
        return known if alike else []

    def _measure_fidelity(self, name: str, pairs: Sequence[tuple[Any, SampleRun]]) -> Fidelity | None:
        """Return the fidelity of an output; None where it says nothing.

        That is where there are no floats, where they are nothing but zeros, and where onnxruntime is no
        further from them than nothing.
        """
        exact = [value for value, _ in pairs]
        reference = _measure_ratio(exact, [run.expected[name] for _, run in pairs])
        if not np.isfinite(reference):
            return None
        bundle = _measure_ratio(exact, [run.actual[name] for _, run in pairs])
        spread = self._measure_spread(name, pairs)
        loss = spread + _LEAST_LOSS
        if not self._knows_floats(name):
            return Fidelity(bundle, reference, spread, reference - loss)
        own, other = (
            np.concatenate(
                [_subtract(one, each[name]).reshape(-1) for one, each in zip(exact, made, strict=True)]
            )
            for made in ([run.expected for _, run in pairs], [run.actual for _, run in pairs])
        )
        return Fidelity(bundle, reference, spread, reference - loss - _measure_chance(own, other, loss))

    def _measure_spread(self, name: str, pairs: Sequence[tuple[Any, SampleRun]]) -> float:
        """Measure by how many dB other right executions are noisier than plain onnxruntime; at least 0.

        Beside a float model that is onnxruntime with its optimizations alone.
        """
        few = pairs[: len(self._gauges)]
        exact = [value for value, _ in few]
        start = _measure_ratio(exact, [run.expected[name] for _, run in few])
        if not np.isfinite(start):
            return 0.0
        if self._knows_floats(name):
            right: list[list[Any]] = [[g.run_optimized().get(name) for g in self._gauges]]
        else:
            right = [[got for _, got in each] for each in self._list_right(name)]
        found = (
            _measure_ratio(exact, each[: len(few)])
            for each in right
            if all(np.shape(one) == np.shape(other) for one, other in zip(exact, each, strict=False))
        )
        return max([0.0, *(start - each for each in found if np.isfinite(each))])

    def _is_near(self, name: str, pairs: Sequence[tuple[Any, SampleRun]]) -> bool:
        """Return whether no element is further from the float model than twice those of onnxruntime.

        A ratio over all elements says little of a single one.
        """
        exact = [value for value, _ in pairs]
        right = [[run.expected[name] for _, run in pairs]]
        right += [[got for _, got in each] for each in self._list_right(name)]
        allowed = max(_measure_largest(zip(exact, each, strict=False)) for each in right)
        return _measure_largest((value, run.actual[name]) for value, run in pairs) <= _SIDES * allowed

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


def _measure_chance(reference: Array, actual: Array, loss: float) -> float:
    """Return by how many dB more than a loss a ratio may be lower, of elements that differ by chance.

    `reference` and `actual` are the errors of each element. What is compared are their means of squares,
    and such a mean has a standard deviation of its own.
    """
    power = float(np.mean(reference**2)) * 10 ** (loss / 10)
    more = actual**2 - reference**2 * 10 ** (loss / 10)
    deviation = float(np.std(more)) / np.sqrt(more.size)
    return float(10 * np.log10(1 + _DEVIATIONS * deviation / power)) if power else 0.0


def _subtract(one: Any, other: Any) -> Array:
    """Return the finite differences of two tensors."""
    error = np.asarray(one).astype(np.float64) - np.asarray(other).astype(np.float64)
    return error[np.isfinite(error)]
