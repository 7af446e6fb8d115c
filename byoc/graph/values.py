"""The values of small constants: what decides whether a pattern or a rule fits."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.graph.index import GraphIndex

_MOST_ELEMENTS = 1024
_MOST_NODES = 16
# What a Constant node may hold beside a tensor (ONNX's documentation of Constant).
_WRITTEN: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant_value(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    """Return the value of a constant of at most 1,024 elements, None where it is larger or not known.

    It may be stored, in a Constant node, or what a few operators make of these (ONNX's reference
    implementation is asked). An array that is returned must not be written to.
    """
    if tensor not in index.small_values:
        index.small_values[tensor] = _value(index, tensor)
    return index.small_values[tensor]


def _value(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    stored = index.stored.get(tensor)
    if stored is not None:
        return _read(stored)
    number = index.producer.get(tensor)
    if number is None:
        return constant_value(index.outer, tensor) if index.outer is not None else None
    if number not in index.constant_nodes:
        return None
    node = index.nodes[number]
    if node.op_type == "Constant" and not node.attribute[0].name.startswith("value_string"):
        return _written(node)
    return _computed(index, tensor)


def _written(node: NodeProto) -> NDArray[Any] | None:
    """Return what a Constant node holds, None for sparse values."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return _read(attribute.t)
        kind = _WRITTEN.get(attribute.name)
        if kind is not None:
            value: NDArray[Any] = np.array(helper.get_attribute_value(attribute), kind)
            return value if value.size <= _MOST_ELEMENTS else None
    return None


def _computed(index: GraphIndex, tensor: str) -> NDArray[Any] | None:
    known = index.types.get(tensor)
    if known is not None and (known.elements is None or known.elements > _MOST_ELEMENTS):
        return None
    nodes = [index.nodes[i] for i in index.constants_behind([tensor])]
    needed = [name for node in nodes for name in node.input if name in index.stored]
    if len(nodes) > _MOST_NODES or any(_read(index.stored[name]) is None for name in needed):
        return None
    graph = helper.make_graph(
        nodes,
        "constant",
        [],
        [onnx.ValueInfoProto(name=tensor)],
        [_named(index.stored[name], name) for name in dict.fromkeys(needed)],
    )
    model = helper.make_model(
        graph, opset_imports=index.proto.opset_import, ir_version=index.proto.ir_version
    )
    try:
        result: object = next(iter(ReferenceEvaluator(model).run(None, {})))
    except Exception:  # an operator without a reference implementation: the value is not known
        return None
    return result if isinstance(result, np.ndarray) and result.size <= _MOST_ELEMENTS else None


def _read(tensor: TensorProto) -> NDArray[Any] | None:
    elements = int(np.prod(tensor.dims, dtype=np.float64)) if tensor.dims else 1
    if elements > _MOST_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # packed and exotic types that numpy does not know
        return None


def _named(tensor: TensorProto, name: str) -> TensorProto:
    result = TensorProto()
    result.CopyFrom(tensor)
    result.name = name
    return result
