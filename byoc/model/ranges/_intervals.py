"""Intervals of numbers, and what is known of the values of a tensor.

Ends that are whole numbers are Python's integers, which are exact; sums and products of such stay so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from math import ceil, floor, inf, isfinite, isnan, trunc

import numpy as np

from byoc.model._tensor_types import FLOAT_DTYPES, count_bits, to_numpy_dtype


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`; an end that is infinite may be taken, and NaN is not among them."""

    low: float
    high: float

    @classmethod
    def around(cls, magnitude: float) -> "Interval":
        """Return the numbers of at most a magnitude."""
        return cls(-magnitude, magnitude)

    @classmethod
    def at(cls, value: float) -> "Interval":
        """Return the interval of one number."""
        return cls(value, value)

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_finite(self) -> bool:
        """Whether both ends are finite."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def is_zero(self) -> bool:
        """Whether it holds 0 alone."""
        return self.low == 0 == self.high

    def join(self, other: "Interval") -> "Interval":
        """Return the smallest interval with both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def meet(self, other: "Interval") -> "Interval":
        """Return the intersection of both; this interval where it is empty."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else self

    def holds(self, other: "Interval") -> bool:
        """Return whether another interval lies within this one."""
        return self.low <= other.low and other.high <= self.high


NUMBERS = Interval(-inf, inf)
ZERO = Interval(0.0, 0.0)
TRUTH = Interval(0, 1)
"""False and true, as numbers."""

_NOTHING = Interval(0, 0)
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
MAX_PARTS = 64
"""Elements of a vector that are followed one by one; shapes and what is made of them have fewer."""


@cache
def limit_of_dtype(dtype: str | None) -> Interval:
    """Return the interval of a dtype: all numbers for floats, and where it is not known or no number."""
    if dtype == "bool":
        return TRUTH
    if dtype is None or "int" not in dtype:
        return NUMBERS
    values = 1 << count_bits(dtype)
    return Interval(0, values - 1) if dtype[0] == "u" else Interval(-(values // 2), values // 2 - 1)


@dataclass(frozen=True)
class TensorRange:
    """The interval of a tensor's values; `parts` has one for each element of a small vector or scalar.

    The elements are in rows. Of a tensor without elements nothing can be said that is wrong.
    """

    whole: Interval
    parts: tuple[Interval, ...] | None = None

    @classmethod
    def of_parts(cls, parts: Sequence[Interval]) -> "TensorRange":
        """Return the range of a vector with known elements, which are dropped where they are many."""
        if len(parts) == 1:
            return cls(parts[0], tuple(parts))
        whole = Interval(min(p.low for p in parts), max(p.high for p in parts)) if parts else _NOTHING
        return cls(whole, tuple(parts) if len(parts) <= MAX_PARTS else None)

    def map(self, function: Callable[[Interval], Interval]) -> "TensorRange":
        """Return the range of a function of each element."""
        if self.parts:
            return TensorRange.of_parts([function(part) for part in self.parts])
        return TensorRange(function(self.whole), self.parts)

    def drop_parts(self) -> "TensorRange":
        """Return the range without what is known of single elements."""
        return TensorRange(self.whole) if self.parts is not None else self


def combine_corners(function: Callable[[float, float], float], a: Interval, b: Interval) -> Interval:
    """Return the interval of a function that is monotone in either operand, whichever way."""
    ends = [function(x, y) for x, y in product({a.low, a.high}, {b.low, b.high})]
    return NUMBERS if any(map(isnan, ends)) else Interval(min(ends), max(ends))


def multiply(x: float, y: float) -> float:
    """Return a product in which 0 of anything is 0."""
    return 0 if x == 0 or y == 0 else x * y


def divide_whole(x: float, y: float) -> float:
    """Return a quotient of whole numbers, rounded towards 0; `y` is not 0."""
    if isinstance(x, int) and isinstance(y, int):
        return x // y if (x < 0) == (y < 0) else -(-x // y)
    if not isfinite(x):
        return x if y > 0 else -x
    return trunc(x / y)


def round_down(value: float) -> float:
    """Return the largest whole number that is not above a number."""
    return floor(value) if isfinite(value) else value


def round_up(value: float) -> float:
    """Return the least whole number that is not below a number."""
    return ceil(value) if isfinite(value) else value


def round_to_zero(value: float) -> float:
    """Return a number without what is behind its point."""
    return trunc(value) if isfinite(value) else value


def square(found: Interval) -> Interval:
    """Return the interval of squares."""
    low = absolute(found).low
    return Interval(multiply(low, low), multiply(found.magnitude, found.magnitude))


def absolute(found: Interval) -> Interval:
    """Return the interval of magnitudes."""
    low = 0 if found.low <= 0 <= found.high else min(abs(found.low), abs(found.high))
    return Interval(low, found.magnitude)


def repeat_sum(found: Interval, count: Interval) -> Interval:
    """Return the interval of sums of `count` numbers out of one, in which partial sums lie as well."""
    ends = combine_corners(multiply, found, count)
    return ends.join(Interval(0, 0))


def widen_floats(found: Interval, dtype: str, roundings: float = 1) -> Interval:
    """Return an interval with room for so many roundings of a float dtype."""
    if dtype not in FLOAT_DTYPES:
        return NUMBERS
    share = min(2 * _EPSILON[dtype] * roundings, 1.0)
    info = _read_float_limits(dtype)
    low, high = (_to_float(end) for end in (found.low, found.high))
    low, high = low - abs(low) * share - info[0], high + abs(high) * share + info[0]
    return Interval(-inf if low < -info[1] else low, inf if high > info[1] else high)


@cache
def _read_float_limits(dtype: str) -> tuple[float, float]:
    """Return the least normal and the largest number of a float dtype."""
    if dtype == "bfloat16":
        return 2.0**-126, float(2.0**127 * (2 - 2.0**-7))
    info = np.finfo(to_numpy_dtype(dtype))
    return float(info.tiny), float(info.max)


def _to_float(end: float) -> float:
    try:
        return float(end)
    except OverflowError:
        return inf if end > 0 else -inf


def join_all(found: Iterable[Interval]) -> Interval:
    """Return the smallest interval with all of some; all numbers where there are none."""
    listed = list(found)
    return reduce(Interval.join, listed) if listed else NUMBERS
