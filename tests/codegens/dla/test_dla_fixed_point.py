"""The dla's integer arithmetic against exact fractions, and against ONNX's QuantizeLinear."""

from fractions import Fraction

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    requantize,
    round_half_even,
    saturate,
    shift_half_even,
    to_common_multipliers,
    to_multiplier,
)
from dla_bench import onnx_run
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError

INT32 = st.integers(-(2**31), 2**31 - 1)
FACTORS = st.floats(2.0**-31, 2.0**20)


@given(FACTORS)
def test_a_multiplier_is_its_factor_to_31_bits(factor: float):
    mantissa, shift = to_multiplier(factor)
    assert 2**30 <= mantissa < 2**31
    assert 0 <= shift <= 62
    made = Fraction(mantissa, 2**shift)
    assert abs(made / Fraction(factor) - 1) <= Fraction(1, 2**31)


@pytest.mark.parametrize("factor", [2.0**power for power in range(-32, 31)])
def test_powers_of_two_are_exact(factor: float):
    mantissa, shift = to_multiplier(factor)
    assert Fraction(mantissa, 2**shift) == Fraction(factor)


@pytest.mark.parametrize("factor", [0.0, 2.0**-34, 1e-300])
def test_a_factor_that_takes_all_to_zero_is_zero(factor: float):
    mantissa, shift = to_multiplier(factor)
    extremes = np.array([-(2**31), 2**31 - 1])
    assert not requantize(extremes, mantissa, shift, 0).any()


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf"), 2.0**31, 2.0**31 - 1e-7])
def test_a_factor_out_of_reach_is_refused(factor: float):
    with pytest.raises(InputError, match="a multiplier is"):
        to_multiplier(factor)


@given(FACTORS, FACTORS)
def test_common_multipliers_share_the_shift_of_the_larger(one: float, other: float):
    first, second, shift = to_common_multipliers(one, other)
    assert 2**30 <= max(first, second) < 2**31
    for made, factor in ((first, one), (second, other)):
        assert abs(Fraction(made, 2**shift) - Fraction(factor)) <= Fraction(1, 2 ** (shift + 1))


@given(INT32, st.integers(2**30, 2**31 - 1), st.integers(0, 62))
def test_requantizing_is_one_rounding_of_the_exact_product(value: int, mantissa: int, shift: int):
    exact = round(Fraction(value * mantissa, 2**shift))  # Python's round is half to even, too
    assert requantize(np.array([value]), mantissa, shift, 3).tolist() == [exact + 3]


@given(st.integers(-(2**62), 2**62 - 1), st.integers(1, 2**62 - 1))
def test_division_rounds_half_to_even(numerator: int, denominator: int):
    exact = round(Fraction(numerator, denominator))
    assert round_half_even(np.array([numerator]), np.array([denominator])).tolist() == [exact]


@given(st.integers(-(2**20), 2**20), st.integers(1, 8))
def test_ties_go_to_the_even_neighbour(value: int, shift: int):
    tie = (2 * value + 1) << (shift - 1)
    assert shift_half_even(np.array([tie]), shift).tolist() == [value + value % 2]


def test_saturation_keeps_to_the_clamp_and_to_the_type():
    values = np.array([-1000, -5, 0, 90, 1000])
    assert saturate(values, float("-inf"), float("inf"), np.dtype(np.int8)).tolist() == [
        -128, -5, 0, 90, 127
    ]  # fmt: skip
    assert saturate(values, 3, 80, np.dtype(np.uint8)).tolist() == [3, 3, 3, 80, 80]


@pytest.mark.parametrize("scale", [0.00037, 0.0125, 0.5, 0.1, 1 / 3, 2.0, 0.001953125])
def test_all_sums_in_reach_are_quantized_as_onnx_does(scale: float):
    """The sums are 1 apart: all that come to an int8, and some that saturate.

    onnxruntime rounds what float32 has of value / scale, so it may differ where the exact quotient is
    within float32's error of a tie; the machine has the nearer integer there, or the even one.
    """
    reach = min(int(140 / scale) + 1, 400_000)
    sums = np.arange(-reach, reach + 1)
    mantissa, shift = to_multiplier(float(np.float32(scale)))
    mine = saturate(requantize(sums, mantissa, shift, 7), -128, 127, np.dtype(np.int8))
    text = """g (float[N] x) => (int8[N] y)
      <float s = {1.0}, int8 z = {7}> { y = QuantizeLinear(x, s, z) }"""
    reals = (sums * np.float64(np.float32(scale))).astype(np.float32)
    theirs = onnx_run(text, {"x": reals})
    differ = np.flatnonzero(mine != theirs)
    assert (np.abs(mine.astype(int) - theirs) <= 1).all()
    for index in differ:
        exact = Fraction(int(sums[index])) * Fraction(float(np.float32(scale)))
        to_tie = abs(exact - Fraction(round(2 * exact), 2))
        assert to_tie <= abs(exact) * Fraction(1, 2**24)
    assert len(differ) <= 256  # at most at the tie between two outputs
