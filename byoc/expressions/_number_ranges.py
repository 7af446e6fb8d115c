"""Numbers that are known as ranges: what an operation gives for all numbers of a range at once.

Interval arithmetic: a range that follows is never too small. Where a number occurs several times it can
be too large, and a condition that holds for all of them can then not be worked out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

# An answer of these that is the same at all ends is the same in between.
_AGREEING = frozenset({"<", "<=", ">", ">=", "type"})
# The least and the greatest result of these are at ends, for divisions see `_is_divided_evenly`.
_MONOTONIC = frozenset({"+", "-", "*", "/", "%", "-.", "int", "uint", "double"})


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A number that can be anything from `low` to `high`, both included."""

    low: float
    high: float

    def __str__(self) -> str:
        """Return for example `1 to 2048`."""
        return f"{self.low} to {self.high}"


def make_range(low: float, high: float) -> float | NumberRange:
    """Return a range, or the number that is all of it."""
    return low if low == high else NumberRange(low, high)


def list_ends(value: Any) -> tuple[Any, Any]:
    """Return the ends of a range; those of any other value are the value."""
    return (value.low, value.high) if isinstance(value, NumberRange) else (value, value)


def are_disjoint(left: Any, right: Any) -> bool:
    """Return whether two values, ranges or not, cannot be equal."""
    ends = (*list_ends(left), *list_ends(right))
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        return True
    return bool(ends[1] < ends[2] or ends[3] < ends[0])


def apply_to_ranges(operator: str, operation: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Return the result of an operation for all numbers of its operands, None where it may differ.

    The result is a range, or a number, text or truth value. Raises as the operation does at the ends.
    """
    if operator in ("==", "!="):
        return operator == "!=" if are_disjoint(*operands) else None
    ends = [list_ends(operand) for operand in operands]
    if operator in ("/", "%") and not _is_divided_evenly(operator, *ends):
        return None
    results = [operation(*corner) for corner in product(*ends)]
    if operator in _AGREEING:
        return results[0] if results.count(results[0]) == len(results) else None
    return make_range(min(results), max(results)) if operator in _MONOTONIC else None


def _is_divided_evenly(operator: str, dividend: tuple[Any, Any], divisor: tuple[Any, Any]) -> bool:
    """Return whether the extremes of a quotient or remainder are at the ends of its operands.

    So it is unless a divisor may be 0; a remainder must not begin anew between the ends.
    """
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in (*dividend, *divisor)):
        return True  # the operation says what is wrong
    if divisor[0] <= 0 <= divisor[1]:
        return False
    once = divisor[0] == divisor[1] and dividend[0] >= 0
    return operator == "/" or (once and dividend[0] // divisor[0] == dividend[1] // divisor[0])
