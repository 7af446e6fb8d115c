"""Kinds of nodes: what nodes share that differ in their tensors alone.

A large graph has few kinds. What follows from operator and attributes is worked out once for each.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import NodeProto

from byoc.model._node_attributes import get_operator_name
from byoc.model._walk import is_onnx, list_bodies

_MAX_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class NodeKind:
    """An operator with attributes; equal kinds of a graph are one object.

    `operator` is the operator with its domain, if that is not ONNX's; `attributes` are serialized, and
    `size` is the number of their bytes.
    """

    operator: str
    op_type: str
    domain: str
    is_onnx: bool
    has_bodies: bool
    attributes: tuple[bytes, ...]
    size: int

    @property
    def is_qdq(self) -> bool:
        """Whether it is ONNX's QuantizeLinear or DequantizeLinear."""
        return self.op_type in ("QuantizeLinear", "DequantizeLinear") and self.is_onnx


KnownKinds = dict[tuple[object, ...], NodeKind]
"""Kinds that were found before, by operator and attributes."""


def list_node_kinds(nodes: Iterable[NodeProto], known: KnownKinds | None = None) -> list[NodeKind]:
    """Return the kind of each node; a node with more than a MiB of attributes has one of its own.

    `known` has the kinds of other graphs, which equal nodes share, and takes the new ones.
    """
    found = {} if known is None else known
    kinds = []
    for node in nodes:
        listed = node.attribute
        if not listed:
            key: tuple[object, ...] = node.op_type, node.domain
        elif node.ByteSize() > _MAX_COMPARED_BYTES:
            key = (len(found),)
        else:
            key = node.op_type, node.domain, *[each.SerializeToString() for each in listed]
        kind = found.get(key)
        if kind is None:
            kind = found[key] = _describe_kind(node)
        kinds.append(kind)
    return kinds


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
            if bodies or node.ByteSize() > _MAX_COMPARED_BYTES:
                key = (*key, len(pending), len(found))
            else:
                key = (*key, *[each.SerializeToString() for each in listed])
            for body in bodies:
                pending.extend(body.node)
        found.setdefault(key, node)
    return list(found.values())


def _describe_kind(node: NodeProto) -> NodeKind:
    size = sum(each.ByteSize() for each in node.attribute)
    return NodeKind(
        operator=get_operator_name(node),
        op_type=node.op_type,
        domain=node.domain,
        is_onnx=is_onnx(node),
        has_bodies=bool(list_bodies(node)),
        attributes=tuple(each.SerializeToString() for each in node.attribute)
        if size <= _MAX_COMPARED_BYTES
        else (),
        size=size,
    )
