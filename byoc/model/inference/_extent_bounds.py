"""The least and the largest an extent can be while its names are within ranges, by interval arithmetic.

The interval is never too small; where a name occurs several times it can be too large.
"""

from collections.abc import Mapping
from itertools import product

from byoc.model._tensor_types import Dim
from byoc.model.inference._expression_reading import read_polynomial
from byoc.model.inference._extents import list_dim_names
from byoc.model.inference._polynomials import Atom, Polynomial, PolynomialError, make_name

Interval = tuple[int, int]
"""The least and the largest value."""


def bound_dim(dim: Dim, ranges: Mapping[str, Interval]) -> Interval | None:
    """Return the least and the largest value of an extent.

    None if the extent is unknown, a name in it has no range, or it may divide by 0.
    """
    if dim is None or isinstance(dim, int):
        return None if dim is None else (dim, dim)
    if not list_dim_names(dim) <= ranges.keys():
        return None
    try:
        polynomial = read_polynomial(dim)
    except PolynomialError:
        polynomial = make_name(dim)
    try:
        return _bound(polynomial, ranges)
    except ZeroDivisionError:
        return None


def _bound(polynomial: Polynomial, ranges: Mapping[str, Interval]) -> Interval:
    low = high = 0
    for monomial, factor in polynomial:
        part = (factor, factor)
        for atom in monomial:
            part = _multiply(part, _bound_atom(atom, ranges))
        low, high = low + part[0], high + part[1]
    return low, high


def _multiply(a: Interval, b: Interval) -> Interval:
    corners = [one * other for one, other in product(a, b)]
    return min(corners), max(corners)


def _bound_atom(atom: Atom, ranges: Mapping[str, Interval]) -> Interval:
    if isinstance(atom, str):
        return ranges[atom]
    word, operands = atom
    parts = [_bound(operand, ranges) for operand in operands]
    if word == "//":
        dividend, divisor = parts
        if divisor[0] <= 0 <= divisor[1]:
            raise ZeroDivisionError
        corners = [one // other for one, other in product(dividend, divisor)]
        return min(corners), max(corners)
    choose = max if word == "max" else min
    return choose(low for low, _ in parts), choose(high for _, high in parts)
