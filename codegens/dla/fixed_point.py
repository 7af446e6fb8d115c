"""Fixed-point arithmetic: a factor is a mantissa and a shift, and results are rounded once.

A factor f is mantissa / 2**shift with the mantissa in [2**30, 2**31), so its relative error is at most
2**-31 (Jacob et al. 2018, section 2.2, here with the rounding of ONNX's QuantizeLinear: half to even).
"""

from math import frexp

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError

Integers = NDArray[np.int64]

_BITS = 31
MOST_SHIFT = 62
"""The largest shift: a smaller factor takes every int32 to 0."""


def to_multiplier(factor: float) -> tuple[int, int]:
    """Return the mantissa and the shift of a factor; (0, 0) for one that takes every int32 to 0.

    Raises InputError for a factor that is negative, not finite, or at least 2**31.
    """
    if not 0 <= factor < 2.0**_BITS:
        raise InputError(f"a scale of {factor}: a multiplier is at least 0 and less than 2**{_BITS}")
    fraction, exponent = frexp(factor)  # factor = fraction * 2**exponent, fraction in [0.5, 1)
    mantissa, shift = round(fraction * 2**_BITS), _BITS - exponent
    if mantissa == 2**_BITS:
        mantissa, shift = mantissa // 2, shift - 1
    if shift < 0:
        raise InputError(f"a scale of {factor}: a multiplier is less than 2**{_BITS}")
    return (mantissa, shift) if mantissa and shift <= MOST_SHIFT else (0, 0)


def to_common_multipliers(one: float, other: float) -> tuple[int, int, int]:
    """Return the mantissas of two factors and the shift of both, as ADD takes them.

    The larger mantissa is as `multiplier` makes it; the other's error is at most 2**-(shift + 1).
    Raises InputError as `multiplier` does.
    """
    _, shift = to_multiplier(max(one, other))
    for factor in (one, other):
        to_multiplier(factor)
    return round(one * 2**shift), round(other * 2**shift), shift


def round_half_even(numerator: Integers, denominator: Integers) -> Integers:
    """Return numerator / denominator rounded to the nearest integer, halves to even.

    The denominator is in [1, 2**62).
    """
    quotient, rest = np.divmod(numerator, denominator)
    twice = 2 * rest
    up = (twice > denominator) | ((twice == denominator) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def shift_half_even(values: Integers, shift: Integers | int) -> Integers:
    """Return values / 2**shift rounded to the nearest integer, halves to even; shift is in [0, 62]."""
    quotient = values >> shift
    one = np.int64(1) << shift
    twice = (values & (one - 1)) << 1
    up = (twice > one) | ((twice == one) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def requantize(sums: Integers, mantissa: Integers | int, shift: Integers | int, zero: int) -> Integers:
    """Return sums * mantissa / 2**shift, rounded, plus the zero point.

    The product must fit into int64, as the product of an int32 and a mantissa always does.
    """
    return shift_half_even(sums.astype(np.int64) * mantissa, shift) + zero


def saturate(
    values: Integers, low: float, high: float, dtype: np.dtype[np.integer]
) -> NDArray[np.integer]:
    """Return values limited to [low, high] and to the range of a type, as that type."""
    limits = np.iinfo(dtype)
    return np.clip(values, max(low, limits.min), min(high, limits.max)).astype(dtype)
