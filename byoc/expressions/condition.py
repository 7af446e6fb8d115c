"""A condition, read once and asked of facts: it holds, it does not, or what it needs is not known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import cel

from byoc.expressions.syntax import Node, paths, read
from byoc.expressions.values import ExhaustedError, NoValueError, evaluate, kind

_MOST_CHARACTERS = 500


@dataclass(frozen=True, eq=False)
class Expression:
    """A condition, ready to be asked."""

    source: str
    tree: Node

    @cached_property
    def names(self) -> frozenset[str]:
        """The facts that it reads, such as `attr` and `X`."""
        return frozenset(path[0] for path in paths(self.tree))

    def objection(self, facts: Mapping[str, Any]) -> str:
        """Return why the condition does not hold for some facts, empty when it does."""
        holds, said = self.answer(facts)
        return "" if holds else said

    def answer(self, facts: Mapping[str, Any]) -> tuple[bool | None, str]:
        """Return whether the condition holds, None where that cannot be said, and a sentence if not."""
        try:
            result = evaluate(self.tree, facts)
        except NoValueError as problem:
            return None, f"`{self.source}` cannot be worked out: {problem}"
        except ExhaustedError:
            return None, f"`{self.source}` cannot be worked out: it takes too many steps"
        if not isinstance(result, bool):
            told = str(result)[:80] if isinstance(result, (int, float, str)) else kind(result)
            return None, f"`{self.source}` is {told}, neither true nor false"
        return result, "" if result else f"`{self.source}` does not hold"


@lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """Return an expression ready to be asked.

    Raises ValueError with a sentence when it is not CEL, too long, or calls what is not there.
    """
    text = " ".join(source.split())
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the expression has {len(text)} characters, at most {_MOST_CHARACTERS}")
    try:
        cel.compile(text)
    except Exception as error:  # the parser has several kinds
        raise ValueError(f"`{text}` is not an expression: {_syntax(error)}") from None
    try:
        return Expression(text, read(text))
    except ValueError as error:
        raise ValueError(f"`{text}` is not a condition: {error}") from None


@dataclass(frozen=True, slots=True)
class Condition:
    """An expression that must hold, and the sentence for the user when it does not (else its own)."""

    expr: str
    reason: str = ""

    def answer(self, facts: Mapping[str, Any]) -> tuple[bool | None, str]:
        """Return whether it holds, None where that cannot be said, and the reason if not.

        Raises ValueError when the expression is none.
        """
        holds, said = compile_expression(self.expr).answer(facts)
        return holds, self.reason if holds is False and self.reason else said

    def objection(self, facts: Mapping[str, Any]) -> str:
        """Return why it does not hold, empty when it does; raises ValueError as `answer` does."""
        return self.answer(facts)[1]


@lru_cache(maxsize=4096)
def compile_regex(pattern: str) -> cel.Program:
    """Return a program that `matches` takes; raises ValueError when it is no regular expression."""
    program = cel.compile("text.matches(pattern)")
    try:
        program.execute({"text": "", "pattern": pattern})
    except Exception as error:  # the error is of several lines, the last of which says why
        why = re.search(r"error: ((?:(?!\. Check function).)+)[^\n]*\Z", str(error))
        told = f": {why[1]}" if why else ""
        raise ValueError(f"'{pattern}' is not a regular expression{told}") from None
    return program


def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression (RE2's syntax) is found anywhere in a text, in linear time."""
    return bool(compile_regex(pattern).execute({"text": text, "pattern": pattern}))


def _syntax(error: Exception) -> str:
    found = re.search(r"<input>:\d+:(\d+): (.*)", str(error))
    if found is None:
        return " ".join(str(error).split())[:160]
    text = found[2].partition(" expecting ")[0].removeprefix("Syntax error: ")
    text = text.replace("mismatched input '<EOF>'", "something is missing")
    return f"at character {found[1]}: {text[:120]}"
