"""Marks on the nodes that byoc puts at borders, so that later stages know them from the user's own."""

from onnx import NodeProto

BOUNDARY = "byoc.boundary"
"""The metadata key; its value is what the node is for: QUANTIZE, LAYOUT or CAST."""

QUANTIZE = "quantize"
LAYOUT = "layout"
CAST = "cast"

LAYOUT_NAME = "byoc.layout"
"""On a node that was put in or moved for a layout: which one it works in, such as `NHWC`."""

FLOAT = "byoc.float"
"""On a DequantizeLinear of ours that makes a weight: the name of the weight as the user has it."""

TENSOR = "byoc.tensor"
"""On our QuantizeLinear and DequantizeLinear of an activation: its name as the user has it."""


def mark(node: NodeProto, what: str) -> NodeProto:
    """Write on a node that byoc put it in, and what for; the same node is returned."""
    note(node, BOUNDARY, what)
    return node


def mark_of(node: NodeProto) -> str:
    """Return what byoc put a node in for, empty for a node of the user's."""
    return noted(node, BOUNDARY)


def is_ours(node: NodeProto) -> bool:
    """Return whether byoc put a node in."""
    return bool(mark_of(node))


def note(node: NodeProto, key: str, value: str) -> None:
    """Write an entry of a node's metadata, in the place of an earlier one of that key."""
    for entry in node.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    node.metadata_props.add(key=key, value=value)


def noted(node: NodeProto, key: str) -> str:
    """Return an entry of a node's metadata, empty when there is none."""
    return next((entry.value for entry in node.metadata_props if entry.key == key), "")
