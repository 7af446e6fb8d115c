"""Expressions in YAML files, in Google's Common Expression Language (CEL): conditions over plain facts.

CEL has no loops, no assignments and no way out into Python, so a file from anywhere may hold some. Its
`all`, `exists` and the like walk lists; their number in one expression is limited, so that a line of
text cannot take long. A value that is not known is null or missing in the facts, and what needs it is
said to be unknown rather than true or false. Regular expressions run in linear time.

The language: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cel

from byoc.unknown import unknown_part

_MOST_CHARACTERS = 500
_WALKS = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")
_MOST_WALKS = 2
_VARIABLE = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_FUNCTIONS = frozenset(
    {
        *("size", "has", "all", "exists", "exists_one", "map", "filter"),
        *("contains", "startsWith", "endsWith", "matches"),
        *("int", "uint", "double", "string", "type"),
    }
)


@dataclass(frozen=True, eq=False)
class Expression:
    """A condition, ready to be asked; `names` are the facts that it reads, such as `attr` and `X`."""

    source: str
    names: frozenset[str]
    program: cel.Program

    def objection(self, facts: Mapping[str, Any]) -> str:
        """Return why the condition does not hold for some facts, empty when it does."""
        holds, said = self.answer(facts)
        return "" if holds else said

    def answer(self, facts: Mapping[str, Any]) -> tuple[bool | None, str]:
        """Return whether the condition holds, None where that cannot be said, and a sentence if not."""
        try:
            result = self.program.execute({name: facts[name] for name in self.names if name in facts})
        except Exception as error:  # a missing key, a type, an index, an overflow: CEL has one for each
            said = unknown_part(self.source, self.names, facts, error) or _said(error)
            return None, f"`{self.source}` cannot be worked out: {said}"
        if not isinstance(result, bool):
            return None, f"`{self.source}` is {result}, neither true nor false"
        return result, "" if result else f"`{self.source}` does not hold"


@lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """Return an expression ready to be asked.

    Raises ValueError with a sentence when it is not CEL, too long, or calls what is not there.
    """
    text = " ".join(source.split())
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the expression has {len(text)} characters, at most {_MOST_CHARACTERS}")
    if len(_WALKS.findall(text)) > _MOST_WALKS:
        raise ValueError(f"at most {_MOST_WALKS} of all, exists, map and filter in one expression")
    try:
        program = cel.compile(text)
    except Exception as error:  # the parser has several kinds
        raise ValueError(f"`{text}` is not an expression: {_syntax(error)}") from None
    unknown = sorted(
        name for name in program.functions() if name.isidentifier() and name not in _FUNCTIONS
    )
    if unknown:
        raise ValueError(f"`{text}` calls {unknown[0]}, which there is not")
    names = frozenset(program.variables()) - frozenset(_VARIABLE.findall(text))
    return Expression(text, names, program)


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


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is not known"
    text = " ".join(str(error).split())
    undefined = re.match(r"Undefined variable or function: '(\w+)'", text)
    if undefined:
        return f"{undefined[1]} is not known"
    if "null" in text:
        return "a value in it is not known"
    if "No such overload" in text or isinstance(error, TypeError):
        return "its parts do not go together, or one is not known"
    return text.partition(". ")[0][:160]


def _syntax(error: Exception) -> str:
    found = re.search(r"<input>:\d+:(\d+): (.*)", str(error))
    if found is None:
        return " ".join(str(error).split())[:160]
    text = found[2].partition(" expecting ")[0].removeprefix("Syntax error: ")
    text = text.replace("mismatched input '<EOF>'", "something is missing")
    return f"at character {found[1]}: {text[:120]}"
