"""QuantizeLinear and DequantizeLinear, and onnxruntime's own nodes of these names made ONNX's.

onnxruntime's quantizer writes nodes of its domain com.microsoft where the operator set of the model is
too old for 16 bits, and on request. ONNX's shape inference, its reference implementation and the
compilers of regions know only ONNX's operators. Inputs and attributes mean the same in both domains.
"""

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

from byoc.model._walk import copy_without, is_onnx, walk_graphs, walk_nodes

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
