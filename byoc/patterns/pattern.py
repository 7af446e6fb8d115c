"""The pattern language: a composite as the lines of ONNX text that compute it.

    c = Conv <group = 1> (x, w!, b?)
    n = BatchNormalization(c, scale, bias, mean, var)?
    y = Relu|Clip(n, low?, high?)

Described in docs/patterns.md. A pattern has one or several texts, its variants.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from byoc.errors import nearest
from byoc.expressions import Expression, compile_expression
from byoc.patterns.form import Form
from byoc.patterns.lint import flow, operators
from byoc.patterns.syntax import PatternNode, read_line, read_return, without_comment

Check = Callable[[Mapping[str, Any]], str | None]
"""A function of the facts by name (docs/patterns.md): why a match is refused, None when it is not."""

_MOST_LINES = 100
_MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Condition:
    """What must hold of a match, and what to say where it does not (empty: the expression itself)."""

    expression: Expression
    reason: str = ""


@dataclass(frozen=True)
class Pattern:
    """A composite: its name, a form with every line for each of its texts, and what must hold."""

    name: str
    forms: tuple[Form, ...]
    where: tuple[Condition, ...] = ()
    check: Check | None = None
    description: str = ""
    texts: tuple[str, ...] = field(default=(), compare=False)

    @property
    def nodes(self) -> tuple[PatternNode, ...]:
        """The lines of all variants, one after the other."""
        return tuple(node for form in self.forms for node in form.nodes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What comes into any of the variants, in order of first use."""
        return tuple(dict.fromkeys(name for form in self.forms for name in form.inputs))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All that expressions can ask for: what comes in and what lines make, in any variant."""
        made = (name for form in self.forms for name in form.made)
        return tuple(dict.fromkeys([*self.inputs, *made]))


def parse(
    name: str,
    text: str | Sequence[str],
    where: Sequence[str | tuple[str, str]] = (),
    check: Check | None = None,
    description: str = "",
) -> Pattern:
    """Return the pattern that a text describes, or several texts, its variants.

    `where` has expressions over the facts of the pattern's names, each alone or with a reason to give
    where it does not hold; `check` is a function of the same facts. Raises ValueError, a line for each
    mistake, naming its line in the text (and, with several texts, `pattern[1]`).
    """
    texts = [text] if isinstance(text, str) else list(text)
    problems: list[str] = [] if texts else ["the pattern is empty"]
    forms: list[Form] = []
    for number, variant in enumerate(texts):
        try:
            forms.append(_form(variant, number))
        except ValueError as error:
            place = "" if isinstance(text, str) else f"pattern[{number}]: "
            problems.extend(f"{place}{problem}" for problem in str(error).splitlines())
    conditions = []
    for number, entry in enumerate(where):
        source, reason = (entry, "") if isinstance(entry, str) else entry
        try:
            conditions.append(Condition(compile_expression(source), reason))
        except ValueError as error:
            problems.append(f"where[{number}]: {error}")
    result = Pattern(name, tuple(forms), tuple(conditions), check, description, tuple(texts))
    if not problems:
        problems.extend(_unknown(result))
    if problems:
        raise ValueError("\n".join(problems))
    return result


def _unknown(pattern: Pattern) -> Iterator[str]:
    """Yield a sentence for each name in a condition that the pattern does not have."""
    for number, condition in enumerate(pattern.where):
        for name in sorted(condition.expression.names - set(pattern.names)):
            hint = nearest(name, pattern.names)
            yield f"where[{number}]: nothing in the pattern is called '{name}'{hint}"


def _form(text: str, variant: int) -> Form:
    """Return the lines of a text. Raises ValueError, a line for each mistake."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the pattern has {len(text)} characters, at most {_MOST_CHARACTERS}")
    nodes: list[PatternNode] = []
    returned: Sequence[str] | None = None
    problems: list[str] = []
    for number, line in enumerate(map(without_comment, text.splitlines()), 1):
        if not line:
            continue
        if returned is not None:
            problems.append(f"line {number}: nothing can follow the return")
            break
        returned = read_return(line)
        if returned is not None:
            continue
        try:
            nodes.append(read_line(line, number))
        except ValueError as error:
            problems.extend(f"line {number}: {problem}" for problem in str(error).splitlines())
    if len(nodes) > _MOST_LINES:
        problems.append(f"the pattern has {len(nodes)} lines, at most {_MOST_LINES} are possible")
    if not problems:
        problems.extend(flow(nodes, returned) if nodes else ["the pattern is empty"])
        problems.extend(operators(nodes))
    if problems:
        raise ValueError("\n".join(problems))
    outputs = tuple(returned or filter(None, nodes[-1].outputs))
    return Form(tuple(nodes), outputs, variant)
