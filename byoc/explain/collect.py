"""Explaining a model: the annotator and the grouper applied to every graph, bodies included."""

import re
from collections.abc import Iterator, Sequence

from onnx import NodeProto

from byoc.costs.work import Sizes, count_work
from byoc.errors import InputError, suggest_nearest
from byoc.explain.data import GraphExplanation, Explanation
from byoc.explain.refused import find_refused_nodes
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.places import walk_graph_paths
from byoc.graph.unshare import unshare_dequantize
from byoc.patterns.explain import find_near_misses
from byoc.patterns.group import group_units
from byoc.rules.annotate import Annotator
from byoc.rules.load import Target
from byoc.rules.operators import get_operator_name


def explain_model(model: Model, target: Target, node: str | None = None, op: str | None = None) -> Explanation:
    """Explain which nodes of a model a target refuses, and why.

    With `node` only the node of that name (or output) is examined, with `op` only nodes of that
    operator. Raise InputError if there is none.
    """
    if target.has_quantized_rules:
        model = unshare_dequantize(model)
    graphs = tuple(_explain_graph(path, index, target) for path, index in walk_graph_paths(model.index))
    asked = tuple((graph, number) for graph in graphs for number in _select_nodes(graph, node, op))
    if (node or op) and not asked:
        raise _not_found_error(model, graphs, node, op)
    wanted = {(id(graph), number) for graph, number in asked}
    refused = tuple(
        refusal
        for graph in graphs
        for refusal in find_refused_nodes(graph, Annotator(target, graph.index))
        if (id(graph), refusal.number) in wanted
    )
    return Explanation(model, target, graphs, asked, refused)


def _explain_graph(graph_path: str, index: GraphIndex, target: Target) -> GraphExplanation:
    """Annotate and group one graph."""
    annotator = Annotator(target, index)
    marks = [annotator.annotate_node(number) for number in range(len(index.nodes))]
    sizes = Sizes(index.types)
    units = group_units(index, target.patterns, marks)
    matches = [unit.match for unit in units if unit.match is not None]
    return GraphExplanation(
        quantized=target.has_quantized_rules,
        graph_path=graph_path,
        index=index,
        marks=marks,
        units=units,
        near_misses=find_near_misses(index, target.patterns, marks, matches=matches),
        operations={
            number: count_work(index, sizes, (number,)).operations
            for number in range(len(index.nodes))
            if number not in index.constant_nodes
        },
    )


def _select_nodes(graph: GraphExplanation, name: str | None, op: str | None) -> Iterator[int]:
    """Yield the nodes of a graph that have a name or output, and an operator (None: any)."""
    for number in graph.operations:
        node = graph.index.nodes[number]
        if op is not None and op not in (node.op_type, get_operator_name(node)):
            continue
        if name is None or name == node.name or name in filter(None, node.output):
            yield number


def _not_found_error(
    model: Model, graphs: Sequence[GraphExplanation], name: str | None, op: str | None
) -> InputError:
    """Return the error for a node or operator that the model does not have, with the nearest one."""
    nodes = [graph.index.nodes[number] for graph in graphs for number in graph.operations]
    named = [
        node for node in nodes if name is not None and name in (node.name, *filter(None, node.output))
    ]
    if named and op is not None:
        there = ", ".join(dict.fromkeys(map(get_operator_name, named)))
        return InputError(f"{model.source}: '{name}' is of the operator {there}, not {op}")
    known = {node.op_type for node in nodes} | {get_operator_name(node) for node in nodes}
    if op is not None and op not in known:
        return InputError(f"{model.source}: there is no operator {op}{suggest_nearest(op, known)}")
    if op is not None:
        nodes = [node for node in nodes if op in (node.op_type, get_operator_name(node))]
    wanted = f"node '{name}'" if op is None else f"{op} '{name}'"
    return InputError(f"{model.source}: there is no {wanted}{_suggest(str(name), nodes)}")


def _suggest(name: str, nodes: Sequence[NodeProto]) -> str:
    """Return a hint: the nearest name, or the shortest one that contains the same letters and digits."""
    names = {label: None for node in nodes for label in (node.name, *node.output) if label}
    hint = suggest_nearest(name, names)
    letters = _alphanumeric(name)
    if not hint and letters:
        inside = [label for label in names if letters in _alphanumeric(label)]
        hint = f" (did you mean {min(inside, key=len)}?)" if inside else ""
    return hint


def _alphanumeric(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower())
