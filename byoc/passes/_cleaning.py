"""Clean-up of a model before it is planned: several passes in one go, without a copy for each.

Types stay known: a typed graph gets the edits that the model gets, so nothing is inferred again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import chain, starmap
from typing import ClassVar

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from byoc._dataclasses import dataclass, replace
from byoc.model import (
    GraphIndex,
    InferenceResult,
    KnownValues,
    Model,
    NodeRecords,
    build_node,
    copy_without,
    drop_named,
    get_constant_value,
    get_operator_name,
    get_stated_attributes,
    prepare_model,
    type_certainly,
    walk_graph_paths,
    walk_nodes,
)
from byoc.model.ranges import FiniteValues
from byoc.passes._pass_plugins import MODEL_SCOPE, PassEffect
from byoc.passes._simplify import GraphEdits
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

    def find_nodes(self, index: GraphIndex) -> list[int]:
        """Return the nodes of a graph that may be edited: those of the operators."""
        return _find_nodes(index, self.operators, self.contrib_operators)

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Add the edits of a graph, whose nodes from `find_nodes` are given by number."""
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
    if not any(each.find_nodes(index) for index in model.index.walk() for each in passes):
        return CleanedModel(model)
    root = _begin_edits(model)
    before = _count_operators(model)
    effects = []
    for each in passes:
        for edits in root.walk():
            numbers = [n for n in each.find_nodes(edits.index) if n not in edits.removed]
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
    return CleanedModel(replace(apply_edits(model, root), lost=lost), tuple(effects))


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
    return GraphEdits(model.index, model.folder, known)


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


def apply_edits(model: Model, root: GraphEdits) -> Model:
    """Return a copy of a model with the edits of its main graph, and the types of what is left."""
    proto = copy_without(model.structure)
    edit_graph(proto.graph, root, weights=True)
    types = dict(model.inference.type_protos)
    for name in root.list_gone() | root.list_newly_unread():
        types.pop(name, None)
    types |= root.types
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
    for number, listed in edits.index.bodies.items():
        own = _list_graphs(graph.node[number])
        inner = edits.inner[id(edits.index.nodes[number])]
        for body, each in zip(listed, inner, strict=True):
            edit_graph(own[body.attribute, body.position], each, weights)
    edits.write_to(graph)
    unread = edits.list_newly_unread()
    drop_named(graph.value_info, edits.list_gone())
    if weights:
        edits.write_stored(graph, unread)
        return
    drop_named(graph.initializer, unread)
    drop_named(graph.input, unread)
    graph.value_info.extend(starmap(helper.make_value_info, edits.types.items()))


def _list_graphs(node: NodeProto) -> dict[tuple[str, int], GraphProto]:
    return {
        (attribute.name, position): graph
        for attribute in node.attribute
        for position, graph in enumerate([attribute.g] if attribute.HasField("g") else attribute.graphs)
    }


def edit_records(records: NodeRecords, edits: GraphEdits) -> NodeRecords | None:
    """Return the records of a graph's nodes after edits; None where names or bodies change, too."""
    inner = (each for each in edits.walk() if each is not edits)
    if edits.links or edits.claims or any(each.removed or each.replaced for each in inner):
        return None
    order, new = edits.order_nodes()
    return records.extend_with(new).select(order)


# The clean-up of operators in parts: casts and sums that their bodies have for other uses.


@dataclass(frozen=True)
class SimplifyParts(CleanPass):
    """Drop casts that change nothing, make sums of two additions, and do not let variances cancel.

    ONNX's bodies cast to the type that most inputs have, and write a variance as the mean of squares
    less the square of the mean, which loses all digits where the mean is large.
    """

    name: ClassVar[str] = "simplify-parts"
    operators: ClassVar[frozenset[str]] = frozenset({"Cast", "Sum", "Sub"})

    add_sums: bool = True
    """Whether Sum becomes Add, for targets that have no Sum."""

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Edit the nodes, which are of the operators above."""
        edit_of = {"Cast": _drop_cast, "Sum": self._split_sum, "Sub": _center_variance}
        for number in numbers:
            edit_of[edits.index.nodes[number].op_type](edits, number)

    def _split_sum(self, edits: GraphEdits, number: int) -> None:
        node = edits.index.nodes[number]
        if not self.add_sums or len(node.input) < 2 or edits.index.get_opset(node) < _BROADCAST_OPSET:
            return
        nodes, total = [], node.input[0]
        for position, each in enumerate(node.input[1:], 2):
            last = position == len(node.input)
            made = node.output[0] if last else edits.names.new_tensor(f"{node.output[0]}_{position}")
            nodes.append(build_node("Add", [total, each], [made]))
            total = made
        edits.replace(number, *nodes)


_BROADCAST_OPSET = 8  # from which on Sum broadcasts as Add does


def _drop_cast(edits: GraphEdits, number: int) -> None:
    node, index = edits.index.nodes[number], edits.index
    given, made = node.input[0], node.output[0]
    if index.get_dtype(given) is not None and index.get_dtype(given) == index.get_dtype(made):
        edits.bypass(number, given, made)


def _center_variance(edits: GraphEdits, number: int) -> None:
    """Make the mean of squares less the square of the mean the mean of squared deviations."""
    index = edits.index
    of_squares, squared = (_find_maker(index, name) for name in index.nodes[number].input)
    if of_squares is None or squared is None or of_squares.op_type != "ReduceMean":
        return
    mean = _find_maker(index, _find_squared(index, squared))
    values = _find_squared(index, _find_maker(index, of_squares.input[0]))
    if mean is None or not values or mean.op_type != "ReduceMean" or mean.input[0] != values:
        return
    attributes = get_stated_attributes(mean)
    same = attributes == get_stated_attributes(of_squares) and mean.input[1:] == of_squares.input[1:]
    if not same or not attributes.get("keepdims", 1):
        return
    made = index.nodes[number].output[0]
    deviation, square = (edits.names.new_tensor(f"{made}_{what}") for what in ("deviation", "square"))
    edits.types |= dict.fromkeys((deviation, square), index.type_protos[values])
    edits.replace(
        number,
        build_node("Sub", [values, mean.output[0]], [deviation]),
        build_node("Mul", [deviation, deviation], [square]),
        build_node("ReduceMean", [square, *mean.input[1:]], [made], **attributes),
    )
    for other in index.consumers[mean.output[0]]:
        node = index.nodes[other]
        if other > number and node.op_type == "Sub" and [*node.input] == [values, mean.output[0]]:
            edits.bypass(other, deviation, node.output[0])
    edits.drop_unread(index.nodes[number].input)


def _find_maker(index: GraphIndex, name: str) -> NodeProto | None:
    number = index.producers.get(name)
    return None if number is None else index.nodes[number]


def _find_squared(index: GraphIndex, node: NodeProto | None) -> str:
    """Return the tensor that a node squares, empty where it squares none."""
    if node is None:
        return ""
    if node.op_type == "Mul" and node.input[0] == node.input[1]:
        return node.input[0]
    if node.op_type == "Pow":
        power = get_constant_value(index, node.input[1])
        if power is not None and np.all(power == 2):
            return node.input[0]
    return ""


# The pass that drops guards against NaN where there is none.
#
# PyTorch's exporter writes an attention with a mask as Where(IsNaN(p), 0, p) with p = Softmax(x): a
# row that is masked altogether would be NaN. On targets without these operators it cuts each
# attention in three. Where no run makes NaN, the guard gives what it is given.


@dataclass(frozen=True)
class DropNanGuards(CleanPass):
    """Drop a Where(IsNaN(p), c, p) whose p is proven to be no NaN in any run, whatever the inputs are.

    Proofs begin at token ids and weights, and follow layers: a normalization bounds what it makes, and a
    Softmax has numbers where each row of its mask shows an element. Of a float input nothing is known.
    """

    name: ClassVar[str] = "drop-nan-guards"
    operators: ClassVar[frozenset[str]] = frozenset({"Where"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the guards of the main graph that do nothing."""
        index = edits.index
        if index.outer is not None:
            return
        values = FiniteValues(index, edits.folder)
        for number in numbers:
            guarded = _find_guarded(edits, number)
            made = index.node_outputs[number][0]
            if guarded and values.is_finite(guarded) and edits.bypass(number, guarded, made):
                edits.drop_parameters([index.node_inputs[number][0]])


def _find_guarded(edits: GraphEdits, number: int) -> str:
    """Return the tensor whose NaN a Where replaces, of the same shape; empty for any other Where."""
    index = edits.index
    condition, otherwise, guarded = index.node_inputs[number]
    maker = index.producers.get(edits.find_root(condition))
    if maker is not None and index.node_kinds[maker].operator == "Not":
        guarded = otherwise
        maker = index.producers.get(edits.find_root(index.node_inputs[maker][0]))
    if maker is None or index.node_kinds[maker].operator != "IsNaN":
        return ""
    tested = edits.find_root(index.node_inputs[maker][0])
    shape = index.get_shape(guarded)
    is_same = tested == edits.find_root(guarded) and shape is not None
    return tested if is_same and shape == index.get_shape(index.node_outputs[number][0]) else ""
