"""Special values of dtypes, and how they are spread over arrays."""

import numpy as np
import pytest

from byoc.model import to_numpy_dtype
from byoc.samples import count_turns, list_halves, list_special_values, spread_values


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_integers_reach_the_ends_of_their_type_and_the_limits_of_floats(dtype: str) -> None:
    limits = np.iinfo(dtype)
    found = [int(value) for value in list_special_values(dtype).finite]
    assert {int(limits.min), int(limits.max)} <= {*found}
    assert len(found) == len({*found})
    for limit in (2**24, 2**31, 2**53):
        near = {n for n in (limit - 1, limit, limit + 1) if n <= limits.max}
        assert near <= {*found}


def test_integers_stay_between_the_ends_that_are_given_and_reach_them() -> None:
    found = [int(value) for value in list_special_values("int64", -5, 1000).finite]
    assert (min(found), max(found)) == (-5, 1000)
    assert list_special_values("uint8", 300, 400).finite.size == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_have_zeros_of_both_signs_halves_denormals_and_what_is_no_number(dtype: str) -> None:
    values = list_special_values(dtype)
    numbers = values.finite.astype(np.float64)
    assert values.finite.dtype == to_numpy_dtype(dtype)
    assert np.isfinite(numbers[np.abs(numbers) < 1e5]).all()
    assert {True, False} == set(np.signbit(numbers[numbers == 0]).tolist())
    assert {0.5, 1.5, 2.5, -0.5, -1.5} <= {*numbers.tolist()}
    tiny = {"float16": 6e-8, "bfloat16": 1e-38, "float32": 2e-45, "float64": 5e-324}[dtype]
    assert ((numbers > 0) & (numbers <= tiny)).any()
    assert np.isinf(values.infinite.astype(np.float64)).all()
    assert np.isnan(values.nan.astype(np.float64)).all()


def test_what_is_no_number_of_whole_bytes_has_no_special_values() -> None:
    for dtype in ("string", "int4", "float8e4m3fn", "complex64"):
        values = list_special_values(dtype)
        assert values.finite.size == values.nan.size == values.infinite.size == 0


@pytest.mark.parametrize("scale", [0.1, 0.0078125, 1 / 3])
@pytest.mark.parametrize("zero", [0, 3, -7])
def test_halves_lie_between_two_steps(scale: float, zero: int) -> None:
    values = list_halves(np.float32([scale]), zero, "int8")
    assert values.size
    steps = values / np.float32(scale) + np.float32(zero)
    assert (steps.astype(np.float64) % 1 == 0.5).all()


def test_two_inputs_meet_in_all_pairs() -> None:
    values = np.arange(7)
    base = np.zeros(2 * 7 * 7, np.int64)
    one, other = (spread_values(base, values, number) for number in (0, 1))
    assert {*zip(one.tolist(), other.tolist(), strict=True)} == {
        (a, b) for a in range(7) for b in range(7)
    }


def test_equals_meet_first_and_then_the_ends() -> None:
    values = list_special_values("int32").finite
    base = np.zeros(2 * (len(values) + 20), np.int32)
    one, other = (spread_values(base, values, number) for number in (0, 1))
    pairs = [*zip(one.tolist(), other.tolist(), strict=True)]
    assert {(each, each) for each in values.tolist()} <= {*pairs}
    least, largest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    assert {(largest, least), (least, largest), (largest, 1), (1, largest), (least, -1)} <= {*pairs}


def test_small_inputs_meet_in_some_turns() -> None:
    values = np.array([10, 20, 30, 40])
    base = np.zeros(1, np.int64)
    pairs = {
        (int(spread_values(base, values, 0, turn)[0]), int(spread_values(base, values, 1, turn)[0]))
        for turn in range(count_turns([1, 1], len(values), 16))
    }
    assert {(a, a) for a in (10, 20, 30, 40)} | {(10, 20), (20, 10), (10, 30), (30, 10)} == pairs


def test_what_is_spread_leaves_the_rest() -> None:
    base = np.full((3, 4), 9.0, np.float32)
    made = spread_values(base, np.float32([1, 2]), every=3)
    assert made.reshape(-1).tolist() == [1, 9, 9, 1, 9, 9, 2, 9, 9, 2, 9, 9]
    assert (base == 9).all()
    assert count_turns([5], 12, 16) == 5
    assert count_turns([50, 100], 12, 16) == 3
    assert count_turns([1], 100, 16) == 16
