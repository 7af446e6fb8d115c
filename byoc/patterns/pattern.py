"""The pattern language: a composite written as the lines of ONNX text that compute it.

    c = Conv <group = 1> (x, w!, b?)
    n = BatchNormalization(c, scale, bias, mean, var)?
    y = Relu|Clip(n, low?, high?)

Described in docs/patterns.md. A pattern has one or more texts, its variants.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from byoc.errors import suggest_nearest
from byoc.expressions import Expression, compile_expression
from byoc.patterns.form import PatternForm
from byoc.patterns.lint import find_flow_problems, find_operator_problems
from byoc.patterns.syntax import PatternLine, parse_line, parse_return, strip_comment

MatchCheck = Callable[[Mapping[str, Any]], str | None]
"""A vendor's check of a match: facts by name (docs/patterns.md) in; out a reason against it, or None."""

_MOST_LINES = 100
_MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class PatternCondition:
    """A condition on a match, and the reason to report if it fails (empty: the expression itself)."""

    expression: Expression
    reason: str = ""


@dataclass(frozen=True)
class Pattern:
    """A composite: its name, its variants with all optional lines, and its conditions."""

    name: str
    forms: tuple[PatternForm, ...]
    where: tuple[PatternCondition, ...] = ()
    check: MatchCheck | None = None
    description: str = ""
    texts: tuple[str, ...] = field(default=(), compare=False)

    @property
    def lines(self) -> tuple[PatternLine, ...]:
        """The lines of all variants, one variant after another."""
        return tuple(node for form in self.forms for node in form.nodes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of all variants, in order of first use."""
        return tuple(dict.fromkeys(name for form in self.forms for name in form.inputs))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names available to expressions: inputs and outputs of lines, in any variant."""
        made = (name for form in self.forms for name in form.makers)
        return tuple(dict.fromkeys([*self.inputs, *made]))


def parse_pattern(
    name: str,
    text: str | Sequence[str],
    where: Sequence[str | tuple[str, str]] = (),
    check: MatchCheck | None = None,
    description: str = "",
) -> Pattern:
    """Parse the text of a pattern, or several texts, its variants.

    `where` has expressions over the facts of the pattern's names, each alone or with a reason to report
    if it fails; `check` is a function of the same facts. Raise ValueError with one line for each
    mistake, which begins with the line in the text (after `pattern[1]` if there are several texts).
    """
    texts = [text] if isinstance(text, str) else list(text)
    problems: list[str] = [] if texts else ["the pattern is empty"]
    forms: list[PatternForm] = []
    for number, variant in enumerate(texts):
        try:
            forms.append(_parse_form(variant, number))
        except ValueError as error:
            place = "" if isinstance(text, str) else f"pattern[{number}]: "
            problems.extend(f"{place}{problem}" for problem in str(error).splitlines())
    conditions = []
    for number, entry in enumerate(where):
        source, reason = (entry, "") if isinstance(entry, str) else entry
        try:
            conditions.append(PatternCondition(compile_expression(source), reason))
        except ValueError as error:
            problems.append(f"where[{number}]: {error}")
    result = Pattern(name, tuple(forms), tuple(conditions), check, description, tuple(texts))
    if not problems:
        problems.extend(_unknown_names(result))
    if problems:
        raise ValueError("\n".join(problems))
    return result


def _unknown_names(pattern: Pattern) -> Iterator[str]:
    """Yield a sentence for each name in a condition that the pattern does not define."""
    for number, condition in enumerate(pattern.where):
        for name in sorted(condition.expression.names - set(pattern.names)):
            hint = suggest_nearest(name, pattern.names)
            yield f"where[{number}]: nothing in the pattern is called '{name}'{hint}"


def _parse_form(text: str, variant: int) -> PatternForm:
    """Parse the text of one variant. Raise ValueError, with one line for each mistake."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the pattern has {len(text)} characters, at most {_MOST_CHARACTERS}")
    nodes: list[PatternLine] = []
    returned: Sequence[str] | None = None
    problems: list[str] = []
    for number, line in enumerate(map(strip_comment, text.splitlines()), 1):
        if not line:
            continue
        if returned is not None:
            problems.append(f"line {number}: nothing can follow the return")
            break
        returned = parse_return(line)
        if returned is not None:
            continue
        try:
            nodes.append(parse_line(line, number))
        except ValueError as error:
            problems.extend(f"line {number}: {problem}" for problem in str(error).splitlines())
    if len(nodes) > _MOST_LINES:
        problems.append(f"the pattern has {len(nodes)} lines, at most {_MOST_LINES} are possible")
    if not problems:
        problems.extend(find_flow_problems(nodes, returned) if nodes else ["the pattern is empty"])
        problems.extend(find_operator_problems(nodes))
    if problems:
        raise ValueError("\n".join(problems))
    outputs = tuple(returned or filter(None, nodes[-1].outputs))
    return PatternForm(tuple(nodes), outputs, variant)
