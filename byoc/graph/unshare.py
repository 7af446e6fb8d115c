"""Copies of a DequantizeLinear that several operators read, so that every QDQ group has its own.

Quantizers write one DequantizeLinear for a tensor that several operators read. What it makes is the same
wherever it stands, so that each reader may have a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnx import GraphProto, NodeProto

from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex
from byoc.graph.infer import Inferred
from byoc.graph.load import Model

_Copies = dict[int, list[NodeProto]]
_Renamed = dict[int, dict[str, str]]

_DEQUANTIZE = "DequantizeLinear"
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def is_dequantize(node: NodeProto) -> bool:
    """Return whether a node is a DequantizeLinear, ONNX's or onnxruntime's own."""
    return node.op_type == _DEQUANTIZE and node.domain in _DOMAINS


def is_quantize(node: NodeProto) -> bool:
    """Return whether a node is a QuantizeLinear, ONNX's or onnxruntime's own."""
    return node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


def is_float(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor has a part in quantization: indices and shapes have none."""
    known = index.types.get(name)
    return known is None or known.dtype in _FLOATS


def unshared(model: Model) -> Model:
    """Return a model in which no two QDQ groups could share a DequantizeLinear of an activation.

    Readers that give one another floating-point numbers can only be in a group together, as the two of
    x * sigmoid(x) are; they go on to share one, so that a pattern that reads it twice still matches.

    The first reader keeps the original, unless the graph gives its output out or a body captures it;
    copies are named `NAME_for_K`. Those fed by constants alone are left, since each goes wherever its
    readers are, and so is what bodies hold. A model that has nothing to copy is returned as it is.
    """
    index = model.index
    islands = _islands(index)
    shared = {
        number: readers
        for number, node in enumerate(index.nodes)
        if is_dequantize(node) and number not in index.constant_nodes
        if (readers := _readers(index, number, islands))
    }
    if not shared:
        return model
    names = _Names(index)
    copies: _Copies = {}
    renamed: _Renamed = {}
    values = dict(model.inferred.values)
    for number, readers in shared.items():
        output = index.nodes[number].output[0]
        for together in readers:
            copy = _copy(index.nodes[number], names)
            copies.setdefault(number, []).append(copy)
            for reader in together:
                renamed.setdefault(reader, {})[output] = copy.output[0]
            if output in values:
                values[copy.output[0]] = values[output]
    proto = copy_without(model.proto, "node")
    proto.graph.node.extend(_nodes(model.proto.graph.node, copies, renamed))
    typed = model.inferred.typed and _typed(model.inferred.typed, copies, renamed)
    return replace(model, proto=proto, inferred=Inferred(values, typed, model.inferred.notes))


def _typed(graph: GraphProto, copies: _Copies, renamed: _Renamed) -> GraphProto:
    """Return a graph with the copies in it and their types."""
    result = GraphProto()
    result.CopyFrom(graph)
    del result.node[:]
    result.node.extend(_nodes(graph.node, copies, renamed))
    known = {value.name: value for value in graph.value_info}
    for number, made in copies.items():
        value = known.get(graph.node[number].output[0])
        for copy in made if value is not None else ():
            info = result.value_info.add()
            info.CopyFrom(known[graph.node[number].output[0]])
            info.name = copy.output[0]
    return result


def _readers(index: GraphIndex, number: int, islands: Sequence[int]) -> Sequence[Sequence[int]]:
    """Return the nodes that need a DequantizeLinear of their own, those together that can share one."""
    output = index.nodes[number].output[0]
    users = index.consumers.get(output, ())
    direct = [user for user in users if output in index.nodes[user].input and user not in index.bodies]
    kept = output in index.outputs or len(direct) < len(users)
    together: dict[int, list[int]] = {}
    for user in direct:
        together.setdefault(islands[user], []).append(user)
    found = list(together.values())
    return found if kept else found[1:]


def _islands(index: GraphIndex) -> Sequence[int]:
    """Return for each node a number that it shares with those that can only be in one group with it.

    These give one another floating-point numbers without a DequantizeLinear or QuantizeLinear between
    them, so that a group has all of them inside or none.
    """
    parent = list(range(len(index.nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for number, node in enumerate(index.nodes):
        for name in index.reads[number]:
            maker = index.producer.get(name)
            if maker is None or maker in index.constant_nodes or not is_float(index, name):
                continue
            if not any(is_dequantize(n) or is_quantize(n) for n in (node, index.nodes[maker])):
                parent[root(number)] = root(maker)
    return [root(number) for number in range(len(parent))]


class _Names:
    """Names that nothing in a graph has."""

    def __init__(self, index: GraphIndex) -> None:
        self._taken = {
            name
            for inner in index.walk()
            for node in inner.nodes
            for name in (node.name, *node.output, *node.input)
        }
        self._taken.update(value.name for value in index.graph.input)
        self._taken.update(tensor.name for tensor in index.graph.initializer)

    def new(self, name: str) -> str:
        """Return a name that is not taken, and take it."""
        number = 1
        while f"{name}_for_{number}" in self._taken:
            number += 1
        self._taken.add(f"{name}_for_{number}")
        return f"{name}_for_{number}"


def _copy(node: NodeProto, names: _Names) -> NodeProto:
    result = NodeProto()
    result.CopyFrom(node)
    result.output[0] = names.new(node.output[0])
    if node.name:
        result.name = names.new(node.name)
    return result


def _nodes(nodes: Sequence[NodeProto], copies: _Copies, renamed: _Renamed) -> Iterator[NodeProto]:
    """Yield nodes with the copies behind their originals, and readers that read their own."""
    for number, node in enumerate(nodes):
        if number in renamed:
            changed = NodeProto()
            changed.CopyFrom(node)
            for position, name in enumerate(node.input):
                changed.input[position] = renamed[number].get(name, name)
            yield changed
        else:
            yield node
        yield from copies.get(number, ())
