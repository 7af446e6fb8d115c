"""Making gathered edits: on a graph in place, and on the records of its nodes."""

from collections.abc import MutableSequence
from itertools import starmap

from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from byoc.model import NodeRecords, get_metadata, list_bodies, set_metadata, walk_graphs
from byoc.passes._graph_edits import CLEANED_KEY, GraphEdits


def edit_graph(graph: GraphProto, edits: GraphEdits, weights: bool) -> None:
    """Make edits on a graph in place, which has the nodes of the edits' index, and in its bodies.

    Without `weights` it is a typed graph, which gets the types of new tensors instead of their values.
    """
    for number, bodies in edits.inner.items():
        own = _list_graphs(graph.node[number])
        for body, (attribute, position) in zip(bodies, _list_places(edits, number), strict=True):
            edit_graph(own[attribute, position], body, weights)
    _rename_tensors(graph, edits)
    if edits.removed or edits.replaced:
        _set_nodes(graph, edits)
        _drop_stored(graph, edits.list_unread_stored())
        _drop_types(graph.value_info, edits.list_gone())
    if not weights:
        graph.value_info.extend(starmap(helper.make_value_info, edits.new_types.items()))
        return
    for tensor in edits.stored:
        graph.initializer.append(tensor)
        if edits.root is None and not edits.index.has_default_inputs:
            graph.input.append(helper.make_value_info(tensor.name, edits.new_types[tensor.name]))


def _list_places(edits: GraphEdits, number: int) -> list[tuple[str, int]]:
    return [(body.attribute, body.position) for body in edits.index.bodies[number]]


def _list_graphs(node: NodeProto) -> dict[tuple[str, int], GraphProto]:
    return {
        (attribute.name, position): graph
        for attribute in node.attribute
        for position, graph in enumerate([attribute.g] if attribute.HasField("g") else attribute.graphs)
    }


def _rename_tensors(graph: GraphProto, edits: GraphEdits) -> None:
    """Rename what nodes read, in bodies, too, and what becomes an output of the graph."""
    index = edits.index
    renamed = {*edits.links, *edits.claims}
    touched = {number for name in renamed for number in index.consumers.get(name, ())}
    for number in sorted(touched):
        _rename_reads(graph.node[number], edits)
    for name, claimed in edits.claims.items():
        node = graph.node[index.producers[name]]
        node.output[list(node.output).index(name)] = claimed
    for nodes in edits.replaced.values():
        for node in nodes:
            _rename_inputs(node, edits)
            for position, name in enumerate(node.output):
                node.output[position] = edits.claims.get(name, name)


def _rename_inputs(node: NodeProto, edits: GraphEdits) -> None:
    for position, name in enumerate(node.input):
        if name in edits.links or name in edits.claims:
            node.input[position] = edits.rename(name)


def _rename_reads(node: NodeProto, edits: GraphEdits) -> None:
    """Rename what a node and its bodies read; no body has a tensor of such a name (`fixed_names`)."""
    _rename_inputs(node, edits)
    for body in list_bodies(node) if node.attribute else ():
        for graph in walk_graphs(body):
            for inner in graph.node:
                _rename_inputs(inner, edits)
            for value in graph.output:
                value.name = edits.rename(value.name)


def edit_records(records: NodeRecords, edits: GraphEdits) -> NodeRecords | None:
    """Return the records of a graph's nodes after edits; None where names or bodies change, too."""
    inner = (body for bodies in edits.inner.values() for body in bodies)
    if edits.links or edits.claims or not all(body.is_empty for body in inner):
        return None
    order, new = _order_nodes(edits, len(records.kinds))
    return records.extend_with(new).select(order)


def _order_nodes(edits: GraphEdits, count: int) -> tuple[list[int], list[NodeProto]]:
    """Return the numbers of so many nodes after edits, and the new nodes, whose numbers follow."""
    order: list[int] = []
    new: list[NodeProto] = []
    for number in range(count):
        if number in edits.removed:
            continue
        if number in edits.replaced:
            first = count + len(new)
            new.extend(edits.replaced[number])
            order.extend(range(first, count + len(new)))
        else:
            order.append(number)
    return order, new


def _set_nodes(graph: GraphProto, edits: GraphEdits) -> None:
    """Put the nodes of a graph in their new order, which copies none of them, and drop the others."""
    count = len(graph.node)
    order, new = _order_nodes(edits, count)
    graph.node.extend(new)
    heirs = {number: number for number in edits.notes.keys() - edits.removed}
    for number in sorted(edits.replaced.keys() - edits.removed):
        count += len(edits.replaced[number])
        heirs[number] = count - 1
    for number in edits.notes.keys() - edits.removed:
        heir = graph.node[heirs[number]]
        done = [get_metadata(heir, CLEANED_KEY), *edits.notes[number]]
        set_metadata(heir, CLEANED_KEY, "; ".join(filter(None, done)))
    ranks = [len(order)] * len(graph.node)
    for rank, number in enumerate(order):
        ranks[number] = rank
    ranked = iter(ranks)
    graph.node.sort(key=lambda _: next(ranked))
    del graph.node[len(order) :]


def _drop_stored(graph: GraphProto, unread: set[str]) -> None:
    for position in reversed([i for i, each in enumerate(graph.initializer) if each.name in unread]):
        del graph.initializer[position]
    _drop_types(graph.input, unread)


def _drop_types(values: MutableSequence[ValueInfoProto], gone: set[str]) -> None:
    for position in reversed([i for i, value in enumerate(values) if value.name in gone]):
        del values[position]
