"""The matcher: where the forms of a pattern are in a graph, and what each becomes there.

Operands of commutative operators match in either order. Two lines never bind one node, a name always
binds one tensor, and what a match makes inside may be used only inside, bodies of If and Loop included,
unless the pattern returns it.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from byoc.graph.composites import Composite, Line
from byoc.graph.index import GraphIndex
from byoc.graph.walk import is_onnx
from byoc.patterns.closed import closed_objection, condition_objection
from byoc.patterns.form import Form
from byoc.patterns.operators import exact, label, most_inputs
from byoc.patterns.pattern import Pattern
from byoc.patterns.search import Bound, Search
from byoc.patterns.syntax import PatternNode
from byoc.patterns.table import Table, without_end

# What looking for a path that leaves a match and comes back counts as, after the first at a node.
PATH_ATTEMPTS = 200


@dataclass(frozen=True)
class Match:
    """Where a pattern was found: line's name to node, and name to tensor (empty: left out).

    `more` has the further operands of lines that end in `...`.
    """

    pattern: Pattern
    form: Form
    nodes: Mapping[str, int]
    tensors: Mapping[str, str]
    more: Mapping[str, tuple[str, ...]]

    @property
    def root(self) -> int:
        """The node of the last line."""
        return self.nodes[self.form.root.output]

    def as_composite(self, index: GraphIndex) -> Composite:
        """Return what the match becomes in the graph that it was found in."""
        lines = tuple(self._line(line, index) for line in self.form.nodes)
        given = {name: self.tensors.get(name, "") for name in self.form.inputs}
        for line in self.form.nodes:
            given.update(zip(_further(line, self.more), self.more.get(line.output, ()), strict=True))
        return Composite(
            index=index,
            composite=self.pattern.name,
            name="_".join((self.pattern.name, *self._choices(lines, index))),
            lines=lines,
            inputs=given,
            outputs={name: self.tensors[name] for name in self.form.outputs},
        )

    def _line(self, line: PatternNode, index: GraphIndex) -> Line:
        number = self.nodes[line.output]
        node = index.nodes[number]
        schema = index.schema(node)
        operands = [operand.name for operand in line.operands]
        operands = operands[: self._given(line) if exact(schema) else most_inputs(schema)]
        names = (*line.outputs, *[""] * len(node.output))[: len(without_end(node.output))]
        return Line(
            line.output,
            node.op_type,
            "" if is_onnx(node) else node.domain,
            (*operands, *_further(line, self.more)),
            tuple(name or f"{line.output}_output_{place}" for place, name in enumerate(names)),
            number,
        )

    def _given(self, line: PatternNode) -> int:
        """Return how many of a line's operands are there, those left out at the end not counted."""
        return len(without_end([self.tensors.get(operand.name, "") for operand in line.operands]))

    def _choices(self, lines: tuple[Line, ...], index: GraphIndex) -> list[str]:
        """Return what the function's name says beside the composite's: nothing where all is as written.

        Every choice is in the name as soon as one differs: a_mul_add is not a_add_mul.
        """
        choices: list[tuple[str, bool]] = []
        if self.form.variant:
            choices.append((f"v{self.form.variant + 1}", True))
        bound = {line.output: line for line in lines}
        ordered = sorted((*self.form.nodes, *self.form.left_out), key=lambda line: line.line)
        for line in ordered:
            if line.output not in bound:
                if line.optional:
                    choices.append((f"no_{line.output}", True))
                continue
            found = bound[line.output]
            if len(line.ops) > 1 or line.any:
                full = f"{found.domain}.{found.op}" if found.domain else found.op
                choices.append((label(full), line.any or full != line.ops[0]))
            choices += [(text, True) for text in self._counts(line, found, index)]
            if line.more:
                further = len(self.more.get(line.output, ()))
                choices.append((f"plus{further}", further > 0))
        return [text for text, _ in choices] if any(differs for _, differs in choices) else []

    def _counts(self, line: PatternNode, found: Line, index: GraphIndex) -> Iterator[str]:
        """Yield how many operands and outputs a line has where that is not what it says."""
        schema = index.schema(index.nodes[found.node])
        given = len(found.operands) - len(self.more.get(line.output, ()))
        if exact(schema) and given < len(line.operands):
            yield f"{line.output}_in{given}"
        if len(found.outputs) != max(len(line.outputs), schema.min_output if schema is not None else 1):
            yield f"{line.output}_out{len(found.outputs)}"


def _further(line: PatternNode, more: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names, inside the function, of the operands that `...` stands for."""
    start = len(line.operands)
    return [f"{line.output}_{start + i}" for i in range(len(more.get(line.output, ())))]


def match_at(pattern: Pattern, node: int, index: GraphIndex, free: Container[int]) -> Match | None:
    """Return the first match whose last line is the given node, None when there is none.

    Larger forms go first. Only nodes in `free` are matched.
    """
    table = Table.of(index)
    for form in sorted(pattern.forms, key=lambda form: -len(form.nodes)):
        for match in matches_at(pattern, Search(form, table, free), node):
            return match
    return None


def matches_at(pattern: Pattern, search: Search, node: int) -> Iterator[Match]:
    """Yield every match of a pattern in one of its forms, whose last line is the given node."""
    for count, bound in enumerate(search.at(node)):
        form = search.form.without(frozenset(bound.missing))
        if count and form is not None and len(form.outputs) > 1:
            search.attempts.left -= PATH_ATTEMPTS
        if form is not None and not objection(pattern, form, bound, search.table):
            yield Match(pattern, form, bound.nodes, bound.tensors, bound.more)


def objection(pattern: Pattern, form: Form, bound: Bound, table: Table) -> str:
    """Return why lines that are all bound are no match, empty when they are one."""
    reason, _ = closed_objection(form, bound, table)
    return reason or condition_objection(pattern, form, bound, table.index)
