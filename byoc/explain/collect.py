"""Explaining a model: the annotator and the grouper applied to every graph, bodies included."""

import re
from collections.abc import Iterator, Sequence

from onnx import NodeProto

from byoc.costs.work import Sizes, work
from byoc.errors import InputError, nearest
from byoc.explain.data import Explained, Explanation
from byoc.explain.refused import refusals
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.places import graphs_of
from byoc.graph.unshare import unshared
from byoc.patterns.explain import near_misses
from byoc.patterns.group import group
from byoc.rules.annotate import Annotator
from byoc.rules.load import Target
from byoc.rules.operators import name_of


def explain(model: Model, target: Target, node: str | None = None, op: str | None = None) -> Explanation:
    """Explain which nodes of a model a target refuses, and why.

    With `node` only the node of that name (or output) is examined, with `op` only nodes of that
    operator. Raise InputError if there is none.
    """
    if target.quantized:
        model = unshared(model)
    graphs = tuple(_explained(path, index, target) for path, index in graphs_of(model.index))
    asked = tuple((graph, number) for graph in graphs for number in _chosen(graph, node, op))
    if (node or op) and not asked:
        raise _not_there(model, graphs, node, op)
    wanted = {(id(graph), number) for graph, number in asked}
    refused = tuple(
        refusal
        for graph in graphs
        for refusal in refusals(graph, Annotator(target, graph.index))
        if (id(graph), refusal.number) in wanted
    )
    return Explanation(model, target, graphs, asked, refused)


def _explained(graph_path: str, index: GraphIndex, target: Target) -> Explained:
    """Annotate and group one graph."""
    annotator = Annotator(target, index)
    marks = [annotator.mark(number) for number in range(len(index.nodes))]
    sizes = Sizes(index.types)
    units = group(index, target.patterns, marks)
    matches = [unit.match for unit in units if unit.match is not None]
    return Explained(
        quantized=target.quantized,
        graph=graph_path,
        index=index,
        marks=marks,
        units=units,
        misses=near_misses(index, target.patterns, marks, matches=matches),
        operations={
            number: work(index, sizes, (number,)).operations
            for number in range(len(index.nodes))
            if number not in index.constant_nodes
        },
    )


def _chosen(graph: Explained, name: str | None, op: str | None) -> Iterator[int]:
    """Yield the nodes of a graph that have a name or output, and an operator (None: any)."""
    for number in graph.operations:
        node = graph.index.nodes[number]
        if op is not None and op not in (node.op_type, name_of(node)):
            continue
        if name is None or name == node.name or name in filter(None, node.output):
            yield number


def _not_there(
    model: Model, graphs: Sequence[Explained], name: str | None, op: str | None
) -> InputError:
    """Return the error for a node or operator that the model does not have, with the nearest one."""
    nodes = [graph.index.nodes[number] for graph in graphs for number in graph.operations]
    named = [
        node for node in nodes if name is not None and name in (node.name, *filter(None, node.output))
    ]
    if named and op is not None:
        there = ", ".join(dict.fromkeys(map(name_of, named)))
        return InputError(f"{model.source}: '{name}' is of the operator {there}, not {op}")
    known = {node.op_type for node in nodes} | {name_of(node) for node in nodes}
    if op is not None and op not in known:
        return InputError(f"{model.source}: there is no operator {op}{nearest(op, known)}")
    if op is not None:
        nodes = [node for node in nodes if op in (node.op_type, name_of(node))]
    wanted = f"node '{name}'" if op is None else f"{op} '{name}'"
    return InputError(f"{model.source}: there is no {wanted}{_like(str(name), nodes)}")


def _like(name: str, nodes: Sequence[NodeProto]) -> str:
    """Return a hint: the nearest name, or the shortest one that contains the same letters and digits."""
    names = {label: None for node in nodes for label in (node.name, *node.output) if label}
    hint = nearest(name, names)
    letters = _letters(name)
    if not hint and letters:
        inside = [label for label in names if letters in _letters(label)]
        hint = f" (did you mean {min(inside, key=len)}?)" if inside else ""
    return hint


def _letters(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower())
