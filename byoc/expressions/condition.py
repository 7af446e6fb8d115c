"""Compiled conditions. Applied to facts, a condition holds, does not hold, or cannot be decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from byoc.expressions.evaluation import evaluate
from byoc.expressions.operations import NoValueError, StepLimitError, describe_kind
from byoc.expressions.parser import parse_expression
from byoc.expressions.tree import ExpressionNode, find_paths

_MAX_CHARACTERS = 500


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
