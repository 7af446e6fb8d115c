"""Metadata of the nodes that byoc inserts at boundaries, which tells them from the user's own."""

from onnx import NodeProto

BOUNDARY = "byoc.boundary"
"""The metadata key for the purpose of an inserted node: QUANTIZE, LAYOUT or CAST."""

QUANTIZE = "quantize"
LAYOUT = "layout"
CAST = "cast"

LAYOUT_NAME = "byoc.layout"
"""The metadata key for the layout, such as `NHWC`, that a node was inserted or moved for."""

FLOAT = "byoc.float"
"""The metadata key for the user's name of a weight, on the DequantizeLinear inserted for it."""

TENSOR = "byoc.tensor"
"""The metadata key for the user's name of an activation, on the Q and DQ nodes that byoc inserted."""


def mark(node: NodeProto, what: str) -> NodeProto:
    """Record the purpose of an inserted node in its metadata, and return the node."""
    note(node, BOUNDARY, what)
    return node


def mark_of(node: NodeProto) -> str:
    """Return the purpose of an inserted node, empty for a node of the user's."""
    return noted(node, BOUNDARY)


def is_ours(node: NodeProto) -> bool:
    """Return whether byoc inserted a node."""
    return bool(mark_of(node))


def note(node: NodeProto, key: str, value: str) -> None:
    """Set an entry of a node's metadata."""
    for entry in node.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    node.metadata_props.add(key=key, value=value)


def noted(node: NodeProto, key: str) -> str:
    """Return an entry of a node's metadata, empty if there is none."""
    return next((entry.value for entry in node.metadata_props if entry.key == key), "")
