"""Special values: where arithmetic goes wrong that is right elsewhere.

They are the ends of each integer type, whole numbers around the limits of floats, negative numbers,
halves, NaN, infinities, negative zero and denormals. `spread_values` puts them into arrays so that the
inputs of an operator meet in all pairs, and every value occurs more than once: equal keys.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import to_numpy_dtype

Array = NDArray[Any]

# Whole numbers below these are exact in float16, float32 and float64; 2^31 is the end of 32 bits.
_FLOAT_LIMITS = (2**24, 2**31, 2**53, 2**11)
_SMALL = (0, 1, 2, 3, 7, 44, 100, 127, 128, 200)
# Halves round to even, thirds are no binary fractions, 1,000 is beyond a byte and 1e6 beyond float16.
# The largest floats are not among them: how far right executions go depends on the order of their steps.
_EVERYDAY = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, 1 / 3, 2 / 3, 7.0, 100.25, 1000.0, 1e6)
_FLOAT_ENDS = {
    "float16": (2.0**-24, 2.0**-14, 2.0**-10),
    "bfloat16": (2.0**-133, 2.0**-126, 2.0**-7),
    "float32": (2.0**-149, 2.0**-126, 2.0**-23),
    "float64": (2.0**-1074, 2.0**-1022, 2.0**-52),
}
"""The smallest denormal, the smallest normal number, and the distance of 1 from the next."""
_BYTE_INTEGERS = re.compile(r"u?int(8|16|32|64)")


@dataclass(frozen=True)
class SpecialValues:
    """The special values of a dtype: `finite` numbers, `infinite` ones, and NaN where there is one."""

    finite: Array
    infinite: Array
    nan: Array


def list_special_values(dtype: str, low: float = -inf, high: float = inf) -> SpecialValues:
    """Return the special values of a dtype from `low` to `high`; none of what is neither int nor float.

    `dtype` is ONNX's name. Denormals are among the finite ones; infinities and NaN are there whatever
    the ends.
    """
    none = np.zeros(0)
    if dtype in _FLOAT_ENDS:
        kind = to_numpy_dtype(dtype)
        finite = _list_floats(dtype)
        numbers = finite.astype(np.float64)
        finite = finite[(numbers >= low) & (numbers <= high)]
        return SpecialValues(finite, np.array([inf, -inf]).astype(kind), np.full(1, np.nan).astype(kind))
    if _BYTE_INTEGERS.fullmatch(dtype):
        kind = to_numpy_dtype(dtype)
        limits = np.iinfo(kind)
        ends = max(low, limits.min), min(high, limits.max)
        whole = _list_integers(*(int(end) for end in ends)) if ends[0] <= ends[1] else []
        return SpecialValues(np.array(whole, kind), none, none)
    return SpecialValues(np.array([False, True]) if dtype == "bool" else none, none, none)


def _list_integers(low: int, high: int) -> list[int]:
    """Return the special whole numbers from one to another, the ends first."""
    near = [limit + step for limit in _FLOAT_LIMITS for step in (-1, 0, 1)]
    found = [low, high, 0, 1, -1, low + 1, high - 1, *near, *_SMALL]
    found += [-n for n in (*near, *_SMALL)]
    return [n for n in dict.fromkeys(found) if low <= n <= high]


def _list_floats(dtype: str) -> Array:
    values = np.array([*_EVERYDAY, *_FLOAT_ENDS[dtype][:2], 1 + _FLOAT_ENDS[dtype][2]])
    with np.errstate(over="ignore"):
        found = values.astype(to_numpy_dtype(dtype))
    found = found[np.isfinite(found.astype(np.float64))]
    return np.concatenate([found, -found])


def list_halves(scale: Array, zero_point: int, dtype: str) -> Array:
    """Return float32 numbers that lie exactly between two steps of a QuantizeLinear.

    `scale` holds its scales, `zero_point` is that of the first. Numbers whose quotient is rounded are
    left out, so that each is a half by the operator's definition.
    """
    limits = np.iinfo(dtype)
    steps = np.array([limits.min, limits.min + 1, -3, -2, -1, 0, 1, 2, limits.max - 1], np.float64)
    halves = (steps - zero_point + 0.5).astype(np.float32)
    first = np.float32(np.asarray(scale, np.float32).reshape(-1)[0])
    values = halves * first
    exact: Array = values[values / first == halves]
    return exact


def spread_values(base: Array, values: Array, number: int = 0, turn: int = 0, every: int = 1) -> Array:
    """Return an array with special values in place of one in `every` of its elements.

    `number` is that of the input: each value meets its equal first, and then, as far as there are
    elements, all others, those at the beginning of `values` before the rest. Each occurs twice in a row,
    as equal keys do. `turn` counts the samples: small arrays take other values in each.
    """
    made = np.array(base)
    if not made.size or not values.size:
        return made
    flat = made.reshape(-1)
    places = np.arange(0, flat.size, every)
    counted = np.arange(places.size) + turn * places.size
    one, other = _list_pairs(len(values))
    pair = counted // 2 % len(one)
    # A third input and those behind it take what neither of the first two has.
    chosen = other[pair] if number == 1 else (one[pair] + number // 2 * (other[pair] + 1)) % len(values)
    flat[places] = values[chosen].astype(flat.dtype)
    return made


@cache
def _list_pairs(count: int) -> tuple[Array, Array]:
    """Return all pairs of numbers below `count`: of equals, and then by their sums."""
    one, other = (each.reshape(-1) for each in np.indices((count, count)))
    order = np.lexsort((one, np.where(one == other, -1, one + other)))
    return one[order], other[order]


def count_turns(sizes: Sequence[int], values: int, most: int) -> int:
    """Return the number of samples in which small inputs take all values twice, at most `most`.

    Several inputs take all pairs of values.
    """
    wanted = values * max(2, values if len(sizes) > 1 else 0)
    least = min((size for size in sizes if size), default=wanted)
    return max(1, min(most, -(-wanted // least)))
