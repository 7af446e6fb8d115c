"""Attributes of nodes with their defaults, and the types of the inputs of bodies."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper

from byoc.model._tensor_types import TensorType, clear_shape
from byoc.model.schemas import OperatorSchema, make_operator_name

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
