"""The pattern language: a composite written as the lines of ONNX text that compute it.

    c = Conv <group = 1> (x, w!, b?)
    n = BatchNormalization(c, scale, bias, mean, var)?
    y = Relu|Clip(n, low?, high?)

Described in docs/patterns.md. A pattern has one or more texts, its variants.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from byoc.errors import suggest_nearest
from byoc.expressions import Expression, compile_expression
from byoc.patterns._node_table import CONSTANT
from byoc.patterns._pattern_lint import find_flow_problems, find_operator_problems
from byoc.patterns._pattern_syntax import (
    PatternLine,
    PatternOperand,
    parse_line,
    parse_return,
    strip_comment,
)


@dataclass(frozen=True)
class PatternForm:
    """The lines of one variant of a pattern, in topological order.

    `outputs` names the tensors that the variant returns, `variant_number` is the index of its text in
    the pattern, and `left_out` has the optional lines that were removed.
    """

    nodes: tuple[PatternLine, ...]
    outputs: tuple[str, ...]
    variant_number: int = 0
    left_out: tuple[PatternLine, ...] = ()

    @cached_property
    def root(self) -> PatternLine:
        """The last line, at which matching begins."""
        return self.nodes[-1]

    @cached_property
    def starts(self) -> tuple[tuple[PatternLine, tuple[str, ...]], ...]:
        """The lines at which matching may begin, each with the lines that are then left out."""
        found: list[tuple[PatternLine, tuple[str, ...]]] = [(self.root, ())]
        while found[-1][0].optional:
            line, missing = found[-1]
            before = line.operands[0].name
            if before not in self.makers:
                break
            found.append((self.makers[before][0], (*missing, line.output)))
        return tuple(found)

    @cached_property
    def required(self) -> tuple[PatternLine, ...]:
        """The lines that are present whichever optional lines are missing."""
        least = self.without(frozenset(node.output for node in self.nodes if node.optional))
        return least.nodes if least is not None else ()

    @cached_property
    def makers(self) -> Mapping[str, tuple[PatternLine, int]]:
        """Every name that a line makes, with the line and the position among its outputs."""
        return {
            name: (node, position)
            for node in self.nodes
            for position, name in enumerate(node.outputs)
            if name
        }

    @cached_property
    def possible_makers(self) -> Mapping[str, tuple[tuple[int, frozenset[str]], ...]]:
        """For each line, the operators that may make its operands, by operand position.

        Operands that any operator may make are not listed.
        """
        possible = {
            node.output: [
                (i, self._operators_making(operand)) for i, operand in enumerate(node.operands)
            ]
            for node in self.nodes
        }
        return {
            name: tuple((position, ops) for position, ops in operands if ops is not None)
            for name, operands in possible.items()
        }

    def _operators_making(self, operand: PatternOperand) -> frozenset[str] | None:
        """Return the operators that may make an operand, None if any may."""
        if operand.constant:
            return None if operand.optional else frozenset({CONSTANT})
        ops: set[str] = set()
        name = operand.name
        while True:
            if name not in self.makers or self.makers[name][0].matches_any_operator:
                return None
            line = self.makers[name][0]
            ops.update(line.ops)
            if not line.optional:
                return frozenset(ops)
            name = line.operands[0].name

    @cached_property
    def operands(self) -> tuple[PatternOperand, ...]:
        """The operands that no line makes, in order of first use, including literals."""
        found: dict[str, PatternOperand] = {}
        for operand in (operand for node in self.nodes for operand in node.operands):
            if operand.name not in self.makers:
                found.setdefault(operand.name, operand)
        return tuple(found.values())

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the operands that no line makes: the signature of the composite."""
        return tuple(operand.name for operand in self.operands)

    @cached_property
    def _reduced_forms(self) -> dict[frozenset[str], "PatternForm | None"]:
        return {frozenset(): self}

    def without(self, missing: frozenset[str]) -> "PatternForm | None":
        """Return the variant without some optional lines, None if it would then return an input.

        The first operand of a removed line replaces its output. Lines that only removed lines read are
        removed with them.
        """
        if missing not in self._reduced_forms:
            self._reduced_forms[missing] = self._make_without(missing)
        return self._reduced_forms[missing]

    def _make_without(self, missing: frozenset[str]) -> "PatternForm | None":
        instead: dict[str, str] = {}
        kept: list[PatternLine] = []
        for node in self.nodes:
            operands = tuple(replace_operand(operand, instead) for operand in node.operands)
            if node.output in missing:
                instead[node.output] = operands[0].name
            else:
                kept.append(replace(node, operands=operands))
        leaving = tuple(instead.get(name, name) for name in self.outputs)
        live = lines_needed(kept, leaving)
        made = {name for node in live for name in node.outputs if name}
        if not made.issuperset(leaving) or len(set(leaving)) < len(leaving):
            return None
        there = {node.output for node in live}
        gone = tuple(node for node in self.nodes if node.output not in there)
        return PatternForm(live, leaving, self.variant_number, gone)


def replace_operand(operand: PatternOperand, replacements: Mapping[str, str]) -> PatternOperand:
    """Return an operand under the name that replaces its own, if any does."""
    name = operand.name
    while name in replacements:
        name = replacements[name]
    return operand if name == operand.name else PatternOperand(name, operand.optional, operand.constant)


def lines_needed(nodes: Sequence[PatternLine], names: Sequence[str]) -> tuple[PatternLine, ...]:
    """Return the lines needed to make the given names, in their order."""
    wanted = set(names)
    kept: list[PatternLine] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.insert(0, node)
            wanted.update(operand.name for operand in node.operands)
    return tuple(kept)


MatchCheck = Callable[[Mapping[str, Any]], str | None]
"""A vendor's check of a match: facts by name (docs/patterns.md) in; out a reason against it, or None."""

_MAX_LINES = 100
_MAX_CHARACTERS = 20_000


@dataclass(frozen=True)
class PatternCondition:
    """A condition on a match, and the reason to report if it fails (empty: the expression itself)."""

    expression: Expression
    reason: str = ""


@dataclass(frozen=True)
class Pattern:
    """A composite: its name, its variants with all optional lines, and its conditions.

    One that is `finer` takes longer than its operators, and rounds less: quantization chooses where.
    """

    name: str
    forms: tuple[PatternForm, ...]
    where: tuple[PatternCondition, ...] = ()
    check: MatchCheck | None = None
    description: str = ""
    texts: tuple[str, ...] = field(default=(), compare=False)
    finer: bool = False

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
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the pattern has {len(text)} characters, at most {_MAX_CHARACTERS}")
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
    if len(nodes) > _MAX_LINES:
        problems.append(f"the pattern has {len(nodes)} lines, at most {_MAX_LINES} are possible")
    if not problems:
        problems.extend(find_flow_problems(nodes, returned) if nodes else ["the pattern is empty"])
        problems.extend(find_operator_problems(nodes))
    if problems:
        raise ValueError("\n".join(problems))
    outputs = tuple(returned or filter(None, nodes[-1].outputs))
    return PatternForm(tuple(nodes), outputs, variant)
