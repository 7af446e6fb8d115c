"""Intervals of numbers, and what is known of the values of a tensor.

Ends that are whole numbers are Python's integers, which are exact; sums and products of such stay so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, reduce
from itertools import product
from math import ceil, floor, inf, isfinite, isnan, trunc
from typing import TYPE_CHECKING, Any

import numpy as np

from byoc._dataclasses import dataclass
from byoc.model._constants import get_constant_value
from byoc.model._graph_index import GraphIndex
from byoc.model._inference._extents import bound_dim, list_dim_names
from byoc.model._tensor_data import FLOAT_DTYPES, Dim, count_bits, to_numpy_dtype

if TYPE_CHECKING:
    from byoc.model.ranges._value_ranges import ValueRanges


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
    least, most = low - abs(low) * share - info[0], high + abs(high) * share + info[0]
    # Rounding keeps the sign: a result that is exactly 0 or more is rounded to 0 or more.
    low, high = (max(least, 0.0) if low >= 0 else least), (min(most, 0.0) if high <= 0 else most)
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


# A node as the rules of ranges ask about it.

MOST_EXTENT = 2**24
"""What an open extent is taken to be at most, unless the user gives it a range (docs/rules.md)."""

Shape = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class RangedNode:
    """A node of a graph, with the ranges of what it reads."""

    ranges: "ValueRanges"
    number: int

    @property
    def index(self) -> GraphIndex:
        """The index of its graph."""
        return self.ranges.index

    @property
    def operator(self) -> str:
        """Its operator, as rule files spell it."""
        return self.index.node_kinds[self.number].operator

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs; empty for one that is left out."""
        return self.index.node_inputs[self.number]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs; empty for one that is left out."""
        return self.index.node_outputs[self.number]

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes with all defaults."""
        return self.index.get_attributes(self.index.nodes[self.number])

    def has(self, position: int) -> bool:
        """Return whether an input is given."""
        return position < len(self.inputs) and bool(self.inputs[position])

    def get(self, position: int) -> TensorRange:
        """Return the range of an input; all numbers where it is left out."""
        return self.ranges.find(self.inputs[position]) if self.has(position) else TensorRange(NUMBERS)

    def get_all(self) -> list[TensorRange]:
        """Return the ranges of all inputs that are given."""
        return [self.ranges.find(name) for name in self.inputs if name]

    def get_shape(self, position: int) -> Shape | None:
        """Return the shape of an input, None if its rank is not known."""
        return self.index.get_shape(self.inputs[position]) if self.has(position) else None

    def get_dtype(self, position: int) -> str:
        """Return the dtype of an input; empty where it is not known."""
        return (self.index.get_dtype(self.inputs[position]) or "") if self.has(position) else ""

    def get_output_dtype(self, position: int = 0) -> str:
        """Return the dtype of an output; empty where it is not known."""
        return self.index.get_dtype(self.outputs[position]) or ""

    @property
    def makes_vector(self) -> bool:
        """Whether its output is known to be a scalar or a vector: elements are followed one by one."""
        rank = self.index.get_rank(self.outputs[0])
        return rank is not None and rank <= 1

    def read(self, position: int) -> list[float] | None:
        """Return the elements of an input that is the same in every run, None for any other."""
        if not self.has(position):
            return None
        parts = self.ranges.find(self.inputs[position]).parts
        if parts is not None:
            return [p.low for p in parts] if all(p.low == p.high for p in parts) else None
        array = get_constant_value(self.index, self.inputs[position])
        if array is None or array.size > MAX_PARTS or array.dtype.kind not in "biuf":
            return None
        return [each.item() for each in array.ravel()]

    def read_axes(self, position: int) -> list[int] | None:
        """Return axes from an attribute or an input; None for all, or where they are not known.

        They are empty where the operator is told to do nothing without axes.
        """
        stated = self.attributes.get("axes")
        if stated is None and self.has(position):
            found = self.read(position)
            stated = None if found is None else [int(axis) for axis in found]
        if not stated and self.attributes.get("noop_with_empty_axes"):
            return []
        return list(stated) if stated else None

    def bound_extent(self, dim: Dim) -> Interval:
        """Return the interval of an extent: that of the user's ranges where it is open."""
        if isinstance(dim, int):
            return Interval(dim, dim)
        known = self.index.planned.ranges
        names = list_dim_names(dim) if dim is not None else ()
        most = self.ranges.most_extent
        found = bound_dim(dim, {name: known.get(name, (0, most)) for name in names})
        low, high = found or (0, most)
        return Interval(max(low, 0), max(high, 0))

    def bound_count(self, dims: Iterable[Dim]) -> Interval:
        """Return the interval of the product of some extents."""
        bounds = (self.bound_extent(dim) for dim in dims)
        return reduce(lambda a, b: combine_corners(multiply, a, b), bounds, Interval(1, 1))

    def bound_axis(self, position: int, axis: int) -> Interval:
        """Return the interval of an input's extent along an axis."""
        shape = self.get_shape(position)
        if shape is None or not -len(shape) <= axis < len(shape):
            return Interval(0, self.ranges.most_extent)
        return self.bound_extent(shape[axis])

    def get_limits(self, position: int = 0) -> Interval:
        """Return the interval of an output's dtype."""
        return limit_of_dtype(self.get_output_dtype(position))


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule: ranges of outputs before they are rounded or wrap, None where unproven.

    `summed` is the largest magnitude of what is summed or multiplied on the way to them.
    """

    outputs: tuple[TensorRange | None, ...]
    summed: float = 0


RangeRule = Callable[[RangedNode], "RuleResult | TensorRange | Interval | None"]
"""Gives the range of a node's first output, or the result for all; None where it proves nothing."""
