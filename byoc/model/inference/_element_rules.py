"""Arithmetic on elements of tensors that may be symbolic: what integers and floats compute of them.

An element is a number, an expression of extents, or None where it is unknown; in a float tensor it may
also be a `Ratio`. Of floats only what they compute without a rounding that matters is followed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

from byoc.model._tensor_types import Dim
from byoc.model.inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    is_dim_at_least,
    max_dims,
    min_dims,
    multiply_dims,
    subtract_dims,
)

# Floors and ceilings of quotients by these are right for extents below 2**17, in float32.
_MAX_DENOMINATOR = 64
_MAX_FACTOR = 1 << 12


@dataclass(frozen=True, slots=True)
class Ratio:
    """An element of a float tensor: an extent divided by a whole number."""

    numerator: Dim
    denominator: int


def _read_ratio(element: Any) -> Ratio | None:
    """Return an element of a float tensor as a ratio, None if it is unknown or no small one."""
    if isinstance(element, Ratio) or element is None:
        return element
    if not isinstance(element, float):
        return Ratio(element, 1)
    if not isfinite(element):
        return None
    exact = Fraction(element)
    small = exact.denominator <= _MAX_DENOMINATOR and abs(exact.numerator) <= _MAX_FACTOR
    return Ratio(exact.numerator, exact.denominator) if small else None


def _make_ratio(numerator: Dim, denominator: int) -> Any:
    """Return a quotient as an element: an extent if the division is exact."""
    whole = floor_divide_dims(numerator, denominator)
    if whole is None or denominator > _MAX_DENOMINATOR:
        return None
    return whole if multiply_dims(whole, denominator) == numerator else Ratio(numerator, denominator)


def _multiply_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None:
        return None
    return _make_ratio(
        multiply_dims(one.numerator, other.numerator), one.denominator * other.denominator
    )


def _divide_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None or not isinstance(other.numerator, int) or other.numerator <= 0:
        return None
    return _make_ratio(
        multiply_dims(one.numerator, other.denominator), one.denominator * other.numerator
    )


def _add_floats(a: Any, b: Any) -> Any:
    one, other = _read_ratio(a), _read_ratio(b)
    if one is None or other is None:
        return None
    total = add_dims(
        multiply_dims(one.numerator, other.denominator), multiply_dims(other.numerator, one.denominator)
    )
    return _make_ratio(total, one.denominator * other.denominator)


def _subtract_floats(a: Any, b: Any) -> Any:
    return _add_floats(a, _multiply_floats(b, -1))


def truncate_float(element: Any) -> Any:
    """Return an element of a float tensor as an integer, rounded towards 0."""
    if isinstance(element, float):
        return int(element) if isfinite(element) else None
    if not isinstance(element, Ratio):
        return element
    return _round_down(element) if is_dim_at_least(element.numerator, 0) else None


def _round_down(element: Any) -> Any:
    if isinstance(element, Ratio):
        return floor_divide_dims(element.numerator, element.denominator)
    return floor(element) if isinstance(element, float) and isfinite(element) else element


def _round_up(element: Any) -> Any:
    if isinstance(element, Ratio):
        return ceil_divide_dims(element.numerator, element.denominator)
    return ceil(element) if isinstance(element, float) and isfinite(element) else element


def _divide(a: Dim, b: Dim) -> Dim:
    """Return the quotient rounded towards 0, as integers are divided."""
    return floor_divide_dims(a, b) if is_dim_at_least(a, 0) and is_dim_at_least(b, 0) else None


def _take_rest(a: Dim, b: Dim) -> Dim:
    return subtract_dims(a, multiply_dims(_divide(a, b), b))


def _compare(least: int, flipped: bool) -> Callable[[Dim, Dim], bool | None]:
    """Return the comparison `a - b >= least`, or `b - a >= least` if flipped."""

    def compare(a: Dim, b: Dim) -> bool | None:
        difference = subtract_dims(b, a) if flipped else subtract_dims(a, b)
        if is_dim_at_least(difference, least):
            return True
        return False if is_dim_at_least(multiply_dims(-1, difference), 1 - least) else None

    return compare


def _is_equal(a: Dim, b: Dim) -> bool | None:
    difference = subtract_dims(a, b)
    if isinstance(difference, int):
        return difference == 0
    apart = is_dim_at_least(difference, 1) or is_dim_at_least(multiply_dims(-1, difference), 1)
    return False if apart else None


def choose_element(condition: Any, a: Any, b: Any) -> Any:
    """Return `a` where the condition holds, else `b`; what both are where it is unknown."""
    if condition is None:
        return a if a == b else None
    return a if condition else b


INTEGER_ELEMENTS: dict[str, Callable[..., Any]] = {
    "Abs": lambda a: a if is_dim_at_least(a, 0) else None,
    "Add": add_dims,
    "And": lambda a, b: False if False in (a, b) else (a and b),
    "Div": _divide,
    "Equal": _is_equal,
    "Greater": _compare(1, False),
    "GreaterOrEqual": _compare(0, False),
    "Less": _compare(1, True),
    "LessOrEqual": _compare(0, True),
    "Max": max_dims,
    "Min": min_dims,
    "Mod": _take_rest,
    "Mul": multiply_dims,
    "Neg": lambda a: multiply_dims(-1, a),
    "Not": lambda a: None if a is None else not a,
    "Or": lambda a, b: True if True in (a, b) else (None if None in (a, b) else False),
    "Sub": subtract_dims,
}
"""What operators compute of elements of integer and boolean tensors."""

FLOAT_ELEMENTS: dict[str, Callable[..., Any]] = {
    "Add": _add_floats,
    "Ceil": _round_up,
    "Div": _divide_floats,
    "Floor": _round_down,
    "Mul": _multiply_floats,
    "Sub": _subtract_floats,
}
"""What operators compute of elements of float tensors."""
