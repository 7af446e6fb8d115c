"""The matcher: places in a graph where a pattern matches, and the composite that each becomes.

Operands of commutative operators match in either order. Two lines never bind the same node, a name
always binds the same tensor, and a tensor made inside a match may be used only inside, bodies of If and
Loop included, unless the pattern returns it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.errors import YES, Verdict, refuse
from byoc.model import (
    Composite,
    CompositeLine,
    GraphIndex,
    collect_node_facts,
    collect_tensor_facts,
    describe_node,
    is_onnx,
)
from byoc.patterns._pattern import Pattern, PatternForm
from byoc.patterns._pattern_search import Binding, PatternSearch
from byoc.patterns._pattern_syntax import (
    NodeTable,
    PatternLine,
    counts_trailing_inputs,
    function_label,
    strip_trailing_empty,
)

# The attempts that a search for a path through the outside counts as, after the first at a node.
PATH_ATTEMPTS = 200


@dataclass(frozen=True)
class Match:
    """A place where a pattern matches: line names to nodes, and names to tensors (empty: left out).

    `more` has the further operands of lines that end in `...`.
    """

    pattern: Pattern
    form: PatternForm
    nodes: Mapping[str, int]
    tensors: Mapping[str, str]
    more: Mapping[str, tuple[str, ...]]

    @property
    def root(self) -> int:
        """The node of the last line."""
        return self.nodes[self.form.root.output]

    def make_composite(self, index: GraphIndex) -> Composite:
        """Make the composite of the match, in the graph in which it was found."""
        lines = tuple(self._line(line, index) for line in self.form.nodes)
        inputs = {name: self.tensors.get(name, "") for name in self.form.inputs}
        for line in self.form.nodes:
            inputs.update(
                zip(_further_operands(line, self.more), self.more.get(line.output, ()), strict=True)
            )
        return Composite(
            index=index,
            composite_name=self.pattern.name,
            function_name="_".join((self.pattern.name, *self._name_choices(lines, index))),
            lines=lines,
            inputs=inputs,
            outputs={name: self.tensors[name] for name in self.form.outputs},
        )

    def _line(self, line: PatternLine, index: GraphIndex) -> CompositeLine:
        number = self.nodes[line.output]
        node = index.nodes[number]
        schema = index.get_schema(node)
        operands = [operand.name for operand in line.operands]
        if schema is None or counts_trailing_inputs(schema):
            operands = operands[: self._operand_count(line)]
        else:
            operands = operands[: schema.max_input]
        names = (*line.outputs, *[""] * len(node.output))[: len(strip_trailing_empty(node.output))]
        return CompositeLine(
            line.output,
            node.op_type,
            "" if is_onnx(node) else node.domain,
            (*operands, *_further_operands(line, self.more)),
            tuple(name or f"{line.output}_output_{position}" for position, name in enumerate(names)),
            number,
        )

    def _operand_count(self, line: PatternLine) -> int:
        """Count the operands of a line that are present, up to the last one."""
        return len(
            strip_trailing_empty([self.tensors.get(operand.name, "") for operand in line.operands])
        )

    def _name_choices(self, lines: tuple[CompositeLine, ...], index: GraphIndex) -> list[str]:
        """Return the parts of the function's name after the composite's; none if all is as written.

        If one choice differs from the text, all are in the name: a_mul_add is not a_add_mul.
        """
        choices: list[tuple[str, bool]] = []
        if self.form.variant_number:
            choices.append((f"v{self.form.variant_number + 1}", True))
        line_of = {line.output: line for line in lines}
        for line in sorted((*self.form.nodes, *self.form.left_out), key=lambda line: line.line_number):
            if line.output not in line_of:
                if line.optional:
                    choices.append((f"no_{line.output}", True))
                continue
            bound = line_of[line.output]
            if len(line.ops) > 1 or line.matches_any_operator:
                full = f"{bound.domain}.{bound.op}" if bound.domain else bound.op
                choices.append((function_label(full), line.matches_any_operator or full != line.ops[0]))
            choices += [(text, True) for text in self._count_choices(line, bound, index)]
            if line.allows_more:
                further = len(self.more.get(line.output, ()))
                choices.append((f"plus{further}", further > 0))
        return [text for text, _ in choices] if any(differs for _, differs in choices) else []

    def _count_choices(
        self, line: PatternLine, bound: CompositeLine, index: GraphIndex
    ) -> Iterator[str]:
        """Yield the numbers of operands and outputs that differ from the text."""
        schema = index.get_schema(index.nodes[bound.node])
        count = len(bound.operands) - len(self.more.get(line.output, ()))
        if counts_trailing_inputs(schema) and count < len(line.operands):
            yield f"{line.output}_in{count}"
        if len(bound.outputs) != max(len(line.outputs), schema.min_output if schema is not None else 1):
            yield f"{line.output}_out{len(bound.outputs)}"


def _further_operands(line: PatternLine, more: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names, inside the function, of the operands that `...` stands for."""
    start = len(line.operands)
    return [f"{line.output}_{start + i}" for i in range(len(more.get(line.output, ())))]


def find_matches_at(pattern: Pattern, search: PatternSearch, node: int) -> Iterator[Match]:
    """Yield every match of a pattern, in the searched form, with the last line at a node."""
    for count, bound in enumerate(search.find_at(node)):
        form = search.form.without(frozenset(bound.missing))
        if form is None:
            continue
        if count and len(form.outputs) > 1:
            search.attempts.left -= PATH_ATTEMPTS
        if check_closed(form, bound, search.table)[0] and check_conditions(
            pattern, form, bound, search.table.index
        ):
            yield Match(pattern, form, bound.nodes, bound.tensors, bound.more)


def check_closed(form: PatternForm, bound: Binding, table: NodeTable) -> tuple[Verdict, int | None]:
    """Check that bound nodes can be replaced by one node; return the node at fault as well.

    They cannot if an inner tensor is used outside, an input is made inside, or a path leaves and
    returns.
    """
    index, inside = table.index, set(bound.nodes.values())
    made = {name for number in inside for name in table.outputs[number] if name}
    entering = [bound.tensors.get(operand.name, "") for operand in form.operands]
    for tensor in (*entering, *(tensor for further in bound.more.values() for tensor in further)):
        if tensor in made:
            reason = f"'{tensor}' is made inside, and the pattern has it come in"
            return refuse(reason), index.producers[tensor]
    leaving = {bound.tensors[name] for name in form.outputs}
    for number in sorted(inside):
        for tensor in table.outputs[number]:
            if not tensor or tensor in leaving:
                continue
            if tensor in index.outputs:
                reason = f"the output of {table.describe(number)} is an output of the graph"
                return refuse(reason), number
            other = next((n for n in index.consumers.get(tensor, ()) if n not in inside), None)
            if other is not None:
                output, reader = f"the output of {table.describe(number)}", table.describe(other)
                return refuse(f"{output} has another consumer, {reader}"), number
    if len({form.makers[name][0].output for name in form.outputs}) > 1:
        between = table.order.find_returning_node(inside)
        if between is not None:
            return refuse(f"a path leaves it and comes back through {table.describe(between)}"), None
    return YES, None


def check_conditions(pattern: Pattern, form: PatternForm, bound: Binding, index: GraphIndex) -> Verdict:
    """Check a match against the pattern's `where` conditions and its check function."""
    facts: dict[str, Any] = {}
    for condition in pattern.where:
        for name in condition.expression.names - facts.keys():
            facts[name] = _collect_facts(name, form, bound, index, ranged=True)
        reason = condition.expression.explain_failure(facts)
        if reason:
            return refuse(f"where: {condition.reason or reason}")
    if pattern.check is None:
        return YES
    try:
        refusal = pattern.check(
            {name: _collect_facts(name, form, bound, index) for name in pattern.names}
        )
    except Exception as error:  # a vendor's function can fail in any way
        refusal = f"failed with {type(error).__name__}: {error}"
    return refuse(f"check: {refusal}") if refusal else YES


def _collect_facts(
    name: str, form: PatternForm, bound: Binding, index: GraphIndex, *, ranged: bool = False
) -> dict[str, Any]:
    """Return the facts about a name of a pattern at a match.

    An input has the facts of a tensor, an output of a line also the `op`, `attr`
    and `opset` of its node. A name that is left out has only `given`, false. `ranged` is as in
    `collect_tensor_facts`.
    """
    facts = collect_tensor_facts(index, bound.tensors.get(name, ""), ranged=ranged)
    if name in form.makers and facts["given"]:
        node = index.nodes[bound.nodes[form.makers[name][0].output]]
        facts |= {key: value for key, value in collect_node_facts(index, node).items() if key != "name"}
    return facts


# Units: the smallest things that the placement assigns to a device; the annotations of nodes.

Kind = Literal["node", "composite", "qdq"]


class NodeGroup(Protocol):
    """Anything that stands for some nodes of a graph."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The numbers of the nodes, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """The annotation of a node.

    `verdict` is yes if a rule accepts it; `rule` is the location of that rule (`ops[3]`, or `dla.yaml:
    ops[3]` if inherited), else empty. If `standalone` is False the node is supported only inside a
    composite; if `is_required` is True it has to run on the accelerator. `accepts_plain` and
    `accepts_quantized` tell whether a rule accepts the node as it is, or between DequantizeLinear and
    QuantizeLinear; they are valid only if the verdict is yes. `not_quantized` is why no rule accepts
    the latter, of a node that stands there; else it is empty.
    """

    verdict: Verdict
    rule: str = ""
    standalone: bool = True
    is_required: bool = False
    accepts_plain: bool = True
    accepts_quantized: bool = False
    not_quantized: str = ""


@dataclass(frozen=True)
class Unit:
    """Nodes that are placed together, in topological order: one node, a composite, or a QDQ group.

    `match` is set for a composite, and for a QDQ group around one. `verdict` says whether the
    accelerator supports the unit, `rules` names the rules that accepted its nodes, and `must` says
    whether one of these rules requires the accelerator.
    """

    name: str
    nodes: tuple[int, ...]
    verdict: Verdict
    rules: tuple[str, ...]
    match: Match | None = None
    kind: Kind = "node"
    must: bool = False

    @property
    def composite(self) -> str | None:
        """The name of the composite, None if the unit is not one."""
        return self.match.pattern.name if self.match else None


def describe_rejection(node: NodeProto, mark: Mark) -> str:
    """Describe why the rules do not accept a node, with the first of their reasons."""
    reason = next(iter(mark.verdict.reasons), "").removeprefix(f"{node.op_type}: ")
    return f"{describe_node(node)} is not taken by the rules: {reason}"
