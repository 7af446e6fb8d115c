"""The types that Loop and Scan give to the inputs of their bodies."""

from collections.abc import Mapping
from copy import deepcopy

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper

from byoc.graph.attributes import get_stated_attributes
from byoc.graph.types import clear_shape


def infer_body_input_types(
    node: NodeProto, body: GraphProto, outer_types: Mapping[str, TypeProto]
) -> dict[str, TypeProto]:
    """Return the types of a body's inputs that follow from the inputs of its node.

    `around` are the types of the tensors around the node. A tensor that a Loop carries may change its
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
            _remove_axis(outer_types.get(name), axis) for name, axis in zip(node.input[states:], axes, strict=False)
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
