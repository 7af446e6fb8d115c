"""Arithmetic on extents that may be symbolic: `past + seq`, `2*h`, `(h + 1) // 2`, `max(n - 3, 0)`.

An extent is a number, None where it is unknown, or text: the name of an open dimension, or an expression
of such names in canonical form. Values of integer tensors, which may be negative, are calculated in the
same way. What grows beyond all use is unknown.
"""

from collections.abc import Mapping
from functools import lru_cache, reduce

from byoc.model._tensor_types import Dim, TensorType
from byoc.model.inference._expression_reading import read_polynomial
from byoc.model.inference._polynomials import (
    Atom,
    Polynomial,
    PolynomialError,
    add,
    divide,
    evaluate,
    get_atom,
    get_constant,
    is_not_negative,
    is_plain_name,
    list_names,
    make_constant,
    make_name,
    multiply,
    select,
    write_polynomial,
)

_CACHE = 1 << 16
_MAX_LENGTH = 300


@lru_cache(_CACHE)
def parse_dim(text: str) -> Dim:
    """Return an expression in canonical form; text that is none is a name and stays as it is.

    Read are `+`, `-`, `*`, `//`, `%`, whole powers, `max`, `min`, `floor(a/b)` and `ceil(a/b)`, as
    exporters write them. The empty text and a negative number are None.
    """
    if not text:
        return None
    try:
        found = _write(read_polynomial(text))
    except PolynomialError:
        return text
    return None if isinstance(found, int) and found < 0 else found


def add_dims(*dims: Dim) -> Dim:
    """Return the sum, None if a term is unknown."""
    total: Dim = 0
    return reduce(_add_pair, dims, total)


def subtract_dims(a: Dim, b: Dim) -> Dim:
    """Return `a - b`, None if either is unknown."""
    return _add_pair(a, multiply_dims(-1, b))


def multiply_dims(*dims: Dim) -> Dim:
    """Return the product; None if a factor is unknown, unless another is 0."""
    product: Dim = 1
    return 0 if any(dim == 0 for dim in dims) else reduce(_multiply_pair, dims, product)


def _add_pair(a: Dim, b: Dim) -> Dim:
    if a is None or b is None:
        return None
    return a + b if isinstance(a, int) and isinstance(b, int) else _calculate("+", a, b)


def _multiply_pair(a: Dim, b: Dim) -> Dim:
    if a is None or b is None:
        return None
    return a * b if isinstance(a, int) and isinstance(b, int) else _calculate("*", a, b)


def floor_divide_dims(a: Dim, b: Dim) -> Dim:
    """Return `a / b` rounded down; None if either is unknown or `b` is 0."""
    if a is None or b is None or b == 0:
        return None
    return a // b if isinstance(a, int) and isinstance(b, int) else _calculate("//", a, b)


def ceil_divide_dims(a: Dim, b: Dim) -> Dim:
    """Return `a / b` rounded up; None if either is unknown or `b` is 0."""
    return multiply_dims(-1, floor_divide_dims(multiply_dims(-1, a), b))


def max_dims(*dims: Dim) -> Dim:
    """Return the largest of some extents, None if one is unknown."""
    return _calculate("max", *dims)


def min_dims(*dims: Dim) -> Dim:
    """Return the smallest of some extents, None if one is unknown."""
    return _calculate("min", *dims)


def is_dim_at_least(dim: Dim, least: int) -> bool:
    """Return whether an extent is proven to be at least a number whatever its names stand for."""
    difference = subtract_dims(dim, least)
    if difference is None or isinstance(difference, int):
        return difference is not None and difference >= 0
    try:
        return is_not_negative(_read(difference))
    except PolynomialError:
        return False


def evaluate_dim(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """Return the number that an extent is at some sizes of its names.

    None if the extent is unknown, a name has no size, or it divides by 0. A name that reads like an
    expression (`batch-size`) may be among the sizes as it is.
    """
    if dim is None or isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        return evaluate(_read(dim), sizes)
    except (KeyError, ZeroDivisionError):
        return None


def fix_type(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Return a type at some sizes of the names in its extents; an extent that is still open is None."""
    if kind.shape is None or all(isinstance(dim, int) for dim in kind.shape):
        return kind
    return TensorType(kind.dtype, tuple(evaluate_dim(dim, sizes) for dim in kind.shape))


def substitute_dim(dim: Dim, meanings: Mapping[str, Dim]) -> Dim:
    """Return an extent with what some of its names stand for in their place."""
    if not isinstance(dim, str) or dim in meanings:
        return meanings.get(dim, dim) if isinstance(dim, str) else dim
    return dim if list_dim_names(dim).isdisjoint(meanings) else _substitute(_read(dim), meanings)


def _substitute(polynomial: Polynomial, meanings: Mapping[str, Dim]) -> Dim:
    return add_dims(
        *(
            multiply_dims(factor, *(_substitute_atom(atom, meanings) for atom in monomial))
            for monomial, factor in polynomial
        )
    )


def _substitute_atom(atom: Atom, meanings: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, str):
        return meanings.get(atom, atom)
    word, operands = atom
    dims = [_substitute(operand, meanings) for operand in operands]
    return floor_divide_dims(*dims) if word == "//" else _calculate(word, *dims)


@lru_cache(_CACHE)
def list_dim_names(dim: Dim) -> frozenset[str]:
    """Return the names in an extent, none for a number and for None."""
    return frozenset(list_names(_read(dim))) if isinstance(dim, str) else frozenset()


@lru_cache(_CACHE)
def _calculate(operation: str, *dims: Dim) -> Dim:
    operands = [_read(dim) for dim in dims if dim is not None]
    if len(operands) < len(dims):
        return None
    try:
        match operation:
            case "+":
                return _write(add(*operands))
            case "*":
                return _write(multiply(*operands))
            case "//":
                return _write(divide(*operands))
        return _write(select(operation, *operands))
    except PolynomialError:
        return None


def _read(dim: int | str) -> Polynomial:
    if isinstance(dim, int):
        return make_constant(dim)
    try:
        return read_polynomial(dim)
    except PolynomialError:
        return make_name(dim)


def _write(polynomial: Polynomial) -> Dim:
    """Return a polynomial as an extent. Raises PolynomialError if it is too long."""
    value = get_constant(polynomial)
    if value is not None:
        return value
    name = get_atom(polynomial)
    if isinstance(name, str) and (is_plain_name(name) or _read(name) == polynomial):
        return name
    text = write_polynomial(polynomial)
    if len(text) > _MAX_LENGTH:
        raise PolynomialError("too long")
    return text
