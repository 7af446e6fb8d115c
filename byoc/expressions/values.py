"""What a condition comes to on some facts, in three values: true, false, or not known.

Null among the facts stands for something that is not known. Whatever reads it is not known either:
`X.shape[0] != 1` is not true of a batch that may be 1. As CEL has it, what decides without it counts:
`false && ...`, `true || ...`, an element in `all` for which it does not hold. Each part that is worked
out and each element that is looked at is a step, and the steps are limited.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import cel

from byoc.expressions.syntax import Literal, Made, Member, Name, Node, Walk

_MOST_STEPS = 40_000
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MATCH = cel.compile("text.matches(pattern)")
_REPEATED = re.compile(r"\{(?:\d*,)?(\d*)\}", re.ASCII)
_CHARACTERS = 50  # that are looked at in a step


class NoValueError(Exception):
    """An expression, or a part of it, that has no value."""


class UnknownError(NoValueError):
    """What the facts do not say."""


class MismatchError(NoValueError):
    """Values that do not go together, such as 1 and 1.0."""


class ExhaustedError(Exception):
    """More steps than there are; nothing decides without those."""


Scope = Mapping[str, tuple[Any, str]]
"""By the name that a walk gives to the elements: the element, and its path."""


def evaluate(node: Node, facts: Mapping[str, Any]) -> Any:
    """Return the value of an expression; raises NoValueError or ExhaustedError where it has none."""
    return _Evaluation(facts).value(node, {})


@dataclass(eq=False)
class _Evaluation:
    facts: Mapping[str, Any]
    left: int = _MOST_STEPS

    def value(self, node: Node, scope: Scope) -> Any:
        """Return a value that is known; raises UnknownError for one that is not."""
        found = self.found(node, scope)
        if found is None:
            raise UnknownError(f"{self.path(node, scope)} is not fixed")
        return found

    def found(self, node: Node, scope: Scope) -> Any:
        """Return a value, None for one that is not known."""
        self.left -= 1
        if self.left < 0:
            raise ExhaustedError
        return _FOUND[type(node)](self, node, scope)

    def made(self, node: Made, scope: Scope) -> Any:
        if node.by in _LAZY:
            return _LAZY[node.by](self, node.given, scope)
        return _STRICT[node.by](self, *[self.value(part, scope) for part in node.given])

    def listed(self, given: tuple[Node, ...], scope: Scope) -> list[Any]:
        return [self.found(part, scope) for part in given]

    def named(self, node: Name, scope: Scope) -> Any:
        if node.name in scope:
            return scope[node.name][0]
        if node.name not in self.facts:
            raise UnknownError(f"{node.name} is not known")
        return self.facts[node.name]

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError

    def path(self, node: Node, scope: Scope) -> str:
        """Return what a part is called in sentences."""
        if isinstance(node, Name):
            return scope[node.name][1] if node.name in scope else node.name
        if isinstance(node, Member):
            return f"{self.path(node.of, scope)}.{node.name}"
        if isinstance(node, Made) and node.by == "[.]":
            return f"{self.path(node.given[0], scope)}[{self.value(node.given[1], scope)}]"
        return "a value in it"

    def member(self, node: Member, scope: Scope) -> Any:
        of = self.value(node.of, scope)
        if not isinstance(of, Mapping):
            raise MismatchError(f"{self.path(node.of, scope)} is {kind(of)}, which has no .{node.name}")
        if node.asked:
            return node.name in of
        if node.name not in of:
            raise UnknownError(_missing(self.path(node.of, scope), node.name, of))
        return of[node.name]

    def element(self, given: tuple[Node, ...], scope: Scope) -> Any:
        of, at = (self.value(part, scope) for part in given)
        if not isinstance(of, list) or type(at) is not int:
            raise MismatchError("only a list has elements, by their whole numbers")
        if 0 <= at < len(of):
            return of[at]
        whose = self.path(given[0], scope)
        why = f"{whose} has {len(of)} elements" if at >= 0 else "elements are counted from 0"
        raise UnknownError(f"{whose}[{at}] is not there: {why}")

    def truth(self, node: Node, scope: Scope) -> bool:
        value = self.value(node, scope)
        if not isinstance(value, bool):
            raise MismatchError(f"{kind(value)} is neither true nor false")
        return value

    def decided(self, decisive: bool, asked: Iterator[Callable[[], bool]]) -> bool:
        """Return whether one of several is decisive, else the opposite, if all of them are known."""
        problem: NoValueError | None = None
        for ask in asked:
            try:
                if ask() == decisive:
                    return decisive
            except NoValueError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return not decisive

    def both(self, given: tuple[Node, ...], scope: Scope) -> bool:
        return self.decided(False, (partial(self.truth, part, scope) for part in given))

    def either(self, given: tuple[Node, ...], scope: Scope) -> bool:
        return self.decided(True, (partial(self.truth, part, scope) for part in given))

    def choice(self, given: tuple[Node, ...], scope: Scope) -> Any:
        return self.found(given[1] if self.truth(given[0], scope) else given[2], scope)

    def walk(self, node: Walk, scope: Scope) -> Any:
        of = self.value(node.of, scope)
        if not isinstance(of, list):
            raise MismatchError(f"`{node.kind}` walks lists, not {kind(of)}")
        self.spend(len(of))
        name, whose = node.variable, self.path(node.of, scope)
        scopes = ({**scope, name: (part, f"{whose}[{at}]")} for at, part in enumerate(of))
        if node.kind in ("all", "exists"):
            decisive = node.kind == "exists"
            return self.decided(decisive, (partial(self.truth, node.body, s) for s in scopes))
        if node.kind == "map":
            only = node.only
            return [self.found(node.body, s) for s in scopes if only is None or self.truth(only, s)]
        kept = [s[name][0] for s in scopes if self.truth(node.body, s)]
        return kept if node.kind == "filter" else len(kept) == 1

    def equal(self, left: Any, right: Any) -> bool:
        """Return whether two values are equal; raises UnknownError where what is not known decides."""
        self.spend(1)
        if left is None or right is None:
            raise UnknownError("a value in it is not known")
        if isinstance(left, Mapping) or isinstance(right, Mapping):
            raise MismatchError("a tensor is not compared as a whole")
        if isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs = zip(left, right, strict=True)
            return self.decided(False, (partial(self.equal, *pair) for pair in pairs))
        if isinstance(left, str) and isinstance(right, str):
            self.spend(min(len(left), len(right)) // _CHARACTERS)
            return left == right
        if kind(left) != kind(right):
            return False
        return bool(left == right)

    def within(self, item: Any, of: Any) -> bool:
        if not isinstance(of, list):
            raise MismatchError(f"`in` asks a list, not {kind(of)}")
        return self.decided(True, (partial(self.equal, item, part) for part in of))

    def order(self, left: Any, right: Any) -> int:
        """Return how two numbers or texts compare, 2 where not at all (NaN)."""
        if not (_is_number(left) and _is_number(right)) and not (
            isinstance(left, str) and isinstance(right, str)
        ):
            raise MismatchError(f"{kind(left)} and {kind(right)} have no order")
        if isinstance(left, str):
            self.spend(len(left) // _CHARACTERS)
        return 0 if left == right else -1 if left < right else 1 if left > right else 2

    def add(self, left: Any, right: Any) -> Any:
        if isinstance(left, list) and isinstance(right, list):
            self.spend(len(left) + len(right))
            return left + right
        if isinstance(left, str) and isinstance(right, str):
            self.spend((len(left) + len(right)) // _CHARACTERS)
            return left + right
        return self.computed(left, right, lambda: left + right)

    def computed(self, left: Any, right: Any, result: Callable[[], Any]) -> Any:
        if not _is_number(left) or type(left) is not type(right):
            raise MismatchError(f"{kind(left)} and {kind(right)} are not computed with one another")
        try:
            value = result()
        except OverflowError:
            raise NoValueError("a number in it is too great") from None
        return _whole(value) if isinstance(value, int) else value

    def quotient(self, left: Any, right: Any) -> Any:
        return self.computed(left, right, lambda: _quotient(left, right))

    def remainder(self, left: Any, right: Any) -> Any:
        if isinstance(left, float):
            raise MismatchError("only whole numbers have a remainder")
        return self.computed(left, right, lambda: left - right * _quotient(left, right))

    def negative(self, value: Any) -> Any:
        return self.computed(value, value, lambda: -value)

    def opposite(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise MismatchError(f"{kind(value)} is neither true nor false")
        return not value

    def size(self, value: Any) -> int:
        if not isinstance(value, (str, list)):
            raise MismatchError(f"{kind(value)} has no size")
        return len(value)

    def text_in(self, ask: Callable[[str, str], bool], text: Any, part: Any) -> bool:
        if not isinstance(text, str) or not isinstance(part, str):
            raise MismatchError("only texts are searched, for texts")
        self.spend((len(text) + len(part)) // _CHARACTERS)
        return ask(text, part)

    def matches(self, text: str, pattern: str) -> bool:
        """Return whether a regular expression is found in a text."""
        self.spend(_match_steps(text, pattern))
        try:
            return bool(_MATCH.execute({"text": text, "pattern": pattern}))
        except Exception:  # the package has an error for each way of being none
            raise NoValueError(f"'{pattern[:80]}' is not a regular expression") from None

    def whole(self, value: Any) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return _whole(int(value))
        if not _is_number(value) or not math.isfinite(value):
            raise MismatchError(f"{kind(value)} is not made a whole number")
        return _whole(int(value))

    def natural(self, value: Any) -> int:
        number = self.whole(value)
        if number < 0:
            raise NoValueError(f"{number} is below 0")
        return number

    def fraction(self, value: Any) -> float:
        if isinstance(value, str) and len(value) <= 400 and _NUMBER.fullmatch(value):
            return float(value)
        if not _is_number(value):
            raise MismatchError(f"{kind(value)} is not made a number")
        return float(value)

    def text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if not _is_number(value):
            raise MismatchError(f"{kind(value)} is not made a text")
        return str(value).removesuffix(".0")


_Lazy = Callable[[_Evaluation, tuple[Node, ...], Scope], Any]
_LAZY: Mapping[str, _Lazy] = {
    "&&": _Evaluation.both,
    "||": _Evaluation.either,
    "?": _Evaluation.choice,
    "[]": _Evaluation.listed,
    "[.]": _Evaluation.element,
}
_FOUND: Mapping[type[Node], Callable[[_Evaluation, Any, Scope], Any]] = {
    Literal: lambda _, node, __: node.value,
    Name: _Evaluation.named,
    Member: _Evaluation.member,
    Made: _Evaluation.made,
    Walk: _Evaluation.walk,
}
_STRICT: Mapping[str, Callable[..., Any]] = {
    "==": _Evaluation.equal,
    "!=": lambda e, left, right: not e.equal(left, right),
    "<": lambda e, left, right: e.order(left, right) == -1,
    "<=": lambda e, left, right: e.order(left, right) in (-1, 0),
    ">": lambda e, left, right: e.order(left, right) == 1,
    ">=": lambda e, left, right: e.order(left, right) in (1, 0),
    "in": _Evaluation.within,
    "+": _Evaluation.add,
    "-": lambda e, left, right: e.computed(left, right, lambda: left - right),
    "*": lambda e, left, right: e.computed(left, right, lambda: left * right),
    "/": _Evaluation.quotient,
    "%": _Evaluation.remainder,
    "-.": _Evaluation.negative,
    "!": _Evaluation.opposite,
    "size": _Evaluation.size,
    "contains": lambda e, text, part: e.text_in(lambda a, b: b in a, text, part),
    "startsWith": lambda e, text, part: e.text_in(str.startswith, text, part),
    "endsWith": lambda e, text, part: e.text_in(str.endswith, text, part),
    "matches": lambda e, text, pattern: e.text_in(e.matches, text, pattern),
    "int": _Evaluation.whole,
    "uint": _Evaluation.natural,
    "double": _Evaluation.fraction,
    "string": _Evaluation.text,
    "type": lambda _, value: _type(value),
}


def _match_steps(text: str, pattern: str) -> int:
    """Return about what it takes to make a regular expression, and to hold a text against it.

    A counted repetition is as long as what it repeats, so many times; a class such as `\\w` or `\\p{L}`
    has hundreds of ranges.
    """
    length = 10 * len(pattern) + 100 * pattern.count("\\")
    for count in _REPEATED.findall(pattern):
        length *= max(int(count[:6] or 1), 1)
    return 200 + length + len(text) * length // 10_000


def kind(value: Any) -> str:
    """Return what a value is, as sentences say it."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "a tensor or node"


def _type(value: Any) -> str:
    names = {bool: "bool", int: "int", float: "double", str: "string", list: "list"}
    return names.get(type(value), "map")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: int) -> int:
    if not _LEAST <= value <= _MOST:
        raise NoValueError("a number in it is too great")
    return value


def _quotient(left: Any, right: Any) -> Any:
    """Return a quotient as CEL has it: of whole numbers towards 0, of others as IEEE 754."""
    if isinstance(left, int):
        if right == 0:
            raise NoValueError("it divides by 0")
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if right == 0:
        sign = math.copysign(1, left) * math.copysign(1, right)
        return math.nan if left == 0 or math.isnan(left) else sign * math.inf
    return left / right


def _missing(path: str, key: str, facts: Mapping[str, Any]) -> str:
    if facts.get("given") is False:
        return f"{path} is not given"
    if key in ("rank", "elements", "bytes") and "shape" not in facts and "given" in facts:
        return f"{path}.shape is not known"
    if key in ("elements", "bytes") and None in facts.get("shape", ()):
        return f"{path}.shape[{facts['shape'].index(None)}] is not fixed"
    return f"{path}.{key} is not known"
