"""Polynomials with whole coefficients, whose atoms are names, floor divisions, maxima and minima.

They are what expressions of extents are calculated in, such as `past + seq` or `(h + 1) // 2`. Names
stand for extents, so they are not negative. Equal polynomials are equal tuples.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from keyword import iskeyword
from math import gcd

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
