"""Comparing tensors: the largest error of each, and whether it is within what is allowed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.errors import InputError
from byoc.numerics import cosine, same_class, signal_to_noise
from byoc.verify.thresholds import DEFAULT, TOLERANCE, Measure, Thresholds


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far a tensor is off. `relative` is `absolute` over the expected range (max - min), or
    over what that counts as where it is next to nothing (`Thresholds.scale`).

    Both are infinite where the two cannot be compared; `problem` then says why. `tolerance` bounds
    what `measure` names: `relative`; `units` of the last place of integers, which is `absolute`; or
    `dB`, in which the signal-to-noise ratio is to be no less. `signal_to_noise` (dB) and `cosine` are
    None where there are none, and `differing` is the share of elements that are not equal.
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
        """Return whether the error is at most the tolerance."""
        match self.measure:
            case "units":
                return self.absolute <= self.tolerance
            case "dB":
                return self.signal_to_noise is not None and self.signal_to_noise >= self.tolerance
            case _:
                return self.relative <= self.tolerance

    @property
    def told(self) -> str:
        """The error as a part of a sentence: ` by 0.02 of its range, at most 0.0001 is allowed ...`."""
        match self.measure:
            case "units":
                by, allowed = f"{self.absolute:g} units", f"at most {self.tolerance:g}"
            case "dB":
                found = np.nan if self.signal_to_noise is None else self.signal_to_noise
                by, allowed = f"a noise of {found:.1f} dB", f"no less than {self.tolerance:g} dB"
            case _:
                by, allowed = f"{self.relative:.2g} of its range", f"at most {self.tolerance:g}"
        return f"by {by}, {allowed} is allowed for {self.dtype}"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What an output in lower precision has left of that of the original.

    `signal_to_noise` is in dB; `same_class` is the share of rows whose largest element is where it was.
    Not a number where the outputs cannot be compared so.
    """

    name: str
    signal_to_noise: float
    same_class: float


@dataclass(frozen=True, slots=True)
class RegionError:
    """How far a region alone is off, on what really reaches it, from its own ONNX on plain onnxruntime.

    `outputs` has the worst error of each over its `runs`: more than one in the body of a Loop, none
    where the region was not reached. `problem` says why it could not be run.
    """

    name: str
    outputs: tuple[OutputError, ...] = ()
    runs: int = 1
    problem: str = ""

    @property
    def within(self) -> bool:
        """Return whether it ran and every output is within its tolerance."""
        return not self.problem and all(output.within for output in self.outputs)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error over tolerance; None when there are no outputs."""
        return max(self.outputs, key=_excess, default=None)


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs; `against` says what the bundle was compared with.

    `accuracy` has what lower precision cost, where the model was quantized on the way, against
    `original`. `boundary` has every tensor that crosses a region's border, compared with the same bundle
    whose regions plain onnxruntime runs, and `regions` each region alone; both are empty where only
    the outputs were asked for, or where `not_compared` says why there are none.
    """

    against: str
    outputs: tuple[OutputError, ...]
    original: str = ""
    accuracy: tuple[Accuracy, ...] = ()
    boundary: tuple[OutputError, ...] = ()
    regions: tuple[RegionError, ...] = ()
    not_compared: str = ""

    @property
    def passed(self) -> bool:
        """Return whether all that was compared is within its tolerance."""
        tensors = (*self.outputs, *self.boundary)
        return all(each.within for each in tensors) and all(each.within for each in self.regions)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error over tolerance; None when there are no outputs."""
        return max(self.outputs, key=_excess, default=None)


def require(verification: Verification) -> None:
    """Raise InputError when something is off by more than its tolerance.

    It names the worst output and the first region that is off; without such a tensor of the boundary.
    """
    regions = [region for region in verification.regions if not region.within]
    worst = verification.worst
    told = []
    if worst is not None and not worst.within:
        told.append(_told(f"output '{worst.name}'", worst, verification.against))
    if regions:
        told.append(_region_told(regions[0]))
    tensor = max(verification.boundary, key=_excess, default=None)
    if not told and tensor is not None and not tensor.within:
        told.append(_told(f"tensor '{tensor.name}'", tensor, "that of plain onnxruntime"))
    if told:
        raise InputError(f"verification failed: {'; '.join(told)}")


def _told(what: str, error: OutputError, against: str) -> str:
    if error.problem:
        return f"{what} {error.problem}, compared with {against}"
    return f"{what} differs from {against} {error.told}"


def _region_told(region: RegionError) -> str:
    worst = region.worst
    if worst is None or region.problem:
        return f"region {region.name} {region.problem}"
    what = f"region {region.name} alone: output '{worst.name}'"
    return _told(what, worst, "its own ONNX on plain onnxruntime")


def compare(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    thresholds: Thresholds = DEFAULT,
    quantized: Collection[str] = frozenset(),
) -> Iterable[OutputError]:
    """Yield the error of each expected output; a sequence is compared element by element.

    Integers must be equal, but for those of the outputs in `quantized`.
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
                yield _error(f"{name}[{i}]", one, other, thresholds, name in quantized)
        elif isinstance(value, list) or isinstance(got, list):
            yield _incomparable(name, "sequence", "is a sequence of another length, or none")
        else:
            yield _error(name, value, got, thresholds, name in quantized)


def _error(
    name: str, expected: Any, actual: Any, thresholds: Thresholds, quantized: bool
) -> OutputError:
    wanted, got = _array(expected), _array(actual)
    dtype = str(wanted.dtype)
    tolerance, measure = thresholds.of(dtype, quantized)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        found, expects = (f"{a.dtype}{list(a.shape)}" for a in (got, wanted))
        return _incomparable(name, dtype, f"is {found} instead of {expects}", tolerance)
    if dtype not in TOLERANCE and measure != "units":
        if not _equal(wanted, got):
            return _incomparable(
                name, dtype, f"is not equal, as {dtype} must be", share=_share(wanted, got)
            )
        return OutputError(name, dtype, 0.0, 0.0, tolerance, differing=0.0)
    share = _share(wanted, got)
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    usual = np.isfinite(wanted)
    if not np.array_equal(wanted[~usual], got[~usual], equal_nan=True) or not np.all(
        np.isfinite(got[usual])
    ):
        return _incomparable(name, dtype, "has NaN or infinity in other places", tolerance, share)
    values, found = wanted[usual], got[usual]
    absolute = float(np.max(np.abs(values - found), initial=0.0))
    span = float(np.ptp(values)) if values.size else 0.0
    scale = thresholds.scale(dtype, span, float(np.max(np.abs(values), initial=0.0)))
    noise, angle = signal_to_noise(values, found), cosine(values, found)
    return OutputError(
        name, dtype, absolute, absolute / scale, tolerance, "", measure, noise, angle, share
    )


def _share(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """Return the share of elements that are not equal; NaN equals NaN."""
    if not wanted.size:
        return 0.0
    same = wanted == got
    if wanted.dtype.kind != "O":
        same |= (wanted != wanted) & (got != got)  # noqa: PLR0124 - NaN, of ml_dtypes' too
    return float(np.mean(~np.asarray(same, bool)))


def _array(value: Any) -> np.ndarray[Any, Any]:
    """Return an array; strings always as objects, since numpy's own kind holds the longest's length."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def _equal(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are the same; NaN, which float8 and complex have too, equals NaN."""
    if wanted.dtype.name.startswith("float"):  # numpy does not know ml_dtypes' to be floats
        wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    return np.array_equal(wanted, got, equal_nan=wanted.dtype.kind in "fc")


def _incomparable(
    name: str, dtype: str, problem: str, tolerance: float = 0.0, share: float | None = None
) -> OutputError:
    return OutputError(name, dtype, np.inf, np.inf, tolerance, problem, differing=share)


def _excess(output: OutputError) -> tuple[bool, float]:
    return (not output.within, output.relative)


def accuracy(original: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterable[Accuracy]:
    """Yield what each output that is an array of floats has left of the original's."""
    for name, value in original.items():
        got = actual.get(name)
        if (
            isinstance(value, np.ndarray)
            and isinstance(got, np.ndarray)
            and str(value.dtype) in TOLERANCE
        ):
            yield Accuracy(name, signal_to_noise(value, got), same_class(value, got))
