"""Metadata of nodes, which tells those that byoc inserts at boundaries from the user's own."""

from collections.abc import Mapping
from functools import lru_cache

from onnx import FunctionProto, NodeProto, StringStringEntryProto

PURPOSE_KEY = "byoc.boundary"
"""The metadata key for the purpose of an inserted node: QUANTIZE, LAYOUT or CAST."""

QUANTIZE = "quantize"
LAYOUT = "layout"
CAST = "cast"

LAYOUT_KEY = "byoc.layout"
"""The metadata key for the layout, such as `NHWC`, that a node was inserted or moved for."""

WEIGHT_KEY = "byoc.float"
"""The metadata key for the user's name of a weight, on the DequantizeLinear inserted for it."""

TENSOR_KEY = "byoc.tensor"
"""The metadata key for the user's name of an activation, on the Q and DQ nodes that byoc inserted."""


def mark_inserted(node: NodeProto, purpose: str) -> NodeProto:
    """Record the purpose of an inserted node in its metadata, and return the node."""
    set_metadata(node, PURPOSE_KEY, purpose)
    return node


def get_purpose(node: NodeProto) -> str:
    """Return the purpose of an inserted node, empty for a node of the user's."""
    return get_metadata(node, PURPOSE_KEY)


def is_inserted(node: NodeProto) -> bool:
    """Return whether byoc inserted a node."""
    return bool(get_purpose(node))


def set_metadata(node: NodeProto, key: str, value: str) -> None:
    """Set an entry of a node's metadata."""
    for entry in node.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    node.metadata_props.add(key=key, value=value)


def get_metadata(node: NodeProto, key: str) -> str:
    """Return an entry of a node's metadata, empty if there is none."""
    for entry in node.metadata_props:
        if entry.key == key:
            return entry.value
    return ""


def copy_with_metadata(node: NodeProto, metadata: Mapping[str, str]) -> NodeProto:
    """Return a copy of a node with more metadata; the node itself where there is none."""
    if not metadata:
        return node
    result = NodeProto()
    result.CopyFrom(node)
    add_metadata(result, metadata)
    return result


def add_metadata(proto: NodeProto | FunctionProto, metadata: Mapping[str, str]) -> None:
    """Add entries to the metadata of a node or function, which has none of these keys yet."""
    proto.metadata_props.extend(_make_entries(*metadata.items()))


@lru_cache(4096)
def _make_entries(*entries: tuple[str, str]) -> list[StringStringEntryProto]:
    return [StringStringEntryProto(key=key, value=value) for key, value in entries]
