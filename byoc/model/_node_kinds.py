"""Kinds of nodes: what nodes share that differ in their tensors alone.

A large graph has few kinds. What follows from operator and attributes is worked out once for each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx import NodeProto

from byoc.model._node_attributes import get_operator_name
from byoc.model._walk import is_onnx, list_bodies

_MAX_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class NodeKind:
    """An operator with attributes; equal kinds of a graph are one object.

    `operator` is the operator with its domain, if that is not ONNX's; `attributes` are serialized, and
    `size` is the number of their bytes. `attributes` is empty for a node of more than a MiB.
    """

    operator: str
    op_type: str
    domain: str
    is_onnx: bool
    has_bodies: bool
    attributes: tuple[bytes, ...]
    size: int

    @property
    def is_compared(self) -> bool:
        """Whether equal nodes share it; a node of more than a MiB has a kind of its own."""
        return bool(self.attributes) or not self.size

    @property
    def is_qdq(self) -> bool:
        """Whether it is ONNX's QuantizeLinear or DequantizeLinear."""
        return self.op_type in ("QuantizeLinear", "DequantizeLinear") and self.is_onnx


KnownKinds = dict[tuple[object, ...], NodeKind]
"""Kinds that were found before, by operator and attributes."""


def list_node_kinds(nodes: Iterable[NodeProto], known: KnownKinds | None = None) -> list[NodeKind]:
    """Return the kind of each node; a node of more than a MiB has one of its own.

    `known` has the kinds of other graphs, which equal nodes share, and takes the new ones.
    """
    found = {} if known is None else known
    kinds = []
    for node in nodes:
        listed = node.attribute
        if not listed:
            key: tuple[object, ...] = node.op_type, node.domain
        elif _is_compared(node):
            key = node.op_type, node.domain, *[each.SerializeToString() for each in listed]
        else:
            key = (len(found),)
        kind = found.get(key)
        if kind is None:
            kind = found[key] = _describe_kind(node)
        kinds.append(kind)
    return kinds


@dataclass(frozen=True, eq=False)
class NodeRecords:
    """The kinds and tensor names of a graph's nodes, in node order.

    They are read once for all who look at the graph or at a copy of it. The name of an input or output
    that is left out is empty.
    """

    kinds: Sequence[NodeKind]
    inputs: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]

    @classmethod
    def read(cls, nodes: Sequence[NodeProto], known: KnownKinds | None = None) -> "NodeRecords":
        """Read nodes; `known` is as in `list_node_kinds`."""
        inputs = [tuple(node.input) for node in nodes]
        return cls(list_node_kinds(nodes, known), inputs, [tuple(node.output) for node in nodes])

    @cached_property
    def has_bodies(self) -> bool:
        """Whether a node has bodies."""
        return any(kind.has_bodies for kind in set(self.kinds))

    def extend_with(self, nodes: Sequence[NodeProto]) -> "NodeRecords":
        """Return the records of these nodes and of more."""
        compared = (kind for kind in set(self.kinds) if kind.is_compared)
        known: KnownKinds = {(kind.op_type, kind.domain, *kind.attributes): kind for kind in compared}
        new = NodeRecords.read(nodes, known)
        return NodeRecords(
            [*self.kinds, *new.kinds], [*self.inputs, *new.inputs], [*self.outputs, *new.outputs]
        )

    def select(self, numbers: Sequence[int]) -> "NodeRecords":
        """Return the records of some of the nodes, in the order of the numbers."""
        kinds, inputs, outputs = self.kinds, self.inputs, self.outputs
        return NodeRecords(
            [kinds[i] for i in numbers], [inputs[i] for i in numbers], [outputs[i] for i in numbers]
        )

    def list_distinct(self, nodes: Sequence[NodeProto]) -> list[NodeProto]:
        """Return one node of each kind and number of inputs, bodies included.

        `nodes` are those that were read.
        """
        # The last one of a kind, since `list_distinct_nodes` goes through nodes from the end.
        last: dict[object, int] = {}
        for number, key in enumerate(zip(self.kinds, map(len, self.inputs), strict=True)):
            last[number if key[0].has_bodies else key] = number
        return list_distinct_nodes(nodes[number] for number in sorted(last.values()))


def list_distinct_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return one node of each kind and number of inputs, in bodies, too, ordered as by `walk_nodes`."""
    found: dict[tuple[object, ...], NodeProto] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key: tuple[object, ...] = node.op_type, node.domain, len(node.input)
        listed = node.attribute
        if listed:
            bodies = list_bodies(node)
            if bodies or not _is_compared(node):
                key = (*key, len(found))
            else:
                key = (*key, *[each.SerializeToString() for each in listed])
            for body in bodies:
                pending.extend(body.node)
        found.setdefault(key, node)
    return list(found.values())


def _is_compared(node: NodeProto) -> bool:
    """Return whether a node is small enough to compare its attributes with those of others."""
    return node.ByteSize() <= _MAX_COMPARED_BYTES


def _describe_kind(node: NodeProto) -> NodeKind:
    return NodeKind(
        operator=get_operator_name(node),
        op_type=node.op_type,
        domain=node.domain,
        is_onnx=is_onnx(node),
        has_bodies=bool(list_bodies(node)),
        attributes=tuple(each.SerializeToString() for each in node.attribute)
        if _is_compared(node)
        else (),
        size=sum(each.ByteSize() for each in node.attribute),
    )
