"""The pattern language: a composite written as the lines of ONNX text that compute it.

    c = Conv <group = 1> (x, w!, b?)
    n = BatchNormalization(c, scale, bias, mean, var)?
    y = Relu|Clip(n, low?, high?)

Described in docs/patterns.md. A pattern has one or more texts, its variants.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import suggest_nearest
from byoc.model import RANDOM_OPERATORS
from byoc.model.schemas import describe_unknown_operator
from byoc.patterns._pattern_syntax import (
    ANY_OPERATOR,
    CONSTANT,
    OPERATORS_WITH_BODIES,
    PatternLine,
    PatternOperand,
    attribute_names,
    operand_counts,
    output_count,
    parse_line,
    parse_return,
    strip_comment,
)
from byoc.support.expressions import Expression, compile_expression

# Checks of the lines of a pattern: names and data flow between lines, and ONNX's operators.


def find_flow_problems(nodes: Sequence[PatternLine], returned: Sequence[str] | None) -> Iterator[str]:
    """Yield the mistakes in the names of a pattern: made twice, never read, read before they are made.

    `returned` has the names of the `return` line, None if there is none.
    """
    made = [name for node in nodes for name in node.outputs if name]
    operand_names = {o.name for node in nodes for o in node.operands if o.value is None}
    made_before: set[str] = set()
    for node in nodes:
        yield from _output_problems(node, nodes, returned, made_before)
        yield from _operand_problems(node, made_before, made, operand_names)
        yield from _reserved_name_problems(node, {*made, *operand_names})
        made_before.update(filter(None, node.outputs))
    for position, name in enumerate(returned or ()):
        if name not in made:
            yield f"return: no line makes '{name}'{suggest_nearest(name, made)}"
        elif name in (returned or ())[:position]:
            yield f"return: '{name}' is there twice"
    yield from (
        f"line {node.line_number}: {problem}"
        for node in nodes
        for problem in _optional_line_problems(node)
    )
    if len(nodes) > 1 and all(node.optional for node in nodes):
        yield "at least one line must not be optional"
    yield from _unconnected_line_problems(nodes)


def _output_problems(
    node: PatternLine,
    nodes: Sequence[PatternLine],
    returned: Sequence[str] | None,
    made_before: Collection[str],
) -> Iterator[str]:
    """Yield the mistakes in the outputs of a line."""
    read = {operand.name for each in nodes for operand in each.operands}
    leaving = nodes[-1].outputs if returned is None else returned
    for other in nodes:
        if other.output.startswith(f"{node.output}_"):  # attributes would clash: `c_x` of `c`, and `c_x`
            yield (
                f"line {node.line_number}: the name '{node.output}' is the beginning of '{other.output}'"
            )
    for position, name in enumerate(node.outputs):
        if not name:
            continue
        if name in made_before or name in node.outputs[:position]:
            yield f"line {node.line_number}: '{name}' is made twice"
        elif name not in read and name not in leaving:
            ending = "only the last line makes the output" if returned is None else "it is not returned"
            yield f"line {node.line_number}: nothing reads '{name}', and {ending}"


def _operand_problems(
    node: PatternLine, made_before: Collection[str], made: Sequence[str], operand_names: Collection[str]
) -> Iterator[str]:
    """Yield the mistakes in the operands of a line."""
    prefix = f"line {node.line_number}"
    for operand in node.operands:
        name = operand.name
        if operand.value is not None:
            if name in made or name in operand_names:
                yield f"{prefix}: the name '{name}' is kept for a literal"
        elif name not in made:
            continue
        elif name not in made_before:
            yield f"{prefix}: '{name}' is read before it is made"
        elif operand.optional:
            yield f"{prefix}: '{name}?' is made by a line, so it cannot be left out"
        elif operand.constant:
            yield f"{prefix}: '{name}!' is made by a line, so it is not a constant"


def _reserved_name_problems(node: PatternLine, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each name that is reserved for an unnamed output or operand of a line."""
    for name in sorted(names):
        found = re.fullmatch(rf"{node.output}_(output_)?(0|[1-9][0-9]{{0,8}})", name)
        if found is None:
            continue
        if found[1]:
            yield f"line {node.line_number}: the name '{name}' is kept for an output of the line"
        elif node.allows_more and int(found[2]) >= len(node.operands):
            yield f"line {node.line_number}: the name '{name}' is kept for a further operand"


def _optional_line_problems(node: PatternLine) -> Iterator[str]:
    if not node.optional:
        return
    if len(node.outputs) > 1:
        yield "an optional line makes one output"
    first = next(iter(node.operands), None)
    if first is None or first.value is not None or first.optional:
        yield "the first operand of an optional line takes its place: it needs a name, and no '?'"


def _unconnected_line_problems(nodes: Sequence[PatternLine]) -> Iterator[str]:
    """Yield a sentence for each line that no name connects to the last one."""
    names = [
        {*filter(None, node.outputs), *(o.name for o in node.operands if o.value is None)}
        for node in nodes
    ]
    reached, pending = names[-1], set(range(len(nodes) - 1))
    while joined := {i for i in pending if names[i] & reached}:
        pending -= joined
        reached = reached.union(*(names[i] for i in joined))
    for i in sorted(pending):
        yield f"line {nodes[i].line_number}: '{nodes[i].output}' is not connected to the last line"


def find_operator_problems(nodes: Sequence[PatternLine]) -> Iterator[str]:
    """Yield the mistakes in operators, and in their operands, outputs and attributes."""
    for node in nodes:
        for problem in (
            *_operator_name_problems(node),
            *_operand_count_problems(node),
            *_attribute_problems(node),
            *_constant_line_problems(node),
        ):
            yield f"line {node.line_number}: {problem}"


def _operator_name_problems(node: PatternLine) -> Iterator[str]:
    if ANY_OPERATOR in node.ops and len(node.ops) > 1:
        yield "'*' stands for any operator, so there are no others beside it"
    for position, op in enumerate(node.ops):
        if op in node.ops[:position]:
            yield f"'{op}' is there twice"
        elif op != ANY_OPERATOR and (problem := describe_unknown_operator(op)):
            yield problem
        elif op in OPERATORS_WITH_BODIES:
            yield f"{op} has bodies, and no pattern matches a node that has some"
        elif op == "Constant":
            yield "a Constant is never matched: write a name with '!', or its value"


def _operand_count_problems(node: PatternLine) -> Iterator[str]:
    count = len(node.operands)
    limits = {op: operand_counts(op) for op in node.ops}
    most_of_all = max((most for _, most in filter(None, limits.values())), default=0)
    if None in limits.values():
        most_of_all = sys.maxsize
    if node.allows_more and count >= most_of_all:
        yield f"'...': {' and '.join(node.ops)} can have no further operands"
    for op, limit in limits.items():
        if limit is None:
            continue
        least, most = limit
        beyond = node.operands[most:]
        if count < least and not node.allows_more:
            yield f"the number of operands of {op} is {count}, at least {least} is possible"
        elif any(not operand.optional for operand in beyond) or count > most_of_all:
            yield f"the number of operands of {op} is {count}, at most {most} is possible"
    for op in node.ops:
        possible = output_count(op)
        if possible is not None and len(node.outputs) > possible:
            yield f"the number of outputs of {op} is {len(node.outputs)}, at most {possible} is possible"


def _attribute_problems(node: PatternLine) -> Iterator[str]:
    seen = set()
    for test in node.attributes:
        if test.name in seen:
            yield f"{test.name} is there twice"
        seen.add(test.name)
        of_ops = [attribute_names(op) for op in node.ops]
        if ANY_OPERATOR in node.ops or any(names is None or test.name in names for names in of_ops):
            continue
        possible = {name for names in of_ops for name in names or ()}
        verb = "has" if len(node.ops) == 1 else "have"
        yield (
            f"{' and '.join(node.ops)} {verb} no attribute "
            f"'{test.name}'{suggest_nearest(test.name, possible)}"
        )


def _constant_line_problems(node: PatternLine) -> Iterator[str]:
    if not node.operands or node.allows_more or not RANDOM_OPERATORS.isdisjoint(node.ops):
        return
    if all(operand.constant and not operand.optional for operand in node.operands):
        yield "all operands are constants, and what is known before the model runs is never matched"


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

_MAX_LINES = 100  # matching is exponential in the worst case
_MAX_CHARACTERS = 20_000  # of a pattern's text, for its parser


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


@lru_cache(maxsize=512)  # rule files share the composites of the library
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
