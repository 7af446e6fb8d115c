"""Metadata of nodes, which tells those that byoc inserts at boundaries from the user's own."""

from collections.abc import Mapping, Sequence

from onnx import FunctionProto, GraphProto, NodeProto, StringStringEntryProto

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

TARGET_KEY = "byoc.target"
"""The metadata key for the name of a region's target, on the region's call."""


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


LabelledNode = tuple[NodeProto, Mapping[str, str]]
"""A node, and the entries to add to the metadata of its copy, which has none of these keys yet."""


def copy_nodes(scope: GraphProto | FunctionProto, nodes: Sequence[LabelledNode]) -> None:
    """Set the nodes of a graph or function to copies of some, with more metadata."""
    del scope.node[:]
    scope.node.extend([node for node, _ in nodes])
    labels: dict[int, NodeProto] = {}  # many nodes have one mapping
    for copied, (_, metadata) in zip(scope.node, nodes, strict=True):
        if metadata:
            label = labels.get(id(metadata))
            if label is None:
                label = labels[id(metadata)] = NodeProto(metadata_props=_make_entries(metadata))
            copied.MergeFrom(label)


def add_metadata(proto: NodeProto | FunctionProto, metadata: Mapping[str, str]) -> None:
    """Add entries to the metadata of a node or function, which has none of these keys yet."""
    proto.metadata_props.extend(_make_entries(metadata))


def _make_entries(metadata: Mapping[str, str]) -> list[StringStringEntryProto]:
    return [StringStringEntryProto(key=key, value=value) for key, value in metadata.items()]
