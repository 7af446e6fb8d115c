"""Conditions, evaluated in three values: true, false, or not known.

A null among the facts stands for a value that is not known, and an expression that reads it is not known
either: `X.shape[0] != 1` is not true of a batch that may be 1. A number that is known as a range is used
as far as all numbers of the range give one answer. As in CEL, an operand that decides alone
counts: `false && ...`, `true || ...`, an element in `all` for which the body is false. Every node and
every element is a step, and the number of steps is limited.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

from byoc.support.expressions._operations import (
    OPERATIONS,
    MismatchError,
    NoValueError,
    NumberRange,
    StepCounter,
    StepLimitError,
    UnknownError,
    apply_to_ranges,
    decide,
    describe_kind,
    require_bool,
)
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
