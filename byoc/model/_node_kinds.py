"""Nodes apart from their tensors: kinds, attributes with defaults, metadata.

A large graph has few kinds. What follows from operator and attributes is worked out once for each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TensorProto,
    TypeProto,
    helper,
)

from byoc._dataclasses import dataclass
from byoc.model._tensor_data import TensorType, clear_shape
from byoc.model._walk import copy_without, is_onnx, list_bodies, walk_graphs, walk_nodes
from byoc.model.schemas import OperatorSchema, make_operator_name

# QuantizeLinear and DequantizeLinear, and onnxruntime's own nodes of these names made ONNX's.
#
# onnxruntime's quantizer writes nodes of its domain com.microsoft where the operator set of the
# model is too old for 16 bits, and on request. ONNX's shape inference, its reference implementation
# and the compilers of regions know only ONNX's operators. Inputs and attributes mean the same in
# both domains.

_CONTRIB = "com.microsoft"
_AXIS_OPSET = 13  # ONNX opset that brought scales by axis
_FLOAT16_OPSET = 19  # ONNX opset that brought scales in float16
_COMPLETE_OPSET = 21  # its operators can say all that those of com.microsoft can
_FIRST_OPSETS: dict[int, int] = {TensorProto.UINT8: 10, TensorProto.INT8: 10, TensorProto.INT32: 10}


def is_dequantize(node: NodeProto) -> bool:
    """Return whether a node is ONNX's DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and is_onnx(node)


def is_quantize(node: NodeProto) -> bool:
    """Return whether a node is ONNX's QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and is_onnx(node)


def is_qdq_node(node: NodeProto) -> bool:
    """Return whether a node is ONNX's QuantizeLinear or DequantizeLinear."""
    return is_quantize(node) or is_dequantize(node)


def normalize_qdq(
    proto: ModelProto, distinct: Iterable[NodeProto]
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model whose QDQ nodes of com.microsoft are ONNX's, and notes for the user.

    `distinct` has one node of each kind of the main graph.
    A node that ONNX's operator of the imported operator set cannot express stays as it is, and the note
    names the version that can. A model without such nodes is returned as it is.
    """
    inside = (node for function in proto.functions for node in walk_nodes(function.node))
    if not any(map(_is_contrib_qdq, (*distinct, *inside))):
        return proto, ()
    result = copy_without(proto)
    graphs = list(walk_graphs(result.graph))
    stored = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    nodes = [node for graph in graphs for node in graph.node]
    least = _normalize_nodes(nodes, result.opset_import, stored)
    for function in result.functions:
        inner = list(walk_nodes(function.node))
        least = max(least, _normalize_nodes(inner, function.opset_import, {}))
    if not any(node.domain == _CONTRIB for node in _walk_all_nodes(result)):
        kept = [entry for entry in result.opset_import if entry.domain != _CONTRIB]
        del result.opset_import[:]
        result.opset_import.extend(kept)
    if not least:
        return result, ()
    note = (
        f"QuantizeLinear and DequantizeLinear of {_CONTRIB} run on the host where the model's operator "
        f"set has none that do the same: convert the model to operator set {least}"
    )
    return result, (note,)


def _is_contrib_qdq(node: NodeProto) -> bool:
    return node.domain == _CONTRIB and node.op_type in ("QuantizeLinear", "DequantizeLinear")


def _walk_all_nodes(proto: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of all graphs, bodies and functions."""
    yield from walk_nodes(proto.graph.node)
    for function in proto.functions:
        yield from walk_nodes(function.node)


def _normalize_nodes(
    nodes: Iterable[NodeProto], imports: Iterable[OperatorSetIdProto], stored: Mapping[str, TensorProto]
) -> int:
    """Normalize nodes in place; return the operator set that the others need, 0 if none is left."""
    version = max((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), default=0)
    constants = {
        node.output[0]: attribute.t
        for node in nodes
        if node.op_type == "Constant" and is_onnx(node)
        for attribute in node.attribute
        if attribute.type == AttributeProto.TENSOR
    }
    missing = 0
    for node in filter(_is_contrib_qdq, nodes):
        least = _find_least_opset(node, {**stored, **constants})
        if least <= version:
            node.domain = ""
        else:
            missing = max(missing, least)
    return missing


def _find_least_opset(node: NodeProto, stored: Mapping[str, TensorProto]) -> int:
    """Return the first operator set whose operator can do what a node of com.microsoft does."""
    scale, zero_point = (stored.get(name) for name in (*node.input[1:], "", "")[:2])
    attributes = {attribute.name for attribute in node.attribute}
    if zero_point is None and not any(node.input[2:]):
        default = TensorProto(data_type=TensorProto.UINT8)
        zero_point = default if node.op_type == "QuantizeLinear" else stored.get(node.input[0])
    if scale is None or zero_point is None or "block_size" in attributes:
        return _COMPLETE_OPSET
    first = _FIRST_OPSETS.get(zero_point.data_type, _COMPLETE_OPSET)
    axis = _AXIS_OPSET if "axis" in attributes or any(dim != 1 for dim in scale.dims) else 0
    half = _FLOAT16_OPSET if scale.data_type == TensorProto.FLOAT16 else 0
    return max(first, axis, half)


# Attributes of nodes with their defaults, and the types of the inputs of bodies.

# The defaults of these depend on the rank, so schemas give them only in words.
_DEFAULT_ONES = ("strides", "dilations")
# The names of a convolution's weight, which is not always the second input (QLinearConv).
_WEIGHT_NAMES = ("W", "w")


def get_operator_name(node: NodeProto) -> str:
    """Return a node's operator as rule files and patterns spell it: `Conv`, `com.microsoft.Gelu`."""
    return make_operator_name(node.op_type, node.domain)


def get_stated_attributes(node: NodeProto) -> dict[str, Any]:
    """Return the stated attributes of a node; text as str, a float32 as its shortest decimal."""
    return {a.name: _to_plain_value(onnx.helper.get_attribute_value(a)) for a in node.attribute}


def get_effective_attributes(
    node: NodeProto, schema: OperatorSchema, types: Mapping[str, TensorType]
) -> dict[str, Any]:
    """Return the attributes of a node with all defaults.

    The defaults of `kernel_shape`, `strides`, `dilations` and `pads` of convolutions and pools follow
    ONNX's documentation: the extents of the weight, ones, and zeros.
    """
    values = {
        name: _to_plain_value(onnx.helper.get_attribute_value(attribute.default))
        for name, attribute in schema.attributes.items()
        if attribute.default is not None
    }
    values |= get_stated_attributes(node)
    missing = [name for name in schema.attributes if name not in values]
    if not missing:
        return values
    axes = _get_kernel_shape(node, schema, values, types)
    for name in missing:
        if axes is None:
            break
        if name == "kernel_shape":
            values[name] = list(axes)
        elif name in _DEFAULT_ONES:
            values[name] = [1] * len(axes)
        elif name == "pads" and values.get("auto_pad", "NOTSET") == "NOTSET":
            values[name] = [0] * (2 * len(axes))
    return values


def _get_kernel_shape(
    node: NodeProto,
    schema: OperatorSchema,
    values: Mapping[str, Any],
    types: Mapping[str, TensorType],
) -> tuple[int, ...] | None:
    if "kernel_shape" in values:
        return tuple(values["kernel_shape"])
    formals = zip(schema.inputs, node.input, strict=False)
    weight = next((types.get(name) for formal, name in formals if formal.name in _WEIGHT_NAMES), None)
    if weight is None or weight.shape is None:
        return None
    axes = weight.shape[2:]
    return (
        tuple(dim for dim in axes if isinstance(dim, int))
        if all(isinstance(dim, int) for dim in axes)
        else None
    )


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return float(str(np.float32(value)))  # the shortest decimal that is this float32
    return value


def infer_body_input_types(
    node: NodeProto, body: GraphProto, outer_types: Mapping[str, TypeProto]
) -> dict[str, TypeProto]:
    """Return the types of a body's inputs that follow from the inputs of its node.

    `outer_types` are those of the tensors around the node. A tensor that a Loop carries may change its
    shape from one iteration to the next, so only its dtype follows.
    """
    names = [value.name for value in body.input]
    if node.op_type == "Loop":
        kinds = [
            helper.make_tensor_type_proto(TensorProto.INT64, []),
            helper.make_tensor_type_proto(TensorProto.BOOL, []),
            *(clear_shape(outer_types.get(name)) for name in node.input[2:]),
        ]
    elif node.op_type == "Scan":
        attributes = get_stated_attributes(node)
        count = max(0, min(int(attributes.get("num_scan_inputs", 0)), len(node.input)))
        states = len(node.input) - count
        axes = attributes.get("scan_input_axes", [0] * count)
        kinds = [outer_types.get(name) for name in node.input[:states]]
        kinds += [
            _remove_axis(outer_types.get(name), axis)
            for name, axis in zip(node.input[states:], axes, strict=False)
        ]
    else:
        return {}
    return {name: kind for name, kind in zip(names, kinds, strict=False) if kind is not None}


def _remove_axis(kind: TypeProto | None, axis: int) -> TypeProto | None:
    """Return a tensor type without one axis, None for any other type."""
    if kind is None or not kind.HasField("tensor_type"):
        return None
    result = deepcopy(kind)
    rank = len(result.tensor_type.shape.dim)
    if -rank <= axis < rank:
        del result.tensor_type.shape.dim[axis]
    return result


# Metadata of nodes, which tells those that byoc inserts at boundaries from the user's own.

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

PART_KEY = "byoc.part_of"
"""The metadata key for the name, with its graph path, of the node that a node is a part of."""

FORM_CHANGE_KEY = "byoc.form_change"
"""The metadata key for the name of the form that an inserted node brings a tensor into or out of."""

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
