"""The polynomials of expressions written as text, such as exporters give as names of dimensions."""

import ast
import re
import warnings
from collections.abc import Callable
from functools import lru_cache, reduce

from byoc.model.inference._polynomials import (
    CACHE_SIZE,
    MAX_POWER,
    Polynomial,
    PolynomialError,
    add,
    divide,
    make_constant,
    make_name,
    multiply,
    negate,
    select,
)

_MAX_LENGTH = 400
# Such as `batch-size`; exporters write a difference with spaces.
_HYPHENATED = re.compile(r"\s*[A-Za-z_]\w*(-[A-Za-z_]\w*)+\s*")


@lru_cache(CACHE_SIZE)
def read_polynomial(text: str) -> Polynomial:
    """Return the polynomial of an expression. Raises PolynomialError for any other text.

    Read are `+`, `-`, `*`, `//`, `%`, whole powers, `max`, `min`, `floor(a/b)` and `ceil(a/b)`. A
    name that is none in Python stands in quotes. Words joined by hyphens without spaces are a name.
    """
    if len(text) > _MAX_LENGTH or not text.isascii() or _HYPHENATED.fullmatch(text):
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
