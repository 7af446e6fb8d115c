"""Conditions in three values, true, false, or not known; their operators and functions.

A null among the facts stands for a value that is not known, and an expression that reads it is not known
either: `X.shape[0] != 1` is not true of a batch that may be 1. A number that is known as a range is used
as far as all numbers of the range give one answer. As in CEL, an operand that decides alone
counts: `false && ...`, `true || ...`, an element in `all` for which the body is false. Every node and
every element is a step, and the number of steps is limited.

An operation that needs a null raises UnknownError. Whole numbers and other numbers are different types,
as CEL has it: `1 == 1.0` is false and `1 + 1.0` is an error.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any

from pydantic_core import SchemaValidator, core_schema

from byoc._dataclasses import dataclass, field
from byoc.support.expressions._parser import (
    Comprehension,
    ExpressionNode,
    Literal,
    Member,
    Name,
    OperatorCall,
    find_paths,
    parse_expression,
)

# Numbers that are known as ranges: what an operation gives for all numbers of a range at once.
#
# Interval arithmetic: a range that follows is never too small. Where a number occurs several times
# it can be too large, and a condition that holds for all of them can then not be worked out.

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


_COUNT = re.compile(r"\{(?:\d*,)?(\d*)\}", re.ASCII)


@lru_cache(maxsize=4096)
def compile_regex(pattern: str) -> SchemaValidator:
    """Return a compiled regular expression. Raises ValueError when `pattern` is not one."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except Exception as error:  # the last line of a message says what is wrong
        found = re.search(r"error: ([^\n]+)\Z", str(error))
        reason = f": {found[1]}" if found else ""
        raise ValueError(f"'{pattern}' is not a regular expression{reason}") from None


def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression is found anywhere in a text. Raises as `compile_regex`."""
    return compile_regex(pattern).isinstance_python(text)


def estimate_match_steps(pattern: str, text: str) -> int:
    """Return the approximate number of evaluation steps for compiling a pattern and searching a text.

    A counted repetition is as long as its operand, repeated; a class such as `\\w` or `\\p{L}` has
    hundreds of ranges.
    """
    length = 10 * len(pattern) + 100 * pattern.count("\\")
    for count in _COUNT.findall(pattern):
        length *= max(int(count[:6] or 1), 1)
    return 200 + length + len(text) * length // 10_000


_MAX_STEPS = 40_000  # of one evaluation, which happens for each node of a model
_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1
_INT = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CHARACTERS_PER_STEP = 50  # of texts that are joined or compared


class NoValueError(Exception):
    """An expression, or a part of it, has no value."""


class UnknownError(NoValueError):
    """A value is needed that the facts do not give."""


class MismatchError(NoValueError):
    """Values are combined that do not go together, such as 1 and 1.0."""


class StepLimitError(Exception):
    """An evaluation takes too many steps. It is undecided, whatever its other parts are."""


@dataclass(eq=False)
class StepCounter:
    """The steps that are left to an evaluation."""

    left: int = _MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        """Count steps. Raises StepLimitError when there were too many."""
        self.left -= steps
        if self.left < 0:
            raise StepLimitError

    def spend_on_text(self, characters: int) -> None:
        """Count the steps that looking at so many characters takes."""
        self.spend(characters // _CHARACTERS_PER_STEP)


def describe_kind(value: Any) -> str:
    """Return the kind of a value for messages: `a number`."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float, NumberRange)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "a tensor or node"


def require_bool(value: Any) -> bool:
    """Return a truth value. Raises MismatchError for anything else."""
    if not isinstance(value, bool):
        raise MismatchError(f"{describe_kind(value)} is neither true nor false")
    return value


def decide(decisive: bool, answers: Iterable[Callable[[], bool]]) -> bool:
    """Return `decisive` if one of the answers is, else the opposite.

    Each answer is a function, called in order until one decides. If none does and one has raised
    NoValueError, that is raised.
    """
    problem: NoValueError | None = None
    for answer in answers:
        try:
            if answer() == decisive:
                return decisive
        except NoValueError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return not decisive


def is_equal(steps: StepCounter, left: Any, right: Any) -> bool:
    """Return whether two values are equal. Raises UnknownError where an unknown value decides."""
    steps.spend()
    if left is None or right is None:
        raise UnknownError("a value in it is not known")
    if isinstance(left, Mapping) or isinstance(right, Mapping):
        raise MismatchError("a tensor is not compared as a whole")
    if isinstance(left, NumberRange) or isinstance(right, NumberRange):
        if are_disjoint(left, right):
            return False
        span = left if isinstance(left, NumberRange) else right
        raise UnknownError(f"a number in it can be anything from {span}")
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return False
        pairs = zip(left, right, strict=True)
        return decide(False, (partial(is_equal, steps, *pair) for pair in pairs))
    if isinstance(left, str) and isinstance(right, str):
        steps.spend_on_text(min(len(left), len(right)))
        return left == right
    return describe_kind(left) == describe_kind(right) and bool(left == right)


def _contains_element(steps: StepCounter, item: Any, values: Any) -> bool:
    if not isinstance(values, list):
        raise MismatchError(f"`in` needs a list, not {describe_kind(values)}")
    return decide(True, (partial(is_equal, steps, item, value) for value in values))


def _compare(steps: StepCounter, left: Any, right: Any) -> int | None:
    """Return -1, 0 or 1 for less, equal or greater, None for a number that is NaN."""
    if not (_is_number(left) and _is_number(right)) and not (
        isinstance(left, str) and isinstance(right, str)
    ):
        raise MismatchError(f"{describe_kind(left)} and {describe_kind(right)} have no order")
    if isinstance(left, str):
        steps.spend_on_text(len(left))
    return 0 if left == right else -1 if left < right else 1 if left > right else None


def _add(steps: StepCounter, left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list):
        steps.spend(len(left) + len(right))
        return left + right
    if isinstance(left, str) and isinstance(right, str):
        steps.spend_on_text(len(left) + len(right))
        return left + right
    return _compute(left, right, lambda: left + right)


def _compute(left: Any, right: Any, operation: Callable[[], Any]) -> Any:
    """Return the result of an operation on two numbers of one type."""
    if not _is_number(left) or type(left) is not type(right):
        kinds = f"{describe_kind(left)} and {describe_kind(right)}"
        raise MismatchError(f"{kinds} are not computed with one another")
    try:
        value = operation()
    except OverflowError:
        raise NoValueError("a number in it is too great") from None
    return _limit_int(value) if isinstance(value, int) else value


def _divide(left: Any, right: Any) -> Any:
    """Divide as CEL does: whole numbers towards 0, other numbers as in IEEE 754."""
    if isinstance(left, int):
        if right == 0:
            raise NoValueError("it divides by 0")
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if right == 0:
        sign = math.copysign(1, left) * math.copysign(1, right)
        return math.nan if left == 0 or math.isnan(left) else sign * math.inf
    return left / right


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        raise MismatchError("only whole numbers have a remainder")
    return _compute(left, right, lambda: left - right * _divide(left, right))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _limit_int(value: int) -> int:
    if not _MIN_INT <= value <= _MAX_INT:
        raise NoValueError("a number in it is too great")
    return value


def _size(value: Any) -> int:
    if not isinstance(value, (str, list)):
        raise MismatchError(f"{describe_kind(value)} has no size")
    return len(value)


def _search_text(steps: StepCounter, search: Callable[[str, str], bool], text: Any, part: Any) -> bool:
    if not isinstance(text, str) or not isinstance(part, str):
        raise MismatchError("only texts are searched, for texts")
    steps.spend_on_text(len(text) + len(part))
    return search(text, part)


def _match(steps: StepCounter, text: str, pattern: str) -> bool:
    steps.spend(estimate_match_steps(pattern, text))
    try:
        return compile_regex(pattern).isinstance_python(text)
    except ValueError:
        raise NoValueError(f"'{pattern[:80]}' is not a regular expression") from None


def _to_int(value: Any) -> int:
    if isinstance(value, str) and _INT.fullmatch(value):
        return _limit_int(int(value))
    if not _is_number(value) or not math.isfinite(value):
        raise MismatchError(f"{describe_kind(value)} is not made a whole number")
    return _limit_int(int(value))


def _to_uint(value: Any) -> int:
    number = _to_int(value)
    if number < 0:
        raise NoValueError(f"{number} is below 0")
    return number


def _to_double(value: Any) -> float:
    if isinstance(value, str) and len(value) <= 400 and _FLOAT.fullmatch(value):
        return float(value)
    if not _is_number(value):
        raise MismatchError(f"{describe_kind(value)} is not made a number")
    return float(value)


def _to_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not _is_number(value):
        raise MismatchError(f"{describe_kind(value)} is not made a text")
    return str(value).removesuffix(".0")


def _type_name(value: Any) -> str:
    names = {bool: "bool", int: "int", float: "double", str: "string", list: "list"}
    return names.get(type(value), "map")


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "==": is_equal,
    "!=": lambda steps, left, right: not is_equal(steps, left, right),
    "<": lambda steps, left, right: _compare(steps, left, right) == -1,
    "<=": lambda steps, left, right: _compare(steps, left, right) in (-1, 0),
    ">": lambda steps, left, right: _compare(steps, left, right) == 1,
    ">=": lambda steps, left, right: _compare(steps, left, right) in (1, 0),
    "in": _contains_element,
    "+": _add,
    "-": lambda _, left, right: _compute(left, right, lambda: left - right),
    "*": lambda _, left, right: _compute(left, right, lambda: left * right),
    "/": lambda _, left, right: _compute(left, right, lambda: _divide(left, right)),
    "%": lambda _, left, right: _remainder(left, right),
    "-.": lambda _, value: _compute(value, value, lambda: -value),
    "!": lambda _, value: not require_bool(value),
    "size": lambda _, value: _size(value),
    "contains": lambda steps, text, part: _search_text(steps, lambda a, b: b in a, text, part),
    "startsWith": lambda steps, text, part: _search_text(steps, str.startswith, text, part),
    "endsWith": lambda steps, text, part: _search_text(steps, str.endswith, text, part),
    "matches": lambda steps, text, part: _search_text(steps, partial(_match, steps), text, part),
    "int": lambda _, value: _to_int(value),
    "uint": lambda _, value: _to_uint(value),
    "double": lambda _, value: _to_double(value),
    "string": lambda _, value: _to_string(value),
    "type": lambda _, value: _type_name(value),
}
"""The operations whose operands must all be known, by operator, function or method.

Each takes the step counter and the values of its operands.
"""


# Conditions, evaluated in three values: true, false, or not known.


_Scope = Mapping[str, tuple[Any, str]]
"""The name of an element in a comprehension to the element and its path for messages."""


def evaluate(node: ExpressionNode, facts: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Raises NoValueError where it has none, StepLimitError where it takes too many steps.
    """
    return _Evaluation(facts).evaluate_known(node, {})


@dataclass(eq=False)
class _Evaluation:
    facts: Mapping[str, Any]
    steps: StepCounter = field(default_factory=StepCounter)

    def evaluate_known(self, node: ExpressionNode, scope: _Scope) -> Any:
        """Return the value of a node. Raises UnknownError when it is null."""
        value = self.evaluate(node, scope)
        if value is None:
            raise UnknownError(f"{self.describe(node, scope)} is not fixed")
        return value

    def evaluate(self, node: ExpressionNode, scope: _Scope) -> Any:
        """Return the value of a node, None for one that is not known."""
        self.steps.spend()
        match node:
            case Literal():
                return node.value
            case Name():
                return self.look_up(node.name, scope)
            case Member():
                return self.get_member(node, scope)
            case OperatorCall():
                return self.apply(node.operator, node.operands, scope)
            case Comprehension():
                return self.iterate(node, scope)
            case _:
                raise TypeError(type(node).__name__)

    def evaluate_bool(self, node: ExpressionNode, scope: _Scope) -> bool:
        return require_bool(self.evaluate_known(node, scope))

    def look_up(self, name: str, scope: _Scope) -> Any:
        if name in scope:
            return scope[name][0]
        if name not in self.facts:
            raise UnknownError(f"{name} is not known")
        return self.facts[name]

    def get_member(self, node: Member, scope: _Scope) -> Any:
        of = self.evaluate_known(node.of, scope)
        if not isinstance(of, Mapping):
            path = self.describe(node.of, scope)
            raise MismatchError(f"{path} is {describe_kind(of)}, which has no .{node.name}")
        if node.is_test:
            return node.name in of and not isinstance(of[node.name], NumberRange)
        if node.name not in of:
            raise UnknownError(_explain_missing(self.describe(node.of, scope), node.name, of))
        return of[node.name]

    def apply(self, operator: str, operands: tuple[ExpressionNode, ...], scope: _Scope) -> Any:
        if operator in ("&&", "||"):
            answers = (partial(self.evaluate_bool, operand, scope) for operand in operands)
            return decide(operator == "||", answers)
        if operator == "?":
            condition, then, otherwise = operands
            return self.evaluate(then if self.evaluate_bool(condition, scope) else otherwise, scope)
        if operator == "[]":
            return [self.evaluate(operand, scope) for operand in operands]
        if operator == "[.]":
            of, index = operands
            return self.get_element(of, index, scope)
        values = [self.evaluate_known(operand, scope) for operand in operands]
        operation = partial(OPERATIONS[operator], self.steps)
        at = next((i for i, value in enumerate(values) if isinstance(value, NumberRange)), None)
        if at is None or operator == "in":
            return operation(*values)
        found = apply_to_ranges(operator, operation, values)
        if found is None:
            raise UnknownError(f"{self.describe(operands[at], scope)} can be anything from {values[at]}")
        return found

    def get_element(self, of: ExpressionNode, index: ExpressionNode, scope: _Scope) -> Any:
        values, at = self.evaluate_known(of, scope), self.evaluate_known(index, scope)
        if not isinstance(values, list) or type(at) is not int:
            raise MismatchError("only a list has elements, by their whole numbers")
        if 0 <= at < len(values):
            return values[at]
        path = self.describe(of, scope)
        reason = f"{path} has {len(values)} elements" if at >= 0 else "elements are counted from 0"
        raise UnknownError(f"{path}[{at}] is not there: {reason}")

    def iterate(self, node: Comprehension, scope: _Scope) -> Any:
        values = self.evaluate_known(node.of, scope)
        if not isinstance(values, list):
            raise MismatchError(f"`{node.kind}` iterates over a list, not {describe_kind(values)}")
        self.steps.spend(len(values))
        name, path = node.variable, self.describe(node.of, scope)
        scopes = ({**scope, name: (value, f"{path}[{at}]")} for at, value in enumerate(values))
        if node.kind in ("all", "exists"):
            answers = (partial(self.evaluate_bool, node.body, inner) for inner in scopes)
            return decide(node.kind == "exists", answers)
        if node.kind == "map":
            only = node.only
            chosen = (inner for inner in scopes if only is None or self.evaluate_bool(only, inner))
            return [self.evaluate(node.body, inner) for inner in chosen]
        found = [inner[name][0] for inner in scopes if self.evaluate_bool(node.body, inner)]
        return found if node.kind == "filter" else len(found) == 1

    def describe(self, node: ExpressionNode, scope: _Scope) -> str:
        """Return the path of a node for messages."""
        if isinstance(node, Name):
            return scope[node.name][1] if node.name in scope else node.name
        if isinstance(node, Member):
            return f"{self.describe(node.of, scope)}.{node.name}"
        if isinstance(node, OperatorCall) and node.operator == "[.]":
            of, at = node.operands
            return f"{self.describe(of, scope)}[{self.evaluate_known(at, scope)}]"
        return "a value in it"


def _explain_missing(path: str, key: str, facts: Mapping[str, Any]) -> str:
    if facts.get("given") is False:
        return f"{path} is not given"
    if key in ("rank", "elements", "bytes") and "shape" not in facts and "given" in facts:
        return f"{path}.shape is not known"
    if key in ("elements", "bytes") and None in facts.get("shape", ()):
        return f"{path}.shape[{facts['shape'].index(None)}] is not fixed"
    return f"{path}.{key} is not known"


_MAX_CHARACTERS = 500  # of a condition: it bounds the time of its parser


@dataclass(frozen=True, eq=False)
class Expression:
    """A compiled condition: its source text with single spaces, and its syntax tree."""

    source: str
    tree: ExpressionNode

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the facts that it reads, such as `attr` and `X`."""
        return frozenset(path[0] for path in find_paths(self.tree))

    def explain_failure(self, facts: Mapping[str, Any]) -> str:
        """Return why the condition does not hold, empty when it does."""
        return self.decide(facts)[1]

    def decide(self, facts: Mapping[str, Any]) -> tuple[bool | None, str]:
        """Return whether the condition holds, and the reason if not.

        The first is None when it cannot be decided, because a fact is not known or the evaluation fails.
        """
        try:
            result = evaluate(self.tree, facts)
        except NoValueError as problem:
            return None, f"`{self.source}` cannot be worked out: {problem}"
        except StepLimitError:
            return None, f"`{self.source}` cannot be worked out: it takes too many steps"
        if not isinstance(result, bool):
            is_short = isinstance(result, (int, float, str))
            text = str(result)[:80] if is_short else describe_kind(result)
            return None, f"`{self.source}` is {text}, neither true nor false"
        return result, "" if result else f"`{self.source}` does not hold"


@lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """Compile a condition. Raises ValueError when it is too long or not in the language."""
    text = " ".join(source.split())
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(text)} characters, at most {_MAX_CHARACTERS}")
    try:
        return Expression(text, parse_expression(text))
    except ValueError as error:
        raise ValueError(f"`{text}` is not a condition: {error}") from None
