"""Comparison of tensors: the largest error of each, and whether it is within its tolerance."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.errors import InputError
from byoc.numerics import compute_cosine, compute_same_class_share, compute_signal_to_noise
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, TOLERANCE, Measure, Thresholds


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one tensor.

    `relative` is `absolute` divided by the expected range (`Thresholds.error_scale`). Both are infinite
    if the tensors cannot be compared; `problem` then says why. `tolerance` limits the quantity that
    `measure` names: `relative` error, `units` in the last place of integers (the `absolute` error), or
    `dB`, the least signal-to-noise ratio. `signal_to_noise` (dB) and `cosine` are None if they do not
    exist, and `differing` is the share of elements that are not equal.
    """

    name: str
    dtype: str
    absolute: float
    relative: float
    tolerance: float
    problem: str = ""
    measure: Measure = "relative"
    signal_to_noise: float | None = None
    cosine: float | None = None
    differing: float | None = None

    @property
    def within(self) -> bool:
        """True if the error is within the tolerance."""
        match self.measure:
            case "units":
                return self.absolute <= self.tolerance
            case "dB":
                return self.signal_to_noise is not None and self.signal_to_noise >= self.tolerance
            case _:
                return self.relative <= self.tolerance

    @property
    def error_phrase(self) -> str:
        """Part of a sentence: `by 0.02 of its range, at most 0.0001 is allowed for float32`."""
        match self.measure:
            case "units":
                by, allowed = f"{self.absolute:g} units", f"at most {self.tolerance:g}"
            case "dB":
                noise = np.nan if self.signal_to_noise is None else self.signal_to_noise
                by, allowed = f"a noise of {noise:.1f} dB", f"no less than {self.tolerance:g} dB"
            case _:
                by, allowed = f"{self.relative:.2g} of its range", f"at most {self.tolerance:g}"
        return f"by {by}, {allowed} is allowed for {self.dtype}"

    def severity(self) -> tuple[bool, float]:
        """Return a sort key: errors beyond their tolerance last, then by size."""
        return not self.within, self.relative


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of an output in lower precision, compared with the original model's.

    `signal_to_noise` is in dB; `same_class` is the share of rows whose largest element is at the same
    index. Both are NaN if the outputs cannot be compared in this way.
    """

    name: str
    signal_to_noise: float
    same_class: float

    @property
    def exact(self) -> bool:
        """True if the output has no noise at all."""
        return self.signal_to_noise == np.inf


@dataclass(frozen=True, slots=True)
class RegionError:
    """The error of a region alone, on its real inputs, compared with its ONNX on plain onnxruntime.

    `outputs` has the worst error of each output over all `runs`: several in the body of a Loop, none if
    the region was not reached. `problem` says why it could not be run.
    """

    name: str
    outputs: tuple[OutputError, ...] = ()
    runs: int = 1
    problem: str = ""

    @property
    def within(self) -> bool:
        """True if the region ran and every output is within its tolerance."""
        return not self.problem and all(output.within for output in self.outputs)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=OutputError.severity, default=None)


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs of a bundle with those of `against`.

    `accuracy` compares with the model `original` if precision was lowered. `boundary` has every boundary
    tensor, compared with the same bundle whose regions run on plain onnxruntime, and `regions` each
    region alone; both are empty unless asked for, or if `not_compared` says why they are missing.
    `samples` is the number of samples that outputs were compared on.
    """

    against: str
    outputs: tuple[OutputError, ...]
    original: str = ""
    accuracy: tuple[Accuracy, ...] = ()
    boundary: tuple[OutputError, ...] = ()
    regions: tuple[RegionError, ...] = ()
    not_compared: str = ""
    samples: int = 1

    @property
    def passed(self) -> bool:
        """True if everything that was compared is within its tolerance."""
        tensors = (*self.outputs, *self.boundary)
        return all(each.within for each in tensors) and all(each.within for each in self.regions)

    @property
    def largest_relative_error(self) -> float | None:
        """The largest relative error of an output; None if one is not finite."""
        largest = float(np.max([output.relative for output in self.outputs], initial=0.0))
        return largest if np.isfinite(largest) else None

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=OutputError.severity, default=None)


def require_passed(verification: Verification) -> None:
    """Raise InputError if an error is beyond its tolerance.

    The message names the worst output and the first wrong region; without these the worst boundary
    tensor.
    """
    regions = [region for region in verification.regions if not region.within]
    worst = verification.worst
    problems = []
    if worst is not None and not worst.within:
        problems.append(_describe_error(f"output '{worst.name}'", worst, verification.against))
    if regions:
        problems.append(_describe_region_error(regions[0]))
    tensor = max(verification.boundary, key=OutputError.severity, default=None)
    if not problems and tensor is not None and not tensor.within:
        problems.append(_describe_error(f"tensor '{tensor.name}'", tensor, "that of plain onnxruntime"))
    if problems:
        raise InputError(f"verification failed: {'; '.join(problems)}")


def _describe_error(tensor: str, error: OutputError, against: str) -> str:
    if error.problem:
        return f"{tensor} {error.problem}, compared with {against}"
    return f"{tensor} differs from {against} {error.error_phrase}"


def _describe_region_error(region: RegionError) -> str:
    worst = region.worst
    if worst is None or region.problem:
        return f"region {region.name} {region.problem}"
    tensor = f"region {region.name} alone: output '{worst.name}'"
    return _describe_error(tensor, worst, "its own ONNX on plain onnxruntime")


def compare_tensors(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    quantized: Collection[str] = frozenset(),
) -> Iterable[OutputError]:
    """Yield the error of each expected output; a sequence is compared element by element.

    Integers must be equal, except in the outputs named in `quantized`.
    """
    for name, value in expected.items():
        got = actual.get(name)
        if value is None and name in actual:  # an optional that holds nothing
            nothing = OutputError(name, "optional", 0.0, 0.0, 0.0)
            yield nothing if got is None else _incomparable(name, "optional", "is not empty")
        elif got is None:
            dtype = "sequence" if isinstance(value, list) else str(np.asarray(value).dtype)
            allowed = thresholds.relative.get(dtype, 0.0)
            yield _incomparable(name, dtype, "is empty" if name in actual else "is missing", allowed)
        elif isinstance(value, list) and isinstance(got, list) and len(value) == len(got):
            for i, (one, other) in enumerate(zip(value, got, strict=True)):
                yield _tensor_error(f"{name}[{i}]", one, other, thresholds, name in quantized)
        elif isinstance(value, list) or isinstance(got, list):
            yield _incomparable(name, "sequence", "is a sequence of another length, or none")
        else:
            yield _tensor_error(name, value, got, thresholds, name in quantized)


def _tensor_error(
    name: str, expected: Any, actual: Any, thresholds: Thresholds, quantized: bool
) -> OutputError:
    """Compute the error of one tensor."""
    wanted, got = _as_array(expected), _as_array(actual)
    dtype = str(wanted.dtype)
    tolerance, measure = thresholds.limit_for(dtype, quantized)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        found, expects = (f"{a.dtype}{list(a.shape)}" for a in (got, wanted))
        return _incomparable(name, dtype, f"is {found} instead of {expects}", tolerance)
    if dtype not in TOLERANCE and measure != "units":
        if not _arrays_equal(wanted, got):
            return _incomparable(
                name, dtype, f"is not equal, as {dtype} must be", share=_differing_share(wanted, got)
            )
        return OutputError(name, dtype, 0.0, 0.0, tolerance, differing=0.0)
    share = _differing_share(wanted, got)
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], got[~finite], equal_nan=True) or not np.all(
        np.isfinite(got[finite])
    ):
        return _incomparable(name, dtype, "has NaN or infinity in other places", tolerance, share)
    values, found = wanted[finite], got[finite]
    absolute = float(np.max(np.abs(values - found), initial=0.0))
    span = float(np.ptp(values)) if values.size else 0.0
    scale = thresholds.error_scale(dtype, span, float(np.max(np.abs(values), initial=0.0)))
    noise, angle = compute_signal_to_noise(values, found), compute_cosine(values, found)
    return OutputError(
        name, dtype, absolute, absolute / scale, tolerance, "", measure, noise, angle, share
    )


def _differing_share(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """Return the share of elements that are not equal; NaN equals NaN."""
    if not wanted.size:
        return 0.0
    same = wanted == got
    if wanted.dtype.kind != "O":
        same |= (wanted != wanted) & (got != got)  # noqa: PLR0124 - NaN, of ml_dtypes' too
    return float(np.mean(~np.asarray(same, bool)))


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array; strings as objects, since numpy's string types have a fixed length."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def _arrays_equal(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are the same; NaN, which float8 and complex have too, equals NaN."""
    if wanted.dtype.name.startswith("float"):  # numpy does not know ml_dtypes' to be floats
        wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    return np.array_equal(wanted, got, equal_nan=wanted.dtype.kind in "fc")


def _incomparable(
    name: str, dtype: str, problem: str, tolerance: float = 0.0, share: float | None = None
) -> OutputError:
    return OutputError(name, dtype, np.inf, np.inf, tolerance, problem, differing=share)


def measure_accuracy(original: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterable[Accuracy]:
    """Yield the accuracy of each output that is an array of floats."""
    for name, value in original.items():
        got = actual.get(name)
        if (
            isinstance(value, np.ndarray)
            and isinstance(got, np.ndarray)
            and str(value.dtype) in TOLERANCE
        ):
            yield Accuracy(
                name, compute_signal_to_noise(value, got), compute_same_class_share(value, got)
            )
