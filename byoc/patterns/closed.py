"""Whether a match can be taken out of its graph as one node, and why not."""

from collections.abc import Mapping
from typing import Any

from byoc.graph.facts import node_facts, tensor_facts
from byoc.graph.index import GraphIndex
from byoc.patterns.form import Form
from byoc.patterns.pattern import Pattern
from byoc.patterns.search import Bound
from byoc.patterns.table import Table


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
        returning = table.order.returns(inside)
        if returning is not None:
            return f"a path leaves it and comes back through {table.called(returning)}", None
    return "", None


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
