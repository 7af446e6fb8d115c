"""Whether a match can be taken out of its graph as one node, and why not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from byoc.graph.facts import node_facts, tensor_facts
from byoc.graph.index import GraphIndex
from byoc.patterns.form import Form
from byoc.patterns.pattern import Pattern
from byoc.patterns.search import Bound
from byoc.patterns.table import Table

# A path that leaves a match and comes back is looked for among so many nodes; matches are local.
_MOST_VISITED = 20_000


def closed_objection(form: Form, bound: Bound, table: Table) -> tuple[str, int | None]:
    """Return why what is bound cannot become one node (empty: it can), and the node that is at fault.

    What is inside is used outside, comes in from outside as well, or a path leaves it and comes back.
    """
    index, inside = table.index, set(bound.nodes.values())
    made = {name for number in inside for name in table.outputs[number] if name}
    entering = [operand.name for operand in form.operands]
    for tensor in (
        *(bound.tensors.get(name, "") for name in entering),
        *(tensor for further in bound.more.values() for tensor in further),
    ):
        if tensor in made:
            return f"'{tensor}' is made inside, and the pattern has it come in", index.producer[tensor]
    leaving = {bound.tensors[name] for name in form.outputs}
    for number in sorted(inside):
        for tensor in table.outputs[number]:
            if not tensor or tensor in leaving:
                continue
            if tensor in index.outputs:
                return f"the output of {table.called(number)} is an output of the graph", number
            other = next((n for n in index.consumers.get(tensor, ()) if n not in inside), None)
            if other is not None:
                reader = table.called(other)
                return f"the output of {table.called(number)} has another consumer, {reader}", number
    if len({form.made[name][0].output for name in form.outputs}) > 1:
        returning = Order(table).returns(inside)
        if returning is not None:
            return f"a path leaves it and comes back through {table.called(returning)}", None
    return "", None


@dataclass(frozen=True)
class Order:
    """Which nodes of a graph are one already, to tell whether more can be without making a cycle."""

    table: Table
    unit: dict[int, Collection[int]] = field(default_factory=dict)
    far: dict[int, int] = field(default_factory=dict)

    def join(self, nodes: Collection[int]) -> None:
        """Make one of some nodes."""
        last = max(nodes)
        self.unit.update(dict.fromkeys(nodes, nodes))
        for number in range(min(nodes), last):
            self.far[number] = max(self.far.get(number, number), last)

    def returns(self, nodes: Collection[int]) -> int | None:
        """Return a node outside on a path that leaves some nodes and comes back, None without one.

        Where there is too much to look through, a node that was reached counts as one on such a path.
        """
        index = self.table.index
        last = max(nodes)
        while self.far.get(last, last) > last:  # what is one with a node before may lead back from there
            last = self.far[last]
        start = [n for n in self._readers(nodes) if n not in nodes]
        before = dict.fromkeys(n for n in start if n <= last)
        pending = list(before)
        while pending:
            number = pending.pop()
            if len(before) > _MOST_VISITED:
                return number
            same = self.unit.get(number, (number,))
            for reader in self._readers(same):
                if reader in nodes:
                    return number
                if reader <= last and reader not in before and reader not in index.constant_nodes:
                    before[reader] = None
                    pending.append(reader)
        return None

    def _readers(self, nodes: Collection[int]) -> Sequence[int]:
        consumers = self.table.index.consumers
        outputs = (name for number in nodes for name in self.table.outputs[number] if name)
        return [number for name in outputs for number in consumers.get(name, ())]


def condition_objection(pattern: Pattern, form: Form, bound: Bound, index: GraphIndex) -> str:
    """Return why a match is not wanted, by the pattern's `where` and its check; empty when it is."""
    known: dict[str, Any] = {}
    for condition in pattern.where:
        for name in condition.expression.names - known.keys():
            known[name] = _facts_of(name, form, bound, index)
        reason = condition.expression.objection(known)
        if reason:
            return f"where: {condition.reason or reason}"
    if pattern.check is None:
        return ""
    try:
        reason = pattern.check(facts(pattern, form, bound, index)) or ""
    except Exception as error:  # somebody else's function, which can fail in any way
        reason = f"failed with {type(error).__name__}: {error}"
    return f"check: {reason}" if reason else ""


def facts(pattern: Pattern, form: Form, bound: Bound, index: GraphIndex) -> Mapping[str, Any]:
    """Return what is known of each name of a pattern where it was found.

    An input has the facts of a tensor (`byoc.graph.facts`); what a line makes has `op`, `attr` and
    `opset` of its node beside them; what is not there has `given` false alone.
    """
    return {name: _facts_of(name, form, bound, index) for name in pattern.names}


def _facts_of(name: str, form: Form, bound: Bound, index: GraphIndex) -> dict[str, Any]:
    found = tensor_facts(index, bound.tensors.get(name, ""))
    if name in form.made and found["given"]:
        node = index.nodes[bound.nodes[form.made[name][0].output]]
        found |= {key: value for key, value in node_facts(index, node).items() if key != "name"}
    return found
