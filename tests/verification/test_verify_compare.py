"""Comparing outputs, by numbers worked out by hand."""

from math import inf
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from byoc.verification import TOLERANCE, OutputError, Verification, compare_tensors


def _one(expected: Any, actual: Any) -> OutputError:
    (error,) = compare_tensors({"y": expected}, {"y": actual})
    assert error.name == "y"
    return error


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "actual", "absolute", "relative"),
    [
        pytest.param(f32(0, 10), f32(0, 11), 1, 0.1, id="range of ten"),
        pytest.param(f32(-2, 2), f32(-2.5, 2.25), 0.5, 0.125, id="the largest of two errors"),
        pytest.param(f32(100, 101), f32(100, 101.5), 0.5, 0.5, id="the range, not the magnitude"),
        pytest.param(f32(1, 2, 3), f32(1, 2, 3), 0, 0, id="equal"),
        pytest.param(f32(4, 4), f32(4, 5), 1, 0.25, id="no range: the magnitude"),
        pytest.param(f32(-4), f32(-5), 1, 0.25, id="one number"),
        pytest.param(f32(0, 0), f32(0, 0.5), 0.5, 0.5, id="all zero: absolute"),
        pytest.param(f32(), f32(), 0, 0, id="empty"),
        pytest.param(np.float32(2).reshape(()), np.float32(3).reshape(()), 1, 0.5, id="scalar"),
        pytest.param(f32(np.nan, 1, 3), f32(np.nan, 1, 4), 1, 0.5, id="NaN in the same place"),
        pytest.param(f32(inf, -inf, 0, 4), f32(inf, -inf, 1, 4), 1, 0.25, id="infinities in place"),
        pytest.param(f32(np.nan, inf), f32(np.nan, inf), 0, 0, id="nothing finite"),
        pytest.param(f32(np.nan, 1), f32(1, np.nan), inf, inf, id="NaN in another place"),
        pytest.param(f32(1, 2), f32(1, np.nan), inf, inf, id="NaN where a number was"),
        pytest.param(f32(1, np.nan), f32(1, 2), inf, inf, id="a number where NaN was"),
        pytest.param(f32(1, inf), f32(1, -inf), inf, inf, id="the other infinity"),
        pytest.param(f32(1, 2), f32(1, inf), inf, inf, id="infinity where a number was"),
        pytest.param(f32(np.nan), f32(inf), inf, inf, id="infinity where NaN was"),
    ],
)
def test_floats(expected: Any, actual: Any, absolute: float, relative: float) -> None:
    error = _one(expected, actual)
    assert error.absolute == absolute
    assert error.relative == pytest.approx(relative)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float64", 1e-4), ("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 5e-2)],
)
def test_the_tolerance_of_each_float(dtype: str, tolerance: float) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    base = np.array([0, 64], np.float64)
    error = _one(base.astype(kind), base.astype(kind))
    assert (error.dtype, error.tolerance, error.relative) == (dtype, tolerance, 0)
    # 64 units of range: an error of one unit is 1/64, between the tolerances of the two halves.
    off = _one(base.astype(kind), np.array([1, 64]).astype(kind))
    assert off.relative == 1 / 64
    assert off.within == (dtype == "bfloat16")


def test_an_error_as_large_as_the_tolerance_is_within() -> None:
    assert OutputError("y", "float32", 1, 1e-4, 1e-4).within
    assert not OutputError("y", "float32", 1, 1.0001e-4, 1e-4).within
    assert not OutputError("y", "float32", np.nan, np.nan, 1e-4).within


def test_half_precision_does_not_overflow_on_the_way() -> None:
    error = _one(np.array([-60000, 60000], np.float16), np.array([60000, 60000], np.float16))
    assert error.absolute == pytest.approx(120000, rel=1e-3)
    assert error.relative == 1


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([2**53]), np.array([2**53 + 1]), False),
        (np.array([255], np.uint8), np.array([0], np.uint8), False),
        (np.array([True, False]), np.array([True, False]), True),
        (np.array([True, False]), np.array([True, True]), False),
        (np.array(["a", "é"], object), np.array(["a", "é"], object), True),
        (np.array(["a", "é"], object), np.array(["a", "e"], object), False),
        (np.array([], np.int64), np.array([], np.int64), True),
        (np.array(7), np.array(7), True),
        (np.array([1], np.int32), np.array([1], np.int64), False),
        (f32(1, 2), np.array([1, 2], np.float64), False),
        (f32(1, 2), f32(1, 2, 3), False),
        (f32(1, 2), f32(1, 2).reshape(1, 2), False),
        (f32(), f32().reshape(0, 3), False),
    ],
)
def test_what_must_be_equal(expected: Any, actual: Any, same: bool) -> None:
    error = _one(expected, actual)
    assert error.within == same
    assert error.relative == error.absolute == (0 if same else inf)


def test_a_missing_output_is_infinitely_wrong() -> None:
    (error,) = compare_tensors({"y": f32(1)}, {})
    assert error == OutputError("y", "float32", inf, inf, 1e-4, "is missing")


def test_a_sequence_is_compared_element_by_element() -> None:
    expected = [f32(0, 1), f32(0, 1, 2), f32()]
    errors = list(compare_tensors({"s": expected}, {"s": [f32(0, 1), f32(0, 1, 4), f32()]}))
    assert [(e.name, e.relative) for e in errors] == [("s[0]", 0), ("s[1]", 1), ("s[2]", 0)]
    assert list(compare_tensors({"s": []}, {"s": []})) == []


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([f32(1), f32(1, 2)], [f32(1)]),
        ([f32(1)], [f32(1), f32(1, 2)]),
        ([f32(1), f32(1, 2)], None),
        ([f32(1), f32(1, 2)], f32(1)),
        (f32(1), [f32(1), f32(1, 2)]),
    ],
)
def test_a_sequence_of_another_length_is_infinitely_wrong(expected: Any, actual: Any) -> None:
    error = _one(expected, actual)
    assert (error.relative, error.within) == (inf, False)


def test_outputs_keep_their_order_and_the_worst_is_found() -> None:
    expected = {"a": f32(0, 1), "b": np.array([1]), "c": np.array([0, 1], np.float16)}
    actual = {"c": np.array([0, 1.005], np.float16), "b": np.array([1]), "a": f32(0, 1.0002)}
    found = Verification("m", tuple(compare_tensors(expected, actual)))
    assert [output.name for output in found.outputs] == ["a", "b", "c"]
    assert not found.passed
    assert found.worst is not None
    # c is off by more, but within what its dtype allows.
    assert found.worst.name == "a"


def test_no_outputs_are_no_error() -> None:
    nothing = Verification("m", ())
    assert nothing.passed
    assert nothing.worst is None


def test_the_documented_tolerances() -> None:
    assert TOLERANCE == {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, np.complex64],
)
def test_nan_equals_nan_where_values_must_be_equal(dtype: Any) -> None:
    values = np.array([1, np.nan], np.float32).astype(dtype)

    assert _one(values, values.copy()).within
    assert not _one(values, values[::-1]).within


def test_text_is_text_in_either_form() -> None:
    assert _one(np.array(["a", "bc"], object), np.array(["a", "bc"])).within
    assert not _one(np.array(["a", "bc"], object), np.array(["a", "b"])).within


def test_an_empty_optional_equals_nothing_but_itself() -> None:
    assert _one(None, None).within
    assert _one(None, f32(1)).problem == "is not empty"
    assert _one(f32(1), None).problem == "is empty"
    (missing,) = compare_tensors({"y": None}, {})
    assert missing.problem == "is missing"


MAPS = [{1: 0.25, 2: 0.75}, {2: 0.5, 1: 0.5}]


def _change(row: int, key: Any, value: Any) -> list[dict[Any, Any]]:
    changed = [dict(each) for each in MAPS]
    changed[row][key] = value
    return changed


@pytest.mark.parametrize(
    ("actual", "relative", "problem"),
    [
        pytest.param(MAPS, 0, "", id="equal"),
        pytest.param([dict(reversed(each.items())) for each in MAPS], 0, "", id="another order of keys"),
        pytest.param(_change(0, 1, 0.25 + 2**-16), 2**-15, "", id="of the range of all values"),
        pytest.param(_change(1, 1, 1.0), 1, "", id="far off"),
        pytest.param(_change(0, 1, np.nan), inf, "has NaN", id="NaN"),
        pytest.param(_change(0, 3, 0.1), inf, "has other keys", id="one key more"),
        pytest.param(MAPS[:1], inf, "has other keys", id="one map less"),
        pytest.param([f32(1), f32(2)], inf, "has other keys", id="no maps"),
        pytest.param(f32(1), inf, "has other keys", id="a tensor"),
    ],
)
def test_the_values_of_maps_are_compared_as_one_tensor(
    actual: Any, relative: float, problem: str
) -> None:
    error = _one(MAPS, actual)
    assert error.dtype == "float32", "Python's floats are what onnxruntime makes of float32"
    assert error.relative == pytest.approx(relative)
    assert error.problem.startswith(problem)
    assert error.within == (relative < 1e-4)


def test_values_of_maps_that_are_no_floats_must_be_equal() -> None:
    assert _one({"a": 1, "b": 2}, {"a": 1, "b": 2}).within
    assert not _one({"a": 1, "b": 2}, {"a": 1, "b": 3}).within
    assert _one([{1: "x"}], [{1: "x"}]).within
    assert not _one([{1: "x"}], [{1: "z"}]).within
    assert _one([{}], [{}]).within
    assert _one({1: 0.1}, {1: 0.1}).dtype == "float64", "no float32 is 0.1"
