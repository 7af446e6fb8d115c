"""Comparison of tensors: the largest error of each, and the accuracy that lower precision left."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from byoc.numerics import compute_cosine, compute_same_class_share, compute_signal_to_noise
from byoc.samples import read_map_values
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, TOLERANCE, Thresholds
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import Accuracy


def compare_tensors(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    quantized: Collection[str] = frozenset(),
) -> Iterable[OutputError]:
    """Yield the error of each expected output; a sequence is compared element by element.

    Maps must have the same keys, in a sequence of maps each; their values are compared as one tensor.
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
        elif _list_maps(value):
            yield _map_error(name, _list_maps(value), _list_maps(got), thresholds)
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
    ratio, cosine = compute_signal_to_noise(values, found), compute_cosine(values, found)
    return OutputError(
        name, dtype, absolute, absolute / scale, tolerance, "", measure, ratio, cosine, share
    )


def _list_maps(value: Any) -> list[dict[Any, Any]]:
    """Return a map, or those of a sequence of maps, empty for any other value."""
    maps = value if isinstance(value, list) else [value]
    return maps if all(isinstance(each, dict) for each in maps) else []


def _map_error(
    name: str, expected: list[dict[Any, Any]], actual: list[dict[Any, Any]], thresholds: Thresholds
) -> OutputError:
    """Compute the error of the values of maps, of all maps together."""
    values = read_map_values(expected)
    if [sorted(each) for each in expected] != [sorted(each) for each in actual]:
        dtype = str(values.dtype)
        return _incomparable(name, dtype, "has other keys", thresholds.relative.get(dtype, 0.0))
    ordered = [{key: other[key] for key in each} for each, other in zip(expected, actual, strict=True)]
    return _tensor_error(name, values, read_map_values(ordered).astype(values.dtype), thresholds, False)


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
