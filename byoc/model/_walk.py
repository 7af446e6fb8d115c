"""Traversal of models: graphs, tensors, reads and captures of nodes, topological order, free names."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)

from byoc.numerics import find_cycle, sort_topologically


def is_onnx(node: NodeProto) -> bool:
    """Return whether a node is in ONNX's main domain, which has two spellings."""
    return node.domain in ("", "ai.onnx")


# Look-ups in protobuf's enumerations are slow.
_GRAPH, _GRAPHS = AttributeProto.GRAPH, AttributeProto.GRAPHS


def list_bodies(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in the attributes of a node (If, Loop, Scan and the like)."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        kind = attribute.type
        if kind == _GRAPH:
            found.append(attribute.g)
        elif kind == _GRAPHS:
            found.extend(attribute.graphs)
    return found


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all bodies inside it."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                kind = attribute.type
                if kind == _GRAPH:
                    pending.append(attribute.g)
                elif kind == _GRAPHS:
                    pending.extend(attribute.graphs)


def walk_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, and those in their bodies, however deep."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for body in list_bodies(node):
            pending.extend(body.node)


def walk_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all stored tensors: initializers and tensor attributes, in bodies and functions, too."""
    pending = [model.graph]
    for function in model.functions:
        yield from _walk_attribute_tensors(function.node, pending)
    while pending:
        graph = pending.pop()
        yield from _walk_initializers(graph)
        yield from _walk_attribute_tensors(graph.node, pending)


def walk_distinct_tensors(model: ModelProto, distinct: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Yield stored tensors as `walk_tensors`, those in attributes once for nodes of one kind.

    `distinct` has one node of each kind of the graphs and functions that matter, bodies included
    (`list_distinct_nodes`).
    """
    bodies: list[GraphProto] = []
    yield from _walk_initializers(model.graph)
    yield from _walk_attribute_tensors(distinct, bodies)
    for body in bodies:
        yield from _walk_initializers(body)


def _walk_initializers(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _walk_attribute_tensors(
    nodes: Iterable[NodeProto], bodies: list[GraphProto]
) -> Iterator[TensorProto]:
    """Yield the tensors in attributes of nodes, and add the bodies of the nodes to a list."""
    for node in nodes:
        for attribute in node.attribute:
            kind = attribute.type
            if kind == _GRAPH:
                bodies.append(attribute.g)
            elif kind == _GRAPHS:
                bodies.extend(attribute.graphs)
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)


def get_input(node: NodeProto, position: int) -> str:
    """Return an input of a node, empty if it is left out."""
    return node.input[position] if position < len(node.input) else ""


def list_reads(node: NodeProto) -> list[str]:
    """Return the tensors that a node reads, without duplicates: inputs, then captures of its bodies."""
    names = dict.fromkeys(node.input)
    names.pop("", None)
    for body in list_bodies(node) if node.attribute else ():
        names.update(dict.fromkeys(list_captures(body)))
    return list(names)


def list_node_captures(node: NodeProto) -> list[str]:
    """Return the outer tensors that the bodies of a node read."""
    names: dict[str, None] = {}
    for body in list_bodies(node):
        names.update(dict.fromkeys(list_captures(body)))
    return list(names)


def list_own_names(graph: GraphProto) -> frozenset[str]:
    """Return the names that a graph defines: inputs, stored tensors, outputs of nodes."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.output)
    return frozenset(names)


def list_captures(graph: GraphProto) -> list[str]:
    """Return the outer tensors that a body reads, in the order of their first use."""
    local = {value.name for value in graph.input}
    local.update(tensor.name for tensor in graph.initializer)
    local.update(sparse.values.name for sparse in graph.sparse_initializer)
    outer: dict[str, None] = {}
    for node in graph.node:
        outer.update((name, None) for name in list_reads(node) if name not in local)
        local.update(node.output)
    outer.update((value.name, None) for value in graph.output if value.name not in local)
    return list(outer)


def sort_nodes(
    nodes: Sequence[NodeProto],
    reads: Sequence[Sequence[str]] | None = None,
    outputs: Sequence[Sequence[str]] | None = None,
) -> list[int]:
    """Return an order of the nodes in which producers are before consumers, as near theirs as can be.

    An order that is already right is kept. `reads` are what each node reads, `outputs` what it makes, if
    known. Raises ValueError naming a node of the cycle if there is one.
    """
    if _are_sorted(nodes, reads, outputs):
        return list(range(len(nodes)))
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    each = map(list_reads, nodes) if reads is None else reads
    before = [[producer[name] for name in names if name in producer] for names in each]
    order = sort_topologically(before)
    if len(order) < len(nodes):
        stuck = nodes[find_cycle(before)[0]]
        raise ValueError(f"the nodes form a cycle through {describe_node(stuck)}")
    return order


def _are_sorted(
    nodes: Sequence[NodeProto],
    reads: Sequence[Sequence[str]] | None,
    outputs: Sequence[Sequence[str]] | None,
) -> bool:
    """Return whether no node reads what it or a later one makes, and no two make the same."""
    if outputs is None:
        outputs = [list(node.output) for node in nodes]
    made = [name for names in outputs for name in names if name]
    later = set(made)
    if len(later) < len(made):
        return False
    for i, node in enumerate(nodes):
        if reads is not None:
            names: Iterable[str] = reads[i]
        else:
            names = list_reads(node) if node.attribute and list_bodies(node) else node.input
        if not later.isdisjoint(names):
            return False
        later.difference_update(outputs[i])
    return True


def describe_node(node: NodeProto) -> str:
    """Return the name of a node in messages: `Conv 'conv1'`, with its first output if it has none."""
    name = node.name or next(filter(None, node.output), "")
    return f"{node.op_type} '{name}'"


def get_node_name(node: NodeProto) -> str:
    """Return the name of a node for users: its own, or its first output's where it has none."""
    return node.name or next(filter(None, node.output), node.op_type)


def copy_without(source: ModelProto, *graph_fields: str) -> ModelProto:
    """Return a copy of a model whose main graph lacks the given fields (`node`, `initializer`, ...)."""
    result = ModelProto()
    if "initializer" not in graph_fields:  # all else is sooner copied as a whole than field by field
        result.CopyFrom(source)
        for name in graph_fields:
            result.graph.ClearField(name)
        return result
    _copy_fields(source, result, {"graph"})
    _copy_fields(source.graph, result.graph, set(graph_fields))
    return result


def _copy_fields(source: Message, result: Message, but: set[str]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name in but:
            continue
        if isinstance(value, (bool, int, float, str, bytes)):
            setattr(result, descriptor.name, value)
        elif isinstance(value, Message):
            getattr(result, descriptor.name).CopyFrom(value)
        else:
            getattr(result, descriptor.name).extend(value)


def list_tensor_names(scope: GraphProto | FunctionProto) -> set[str]:
    """Return all tensor names in a graph or function, in bodies, too."""
    bodies = [each for node in scope.node for body in list_bodies(node) for each in walk_graphs(body)]
    own = {*scope.input, *scope.output} if isinstance(scope, FunctionProto) else list_own_names(scope)
    names = {*own, *(name for body in bodies for name in list_own_names(body))}
    for inner in (scope, *bodies):
        for node in inner.node:
            names.update(node.input, node.output)
    return names


def list_node_names(*scopes: GraphProto | FunctionProto) -> set[str]:
    """Return the names of all nodes in graphs or functions, in bodies, too."""
    return {node.name for scope in scopes for node in walk_nodes(scope.node)}


class NameAllocator:
    """Allocates unique names for graphs and all bodies inside them; a node may be named as a tensor."""

    def __init__(self, *scopes: GraphProto | FunctionProto) -> None:
        """Collect the names of graphs or functions, and of all bodies inside."""
        self._tensors = set[str]().union(*map(list_tensor_names, scopes))
        self._scopes = scopes

    @cached_property
    def _nodes(self) -> set[str]:
        return list_node_names(*self._scopes)

    def new_tensor(self, name: str) -> str:
        """Allocate a tensor name: `name`, or that with a number."""
        return make_unique_name(name, self._tensors)

    def new_node(self, name: str) -> str:
        """Allocate a node name: `name`, or that with a number."""
        return make_unique_name(name, self._nodes)


def set_attribute(node: NodeProto, attribute: AttributeProto) -> None:
    """Set an attribute of a node, replacing one of the same name."""
    for own in node.attribute:
        if own.name == attribute.name:
            own.CopyFrom(attribute)
            return
    node.attribute.add().CopyFrom(attribute)


def make_unique_name(name: str, taken: set[str]) -> str:
    """Return `name`, or with the first free number behind it if it is taken, and add it to `taken`."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def walk_value_infos(proto: ModelProto) -> Iterator[ValueInfoProto]:
    """Yield the type annotations of all graphs, bodies and functions."""
    functions = [graph for f in proto.functions for node in f.node for graph in list_bodies(node)]
    for outer in (proto.graph, *functions):
        for graph in walk_graphs(outer):
            yield from (*graph.input, *graph.output, *graph.value_info)
    for function in proto.functions:
        yield from function.value_info


def walk_dims(proto: TypeProto) -> Iterator[TensorShapeProto.Dimension]:
    """Yield the dimensions of a tensor type, and of the elements of a sequence or optional."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(proto, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from walk_dims(getattr(proto, kind).elem_type)
