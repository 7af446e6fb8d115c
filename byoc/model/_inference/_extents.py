"""Arithmetic on extents that may be symbolic: `past + seq`, `2*h`, `(h + 1) // 2`, `max(n - 3, 0)`.

An extent is a number, None where it is unknown, or text: the name of an open dimension, or an expression
of such names in canonical form. Values of integer tensors, which may be negative, are calculated in the
same way. What grows beyond all use is unknown.

Expressions are calculated as polynomials with whole coefficients, whose atoms are names, floor
divisions, maxima and minima. Equal polynomials are equal tuples.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from itertools import product
from keyword import iskeyword
from math import gcd

from byoc.model._tensor_data import Dim, TensorType

_MAX_TERMS = 24  # a product of polynomials has up to their product
_MAX_CASES = 2_000  # of a proof: each maximum in it doubles them
MAX_POWER = 8  # of a product of extents
CACHE_SIZE = 1 << 14

# A name, or "//", "max" or "min" of polynomials.
Atom = str | tuple[str, tuple["Polynomial", ...]]
# The atoms of a product, sorted, repeated as often as they are factors; the empty product is 1.
Monomial = tuple[Atom, ...]
# The monomials and their coefficients, sorted; none is 0.
Polynomial = tuple[tuple[Monomial, int], ...]


class PolynomialError(ValueError):
    """Text that is no expression, a division by 0, or an expression too long to be of use."""


def make_constant(value: int) -> Polynomial:
    """Return the polynomial of a number."""
    return (((), value),) if value else ()


def make_name(name: str) -> Polynomial:
    """Return the polynomial of a name."""
    return (((name,), 1),)


def get_constant(polynomial: Polynomial) -> int | None:
    """Return the value of a polynomial without atoms, None for any other."""
    if not polynomial:
        return 0
    return polynomial[0][1] if len(polynomial) == 1 and not polynomial[0][0] else None


def get_atom(polynomial: Polynomial) -> Atom | None:
    """Return the atom that a polynomial consists of, None for any other."""
    if len(polynomial) != 1 or polynomial[0][1] != 1 or len(polynomial[0][0]) != 1:
        return None
    return polynomial[0][0][0]


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    """Return the polynomial of some terms, in which a monomial may occur several times."""
    found: dict[Monomial, int] = {}
    for monomial, factor in terms:
        found[monomial] = found.get(monomial, 0) + factor
    kept = [(monomial, factor) for monomial, factor in found.items() if factor]
    if len(kept) > _MAX_TERMS or any(len(monomial) > MAX_POWER for monomial, _ in kept):
        raise PolynomialError("too many terms")
    return tuple(sorted(kept, key=_order_term))


def _order_term(term: tuple[Monomial, int]) -> tuple[bool, int, list[str]]:
    monomial, factor = term
    return factor < 0, -len(monomial), [_write_atom(atom) for atom in monomial]


def add(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return the sum. Raises PolynomialError if it is too long, as all operations do."""
    return _collect((*a, *b))


def negate(a: Polynomial) -> Polynomial:
    """Return the negative."""
    return _collect((monomial, -factor) for monomial, factor in a)


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return the product."""
    return _collect((tuple(sorted((*m, *n), key=_write_atom)), f * g) for m, f in a for n, g in b)


def divide(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return the floor of `a / b`. Raises PolynomialError for 0.

    Multiples of a whole divisor come out of it, nested divisions become one, and one that rounds up is
    written as one that rounds down.
    """
    exact = _divide_exactly(a, b)
    if exact is not None:
        return exact
    divisor = get_constant(b)
    if divisor is None:
        return make_atom("//", (a, b))
    if divisor < 0:
        return divide(negate(a), make_constant(-divisor))
    if any(monomial for monomial, _ in a) and all(factor < 0 for monomial, factor in a if monomial):
        return negate(divide(add(negate(a), make_constant(divisor - 1)), b))
    whole = _collect((m, f // divisor) for m, f in a)
    rest = _collect((m, f % divisor) for m, f in a)
    shared = gcd(divisor, *(factor for monomial, factor in rest if monomial))
    rest = _collect((m, f // shared) for m, f in rest)  # of the constant the floor is enough
    if divisor == shared:
        return add(whole, rest)
    return whole if not rest else add(whole, _divide_nested(rest, divisor // shared))


def _divide_nested(a: Polynomial, divisor: int) -> Polynomial:
    """Return `(x // n + c) // divisor` as one division by `n * divisor`, any other as it is."""
    added = sum(factor for monomial, factor in a if not monomial)
    atom = get_atom(add(a, make_constant(-added)))
    inner = get_constant(atom[1][1]) if isinstance(atom, tuple) and atom[0] == "//" else None
    if isinstance(atom, tuple) and inner is not None and inner > 0:
        return divide(add(atom[1][0], make_constant(inner * added)), make_constant(inner * divisor))
    return make_atom("//", (a, make_constant(divisor)))


def make_atom(word: str, operands: tuple[Polynomial, ...]) -> Polynomial:
    """Return the polynomial of an atom that is a division, maximum or minimum."""
    return ((((word, operands),), 1),)


def _divide_exactly(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return `a / b` by long division if no remainder is left, None otherwise."""
    if not b:
        raise PolynomialError("division by 0")
    lead, factor = min(b, key=_order_lead)
    rest = a
    found: list[tuple[Monomial, int]] = []
    for _ in range(_MAX_TERMS):
        if not rest:
            return _collect(found)
        monomial, coefficient = min(rest, key=_order_lead)
        left = list(monomial)
        for atom in lead:
            if atom not in left:
                return None
            left.remove(atom)
        if coefficient % factor:
            return None
        found.append((tuple(left), coefficient // factor))
        rest = add(rest, multiply(((tuple(left), -(coefficient // factor)),), b))
    return None


def _order_lead(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [_write_atom(atom) for atom in term[0]]


def select(word: str, *operands: Polynomial) -> Polynomial:
    """Return the maximum (`max`) or minimum (`min`); operands that others always beat are left out."""
    flat: list[Polynomial] = []
    for each in operands:
        atom = get_atom(each)
        flat.extend(atom[1] if isinstance(atom, tuple) and atom[0] == word else (each,))
    kept: list[Polynomial] = []
    for each in dict.fromkeys(flat):
        if not any(_beats(word, other, each) for other in kept):
            kept = [*(other for other in kept if not _beats(word, each, other)), each]
    if len(kept) == 1:
        return kept[0]
    return make_atom(word, tuple(sorted(kept, key=write_polynomial)))


def _beats(word: str, one: Polynomial, other: Polynomial) -> bool:
    difference = add(one, negate(other))
    return is_not_negative(difference if word == "max" else negate(difference))


def is_not_negative(polynomial: Polynomial) -> bool:
    """Return whether a polynomial is proven to be at least 0 whatever its names stand for.

    A proof of more than `_MAX_CASES` cases is not tried to its end: each maximum doubles them.
    """
    return _prove(polynomial, iter(range(_MAX_CASES)))


def _prove(polynomial: Polynomial, cases: Iterator[int]) -> bool:
    """Return whether it is proven with the cases that are left."""
    if next(cases, None) is None:
        return False
    if all(f > 0 and all(_is_atom_not_negative(atom, cases) for atom in m) for m, f in polynomial):
        return True
    for monomial, factor in polynomial:
        atom = monomial[0] if len(monomial) == 1 else ""
        if isinstance(atom, str):
            continue
        rest = add(polynomial, (((atom,), -factor),))
        if atom[0] == ("max" if factor < 0 else "min"):
            scaled = [multiply(each, make_constant(factor)) for each in atom[1]]
            return all(_prove(add(rest, each), cases) for each in scaled)
        bound = _bound_division(atom, factor)
        if bound is not None:
            least, divisor = bound
            return _prove(add(multiply(rest, make_constant(divisor)), least), cases)
    return False


def _bound_division(atom: Atom, factor: int) -> tuple[Polynomial, int] | None:
    """Return `least` and `d` with `factor * (n // d) >= least / d`, None for any other atom."""
    if isinstance(atom, str) or atom[0] != "//":
        return None
    divisor = get_constant(atom[1][1])
    if divisor is None or divisor < 1:
        return None
    lost = factor * (divisor - 1) if factor > 0 else 0
    return add(multiply(atom[1][0], make_constant(factor)), make_constant(-lost)), divisor


def _is_atom_not_negative(atom: Atom, cases: Iterator[int]) -> bool:
    if isinstance(atom, str):
        return True
    return (any if atom[0] == "max" else all)(_prove(each, cases) for each in atom[1])


@lru_cache(CACHE_SIZE)
def write_polynomial(polynomial: Polynomial) -> str:
    """Return the expression of a polynomial, which `read_polynomial` reads back."""
    text = "".join(
        f" {'-' if factor < 0 else '+'} {_write_term(monomial, factor)}"
        for monomial, factor in polynomial
    )
    if not text:
        return "0"
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}"


def _write_term(monomial: Monomial, factor: int) -> str:
    """Return a term without its sign."""
    bare = len(monomial) == 1 and factor == 1  # else a division would be of the product, or the negative
    shown = [
        f"({_write_atom(atom)})"
        if isinstance(atom, tuple) and atom[0] == "//" and not bare
        else _write_atom(atom)
        for atom in monomial
    ]
    return "*".join(shown if abs(factor) == 1 and shown else [str(abs(factor)), *shown])


@lru_cache(CACHE_SIZE)
def _write_atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom if is_plain_name(atom) else ascii(atom)
    word, operands = atom
    shown = [write_polynomial(each) for each in operands]
    if word != "//":
        return f"{word}({', '.join(shown)})"
    return " // ".join(
        each if each.isidentifier() or each.isdecimal() else f"({each})" for each in shown
    )


def is_plain_name(text: str) -> bool:
    """Return whether a name stands in expressions without quotes."""
    return text.isascii() and text.isidentifier() and not iskeyword(text)


def evaluate(polynomial: Polynomial, sizes: Mapping[str, int]) -> int:
    """Return the value at some sizes. Raises KeyError for a name without one, ZeroDivisionError."""
    total = 0
    for monomial, factor in polynomial:
        product = factor
        for atom in monomial:
            product *= _evaluate_atom(atom, sizes)
        total += product
    return total


def _evaluate_atom(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    numbers = [evaluate(each, sizes) for each in atom[1]]
    if atom[0] == "//":
        return numbers[0] // numbers[1]
    return max(numbers) if atom[0] == "max" else min(numbers)


def list_names(polynomial: Polynomial) -> set[str]:
    """Return the names in a polynomial."""
    names: set[str] = set()
    for monomial, _ in polynomial:
        for atom in monomial:
            if isinstance(atom, str):
                names.add(atom)
            else:
                names.update(*map(list_names, atom[1]))
    return names


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
