"""Clean-up of a model before it is planned: several passes in one go, without a copy for each.

Types stay known: a typed graph gets the edits that the model gets, so nothing is inferred again.
"""

from collections import Counter
from collections.abc import Mapping, MutableSequence, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, starmap
from typing import ClassVar

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from byoc.model import (
    GraphIndex,
    InferenceResult,
    KnownValues,
    Model,
    NodeRecords,
    copy_without,
    get_metadata,
    get_operator_name,
    list_bodies,
    prepare_model,
    set_metadata,
    type_certainly,
    walk_graph_paths,
    walk_graphs,
    walk_nodes,
)
from byoc.passes._graph_edits import CLEANED_KEY, GraphEdits
from byoc.passes._pass_effect import PassEffect
from byoc.passes._pass_plugins import MODEL_SCOPE
from byoc.support import BYOC_DISTRIBUTION, read_byoc_version


@dataclass(frozen=True)
class CleanPass:
    """A pass that edits nodes of some operators of ONNX's main domain, in all graphs of a model.

    `contrib_operators` are those of com.microsoft.

    It is a pass like any other for whoever asks for it by name. `clean_model` runs several at once.
    """

    scope: ClassVar[str] = MODEL_SCOPE
    name: ClassVar[str]
    operators: ClassVar[frozenset[str]]
    contrib_operators: ClassVar[frozenset[str]] = frozenset()

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Add the edits of a graph, whose nodes of the operators are given by number."""
        raise NotImplementedError

    def run(self, model: ModelProto) -> ModelProto:
        """Return the model with the edits. Raises InputError for a model that is not valid."""
        return clean_model(prepare_model(model, "the model"), (self,)).model.proto


@dataclass(frozen=True, eq=False)
class CleanedModel:
    """A model after clean-up: itself where there was nothing to do.

    `effects` are those of the passes that changed something.
    """

    model: Model
    effects: tuple[PassEffect, ...] = ()


def clean_model(model: Model, passes: Sequence[CleanPass]) -> CleanedModel:
    """Clean a model by passes, in their order; neither it nor its index changes."""
    wanted = {operator for each in passes for operator in each.operators}
    contrib = {operator for each in passes for operator in each.contrib_operators}
    if not any(_find_nodes(index, wanted, contrib) for index in model.index.walk()):
        return CleanedModel(model)
    root = _begin_edits(model)
    before = _count_operators(model)
    effects = []
    for each in passes:
        for edits in root.walk():
            found = _find_nodes(edits.index, each.operators, each.contrib_operators)
            numbers = [n for n in found if n not in edits.removed]
            if numbers:
                each.edit(edits, numbers)
        change, rewritten = root.take_counts()
        if rewritten or any(change.values()):
            after = Counter(before)
            after.update(change)
            effects.append(_describe_effect(each, before, after, rewritten))
            before = after
    if root.is_empty:
        return CleanedModel(model)
    paths = {id(index): path for path, index in walk_graph_paths(model.index)}
    lost = frozenset(
        f"{path}{name}"
        for edits in root.walk()
        for name in edits.list_lost()
        for path in ("", paths[id(edits.index)])
    )
    return CleanedModel(replace(_make_model(model, root), lost=lost), tuple(effects))


def _count_operators(model: Model) -> Counter[str]:
    """Count the nodes of a model by operator, those in bodies and functions included."""
    found = Counter(kind.operator for index in model.index.walk() for kind in index.node_kinds)
    inside = chain.from_iterable(function.node for function in model.structure.functions)
    found.update(map(get_operator_name, walk_nodes(inside)))
    return found


def _find_nodes(index: GraphIndex, operators: Set[str], contrib: Set[str] = frozenset()) -> list[int]:
    """Return the nodes of some of ONNX's operators, and of some of com.microsoft's."""
    kinds = index.node_kinds
    found = {id(kind) for kind in set(kinds) if kind.op_type in (operators if kind.is_onnx else contrib)}
    return [i for i, kind in enumerate(kinds) if id(kind) in found] if found else []


def _begin_edits(model: Model) -> GraphEdits:
    known = model.inference.known if model.inference.certain else None
    certain = type_certainly(model.index)
    if known is None and certain.typed_graph is not None:
        known = KnownValues.of_graph(certain.typed_graph, model.structure, model.index.opsets)
    return _add_bodies(GraphEdits(model.index, folder=model.folder, known=known))


def _add_bodies(edits: GraphEdits) -> GraphEdits:
    known = edits.known
    for number, bodies in edits.index.bodies.items():
        edits.inner[number] = [
            _add_bodies(
                GraphEdits(
                    body.index,
                    edits.folder,
                    None if known is None else known.enter_body(number, body.attribute),
                    edits.root or edits,
                )
            )
            for body in bodies
        ]
    return edits


def _describe_effect(
    asked: CleanPass, before: Mapping[str, int], after: Mapping[str, int], rewritten: int
) -> PassEffect:
    return PassEffect(
        name=asked.name,
        distribution=f"{BYOC_DISTRIBUTION} {read_byoc_version()}",
        scope=asked.scope,
        nodes_before={name: count for name, count in sorted(before.items()) if count},
        nodes_after={name: count for name, count in sorted(after.items()) if count},
        rewritten=rewritten,
        changed=1,
    )


def _make_model(model: Model, root: GraphEdits) -> Model:
    """Return a copy of a model with the edits, and the types of what is left."""
    proto = copy_without(model.structure)
    edit_graph(proto.graph, root, weights=True)
    types = dict(model.inference.type_protos)
    for name in root.list_gone() | root.list_unread_stored():
        types.pop(name, None)
    types |= root.new_types
    typed = None
    if model.inference.typed_graph is not None:
        typed = GraphProto()
        typed.CopyFrom(model.inference.typed_graph)
        edit_graph(typed, root, weights=False)
    records = edit_records(model.index.records, root)
    notes, certain = model.inference.notes, model.inference.certain
    inference = InferenceResult(types, typed, notes, certain, records=records)
    return replace(model, structure=proto, inference=inference)


# Making gathered edits: on a graph in place, and on the records of its nodes.


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
