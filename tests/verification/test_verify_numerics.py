"""Measures of the distance between arrays, compared with their definitions."""

from dataclasses import replace
from math import inf, isnan, log10, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from byoc.numerics import (
    compute_cosine,
    compute_powers,
    compute_same_class_share,
    compute_signal_to_noise,
    convert_to_db,
)
from byoc.verification import DEFAULT_THRESHOLDS, compare_tensors

_numbers = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=1, max_size=20)


def array(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_a_tenth_of_the_amplitude_is_20_db() -> None:
    assert compute_signal_to_noise(array(1, -1, 2), array(1.1, -1.1, 2.2)) == pytest.approx(20, abs=1e-4)
    assert compute_signal_to_noise(array(3, 4), array(3, 3)) == pytest.approx(10 * log10(25))


def test_what_is_equal_and_what_is_zero() -> None:
    assert compute_signal_to_noise(array(1, 2), array(1, 2)) == inf
    assert compute_signal_to_noise(array(0, 0), array(0, 0)) == inf
    assert compute_signal_to_noise(array(0, 0), array(0, 1)) == -inf
    assert compute_signal_to_noise(array(), array()) == inf
    assert convert_to_db(100, 1) == 20


@pytest.mark.parametrize("other", [array(1, np.nan), array(1), array(1, 2).reshape(1, 2)])
def test_what_cannot_be_compared(other: NDArray[np.float32]) -> None:
    assert isnan(compute_signal_to_noise(array(1, 2), other))
    assert isnan(compute_signal_to_noise(other, array(1, 2)))
    assert all(map(isnan, compute_powers(array(1, 2), array(1)))), "shapes differ"
    assert isnan(compute_cosine(array(1, 2), array(1)))
    assert isnan(compute_cosine(array(1, 2), array(1, np.nan)))


def test_infinity_is_told_without_a_warning() -> None:
    assert compute_signal_to_noise(array(1, 2), array(1, inf)) == -inf
    assert compute_signal_to_noise(array(1, inf), array(1, inf)) == inf
    assert isnan(compute_signal_to_noise(array(1, inf), array(1, 2)))
    assert isnan(compute_signal_to_noise(array(inf), array(-inf)))
    assert isnan(compute_cosine(array(1, 2), array(1, inf)))
    assert convert_to_db(5, inf) == -inf


def test_what_float16_cannot_square() -> None:
    large = np.array([300, 300], np.float16)  # 300 squared is above what a float16 holds
    assert compute_signal_to_noise(large, large - np.float16(30)) == pytest.approx(20)
    assert compute_cosine(large, large) == pytest.approx(1)


def test_the_angle() -> None:
    assert compute_cosine(array(1, 0), array(1, 1)) == pytest.approx(1 / sqrt(2))
    assert compute_cosine(array(1, 2), array(-2, -4)) == pytest.approx(-1)
    assert compute_cosine(array(0, 0), array(0, 0)) == 1
    assert compute_cosine(array(0, 0), array(0, 1)) == 0


@given(_numbers, st.data())
def test_powers_of_parts_add_up(values: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=len(values), max_size=len(values)))
    one, two = np.array(values), np.array(other)
    cut = data.draw(st.integers(0, len(values)))
    parts = np.add(compute_powers(one[:cut], two[:cut]), compute_powers(one[cut:], two[cut:]))
    assert parts == pytest.approx(compute_powers(one, two))
    assert compute_powers(one, two) == pytest.approx(
        (sum(v * v for v in values), np.sum((two - one) ** 2))
    )


def test_the_largest_of_each_row() -> None:
    expected = array(1, 2, 3, 9, 8, 7).reshape(2, 3)
    assert compute_same_class_share(expected, array(0, 0, 1, 0, 1, 0).reshape(2, 3)) == 0.5
    assert compute_same_class_share(expected, expected / 2) == 1
    assert compute_same_class_share(expected[0], expected[1]) == 0


def test_what_has_no_class() -> None:
    assert isnan(compute_same_class_share(array(1, 2), array(1, 2, 3)))
    assert isnan(compute_same_class_share(array(), array()))
    assert isnan(compute_same_class_share(np.float32(1).reshape(()), np.float32(1).reshape(())))


def test_nothing_is_the_largest_where_a_value_is_none() -> None:
    broken = array(np.nan, 2)
    assert compute_same_class_share(array(3, 2), broken) == 0
    assert compute_same_class_share(array(1, 2), broken) == 0
    assert compute_same_class_share(broken, broken) == 0


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "actual", "absolute", "relative", "differing", "problem"),
    [
        (f32(0, 1, 5), f32(0, 1, 5), 0, 0, 0, ""),
        (f32(0, 1, 5, 3), f32(0, 1.5, 5, 3), 0.5, 0.1, 0.25, ""),
        (f32(2, 2), f32(2, 3), 1, 0.5, 0.5, ""),  # no range: of the magnitude
        (f32(0, 0), f32(0.5, 0), 0.5, 0.5, 0.5, ""),  # nor a magnitude
        (f32(1000, 1001), f32(1000, 1002), 1, 1 / (4 * 2.0**-23 / 1e-4 * 1001), 0.5, ""),
        (f32(), f32(), 0, 0, 0, ""),
        (f32(np.nan, 1, 3, 4), f32(np.nan, 1, 3, 4), 0, 0, 0, ""),
        (f32(np.nan, 1, 3, 4), f32(np.nan, 1, 3, 7), 3, 1, 0.25, ""),
        (f32(np.nan, 1), f32(1, 1), inf, inf, 0.5, "has NaN or infinity in other places"),
        (f32(1, 2), f32(1, np.nan), inf, inf, 0.5, "has NaN or infinity in other places"),
        (f32(np.inf, 2), f32(-np.inf, 2), inf, inf, 0.5, "has NaN or infinity in other places"),
        (f32(np.inf, 2, 6), f32(np.inf, 2, 5), 1, 0.25, 1 / 3, ""),
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4]), 0, 0, 0, ""),
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), inf, inf, 0.25, "is not equal, as int64 must"),
        (np.array([True, False]), np.array([False, True]), inf, inf, 1, "is not equal, as bool must be"),
        (np.array(["a", "b"]), np.array(["a", "c"]), inf, inf, 0.5, "is not equal, as object must be"),
        (np.array(["a", "b"]), np.array(["a", "b"], object), 0, 0, 0, ""),
        (
            np.array([1 + 1j, complex(np.nan, 1)]),
            np.array([1 + 1j, complex(np.nan, 1)]),
            *(0, 0, 0, ""),
        ),
        (f32(1), np.array([1.0]), inf, inf, None, "is float64[1] instead of float32[1]"),
        (f32(1), f32(1, 1), inf, inf, None, "is float32[2] instead of float32[1]"),
        (f32(1), None, inf, inf, None, "is empty"),
        (None, None, 0, 0, None, ""),
        (None, f32(1), inf, inf, None, "is not empty"),
        ([f32(1)], [f32(1), f32(2)], inf, inf, None, "is a sequence of another length, or none"),
        ([f32(1)], f32(1), inf, inf, None, "is a sequence of another length, or none"),
        ({"a": 1.0, "b": 3.0}, {"b": 4.0, "a": 1.0}, 1, 0.5, 0.5, ""),
        ({"a": 1.0}, {"b": 1.0}, inf, inf, None, "has other keys"),
    ],
)
def test_errors_of_tensors_by_hand(  # noqa: PLR0917
    expected: object,
    actual: object,
    absolute: float,
    relative: float,
    differing: float | None,
    problem: str,
) -> None:
    (found,) = compare_tensors({"y": expected}, {"y": actual}, DEFAULT_THRESHOLDS)
    assert found.absolute == pytest.approx(absolute)
    assert found.relative == pytest.approx(relative)
    assert found.differing == (None if differing is None else pytest.approx(differing))
    assert found.problem.startswith(problem)
    assert bool(found.problem) == bool(problem)
    assert found.within == (relative <= 1e-4)


def test_sequences_are_compared_one_by_one_and_what_is_missing_is_said() -> None:
    pairs = {"y": [f32(0, 4), f32(1, 3)]}, {"y": [f32(0, 4), f32(1, 2)]}
    found = list(compare_tensors(*pairs, DEFAULT_THRESHOLDS))
    assert [(each.name, each.absolute, each.relative) for each in found] == [
        ("y[0]", 0, 0),
        ("y[1]", 1, 0.5),
    ]
    (missing,) = compare_tensors({"y": f32(1)}, {}, DEFAULT_THRESHOLDS)
    assert (missing.problem, missing.tolerance, missing.dtype) == ("is missing", 1e-4, "float32")
    (missing,) = compare_tensors({"y": [f32(1)]}, {"x": 1}, DEFAULT_THRESHOLDS)
    assert (missing.problem, missing.tolerance, missing.dtype) == ("is missing", 0, "sequence")


@pytest.mark.parametrize(("units", "within"), [(1, True), (0.5, False), (2, True)])
def test_quantized_integers_differ_by_units(units: float, within: bool) -> None:
    thresholds = replace(DEFAULT_THRESHOLDS, units=units)
    wanted, got = (np.array(values, np.int8) for values in ([1, 2, -3, 4], [1, 2, -2, 4]))
    (found,) = compare_tensors({"q": wanted}, {"q": got}, thresholds, {"q"})
    assert (found.absolute, found.measure, found.tolerance) == (1, "units", units)
    assert (found.within, found.differing) == (within, 0.25)
    (found,) = compare_tensors({"q": wanted}, {"q": got}, thresholds)
    assert not found.within
