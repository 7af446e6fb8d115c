"""The effect of conversion nodes at a boundary, read from the nodes themselves.

Scales are read from QuantizeLinear and DequantizeLinear, layouts from Transpose and Reshape. The marks
of byoc's own nodes only say that byoc inserted them, and for what kind of conversion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto

from byoc.boundary.contracts import _axis_terms as axes
from byoc.model import (
    CAST,
    DTYPES,
    LAYOUT,
    Dim,
    GraphIndex,
    TensorType,
    find_constant_value,
    get_constant_value,
    get_input,
    get_purpose,
    get_stated_attributes,
    is_inserted,
    is_quantize,
    read_type,
)


@dataclass(frozen=True)
class Scales:
    """The quantization that a node of byoc's or the user's applies to a tensor.

    `axis` is the dimension that has a scale for each index, None if one scale holds for the tensor.
    """

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None
    is_own: bool


def scale_fields(scales: Scales | None) -> dict[str, Any]:
    """Return the fields of a contract that state a quantization, empty without one."""
    if scales is None:
        return {}
    return {"scale": scales.scale, "zero_point": scales.zero_point, "axis": scales.axis}


def find_type(types: Mapping[str, TypeProto], name: str) -> TensorType | None:
    """Return the type of a tensor by its name, or None if it is not known."""
    return read_type(types[name]) if name in types else None


def find_producer(index: GraphIndex, name: str) -> tuple[GraphIndex, NodeProto | None]:
    """Return the node that makes a tensor, or None, and the index of the graph that the node is in."""
    while name not in index.producers and index.outer is not None:
        index = index.outer
    number = index.producers.get(name)
    return index, None if number is None else index.nodes[number]


def read_scales(index: GraphIndex, node: NodeProto, folder: Path | None) -> Scales | None:
    """Return the quantization of a QuantizeLinear or DequantizeLinear, or None if it is not constant.

    `folder` is the directory of external data, which may hold the scales of many channels.
    """
    scale = find_constant_value(index, node.input[1], folder)
    if scale is None:
        return None
    attributes = get_stated_attributes(node)
    zero_name = get_input(node, 2)
    zero = (
        find_constant_value(index, zero_name, folder) if zero_name else np.zeros(scale.shape, np.uint8)
    )
    if zero is None:
        return None
    quantized = node.output[0] if is_quantize(node) else node.input[0]
    stated = DTYPES[attributes.get("output_dtype", TensorProto.UINT8)]
    dtype = index.get_dtype(zero_name or quantized) or stated
    axis = None
    if scale.ndim and scale.size > 1:
        axis = int(attributes.get("axis", 1))
        tensor = index.types.get(node.input[0]) or index.types.get(node.output[0])
        if axis < 0 and tensor is not None and tensor.shape is not None:
            axis += len(tensor.shape)
    return Scales(
        dtype,
        tuple(map(float, scale.ravel())),
        tuple(int(number) for number in zero.ravel()),
        axis,
        is_inserted(node),
    )


# A layout is made by the first two; the others make whole blocks, in a wider dtype where there is no Pad
# for their own, and cut them off again.
_LAYOUT_OPS = ("Transpose", "Reshape")
_ELEMENT_OPS = ("Cast", "Pad", "Slice", "Identity")

TensorTypes = Mapping[str, TensorType]


def is_conversion(node: NodeProto) -> bool:
    """Return whether byoc inserted a node to change the layout or float type of its first input."""
    if get_purpose(node) == LAYOUT:
        return node.op_type in (*_LAYOUT_OPS, *_ELEMENT_OPS)
    return get_purpose(node) == CAST and node.op_type == "Cast"


def includes_cast(steps: Sequence[NodeProto]) -> bool:
    """Return whether one of the conversions changes the float type."""
    return any(get_purpose(node) == CAST for node in steps)


def layout_after(
    index: GraphIndex,
    steps: Sequence[NodeProto],
    terms: axes.AxisTerms | None,
    known: TensorTypes,
) -> axes.AxisTerms | None:
    """Return the layout after some nodes from the one before, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for step in _axis_steps(index, steps, known):
        terms = axes.apply_step(terms, step) if terms is not None and step is not None else None
    return terms


def layout_before(
    index: GraphIndex,
    steps: Sequence[NodeProto],
    terms: axes.AxisTerms | None,
    known: TensorTypes,
) -> axes.AxisTerms | None:
    """Return the layout before some nodes from the one after, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for step in reversed(_axis_steps(index, steps, known)):
        terms = axes.revert_step(terms, step) if terms is not None and step is not None else None
    return terms


def find_shape(index: GraphIndex, name: str, known: TensorTypes) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor according to an index, completed from `known`."""
    found, stated_type = (each.get(name) for each in (index.types, known))
    shape, stated = (None if kind is None else kind.shape for kind in (found, stated_type))
    if shape is None or stated is None or len(shape) != len(stated):
        return stated if shape is None else shape
    pairs = zip(shape, stated, strict=True)
    return tuple(own_dim if isinstance(own_dim, int) else stated_dim for own_dim, stated_dim in pairs)


def find_rank(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes, *, before: bool
) -> int | None:
    """Return the rank before the first of some nodes, or after the last, or None if it is unknown."""
    ordered = steps if before else steps[::-1]
    node = next((node for node in ordered if node.op_type in _LAYOUT_OPS), None)
    if node is None:
        return None
    # Between the ends of all the nodes and those of this one, the rank is the same.
    names = (step.input[0] if before else step.output[0] for step in (ordered[0], node))
    shapes = (find_shape(index, name, known) for name in names)
    order = get_stated_attributes(node).get("perm")
    found = order or next((shape for shape in shapes if shape is not None), None)
    return None if found is None else len(found)


def _axis_steps(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes
) -> list[axes.AxisStep | None]:
    """Return the axis step of each node that makes a layout, None where it is not known."""
    return [_axis_step(index, node, known) for node in steps if node.op_type in _LAYOUT_OPS]


def _axis_step(index: GraphIndex, node: NodeProto, known: TensorTypes) -> axes.AxisStep | None:
    """Return the axis step of a Transpose or Reshape, or None if it is not known."""
    shape = find_shape(index, node.input[0], known)
    if node.op_type == "Transpose":
        order = get_stated_attributes(node).get("perm", reversed(range(len(shape or ()))))
        return axes.AxisStep(tuple(order))
    target_shape = get_constant_value(index, node.input[1])
    if target_shape is None or shape is None:
        return None
    behind = [int(dim) or (shape[i] if i < len(shape) else None) for i, dim in enumerate(target_shape)]
    return axes.AxisStep(None, shape, tuple(behind))
