"""Arithmetic on extents that may be symbolic: `past + seq`, `2*h`, `(h + 1) // 2`, `max(n - 3, 0)`.

An extent is a number, None where it is unknown, or text: the name of an open dimension, or an expression
of such names in canonical form. Values of integer tensors, which may be negative, are calculated in the
same way. What grows beyond all use is unknown.
"""

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from itertools import product

from byoc.model._inference._polynomials import (
    CACHE_SIZE,
    MAX_POWER,
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
    negate,
    select,
    write_polynomial,
)
from byoc.model._tensor_data import Dim, TensorType

# The polynomials of expressions written as text, such as exporters give as names of dimensions.

_MAX_TEXT_LENGTH = 400  # characters of a dimension's name that is read as an expression
# Such as `batch-size`; exporters write a difference with spaces.
_HYPHENATED = re.compile(r"\s*[A-Za-z_]\w*(-[A-Za-z_]\w*)+\s*")


@lru_cache(CACHE_SIZE)
def read_polynomial(text: str) -> Polynomial:
    """Return the polynomial of an expression. Raises PolynomialError for any other text.

    Read are `+`, `-`, `*`, `//`, `%`, whole powers, `max`, `min`, `floor(a/b)` and `ceil(a/b)`. A
    name that is none in Python stands in quotes. Words joined by hyphens without spaces are a name.
    """
    if len(text) > _MAX_TEXT_LENGTH or not text.isascii() or _HYPHENATED.fullmatch(text):
        raise PolynomialError("not an expression")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's syntax
            return _read_tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PolynomialError("not an expression") from None


def _read_tree(tree: ast.expr) -> Polynomial:
    match tree:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return make_constant(value)
        case ast.Constant(value=str(name)) | ast.Name(id=name) if name:
            return make_name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return negate(_read_tree(operand))
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(power))):
            if 0 < power <= MAX_POWER:
                return reduce(multiply, [_read_tree(base)] * power)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_read_tree(left), _read_tree(right))
        case ast.Call(func=ast.Name(id=word), args=operands, keywords=[]) if operands:
            return _read_call(word.lower(), operands)
    raise PolynomialError("not an expression")


def _read_call(word: str, operands: list[ast.expr]) -> Polynomial:
    if word in ("max", "min"):
        return select(word, *map(_read_tree, operands))
    match operands:
        case [ast.BinOp(left=left, op=ast.Div(), right=right)] if word == "floor":
            return divide(_read_tree(left), _read_tree(right))
        case [ast.BinOp(left=left, op=ast.Div(), right=right)] if word in ("ceil", "ceiling"):
            return negate(divide(negate(_read_tree(left)), _read_tree(right)))
    raise PolynomialError("not an expression")


_OPERATIONS: dict[type[ast.operator], Callable[[Polynomial, Polynomial], Polynomial]] = {
    ast.Add: add,
    ast.Sub: lambda a, b: add(a, negate(b)),
    ast.Mult: multiply,
    ast.FloorDiv: divide,
    ast.Mod: lambda a, b: add(a, negate(multiply(b, divide(a, b)))),
}


_CACHE = 1 << 16
_MAX_LENGTH = 300  # characters of an extent as text; a longer one is unknown


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


def is_cut_to(dim: Dim, whole: Dim) -> bool:
    """Return whether an extent is the least of another one and of numbers of at least 1."""
    if not isinstance(dim, str) or not isinstance(whole, str):
        return False
    atom = get_atom(_read(dim))
    if atom is None or isinstance(atom, str) or atom[0] != "min":
        return False
    others = [operand for operand in atom[1] if operand != _read(whole)]
    sizes = [get_constant(operand) for operand in others]
    return len(others) < len(atom[1]) and all(size is not None and size > 0 for size in sizes)


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


# The least and the largest an extent can be while its names are within ranges, by interval
# arithmetic.
#
# The interval is never too small; where a name occurs several times it can be too large.

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
