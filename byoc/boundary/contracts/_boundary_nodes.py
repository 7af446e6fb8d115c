"""Scale and zero point of QuantizeLinear and DequantizeLinear nodes.

The effect of byoc's own conversion nodes at a boundary, read from the nodes themselves.

Their marks only say that byoc inserted a node, and for what kind of conversion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from onnx import NodeProto, TensorProto

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
        rank = _tensor_rank(index, node)
        axis = int(attributes.get("axis", 1))
        axis = axis + rank if axis < 0 and rank is not None else axis
    return Scales(
        dtype,
        tuple(map(float, scale.ravel())),
        tuple(int(number) for number in zero.ravel()),
        axis,
        is_inserted(node),
    )


def _tensor_rank(index: GraphIndex, node: NodeProto) -> int | None:
    ranks = map(index.get_rank, (node.input[0], node.output[0]))
    return next((rank for rank in ranks if rank is not None), None)


# A layout is made by the first two; the others make whole blocks, in a wider dtype where there is no Pad
# for their own, and cut them off again.
_LAYOUT_OPS = ("Transpose", "Reshape")
_ELEMENT_OPS = ("Cast", "Pad", "Slice", "Identity")

TensorTypes = Mapping[str, TensorType]
_NO_TYPES: TensorTypes = MappingProxyType({})


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
    known: TensorTypes = _NO_TYPES,
) -> axes.AxisTerms | None:
    """Return the layout after some nodes from the one before, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for node in steps:
        if terms is None or node.op_type not in _LAYOUT_OPS:
            continue
        step = _axis_step(index, node, known)
        terms = axes.apply_step(terms, step) if step is not None else None
    return terms


def layout_before(
    index: GraphIndex,
    steps: Sequence[NodeProto],
    terms: axes.AxisTerms | None,
    known: TensorTypes = _NO_TYPES,
) -> axes.AxisTerms | None:
    """Return the layout before some nodes from the one after, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    if terms is None or not steps:
        return terms
    shape = find_shape(index, steps[0].input[0], known)
    rank = len(shape) if shape is not None else find_rank_before(index, steps, known)
    groups: axes.AxisGroups | None = None if rank is None else tuple((i,) for i in range(rank))
    moves = [_axis_step(index, node, known) for node in steps if node.op_type in _LAYOUT_OPS]
    for step in moves:
        groups = axes.gather_groups(groups, step) if groups is not None and step is not None else None
    if groups is not None and rank is not None:
        return axes.solve_terms(groups, shape or (None,) * rank, terms)
    for step in reversed(moves):  # they may lead into a layout as well
        terms = axes.revert_step(terms, step) if terms is not None and step is not None else None
    return terms


def find_shape(index: GraphIndex, name: str, known: TensorTypes = _NO_TYPES) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor according to an index, completed from `known`."""
    found, stated_type = (each.get(name) for each in (index.types, known))
    shape, stated = (None if kind is None else kind.shape for kind in (found, stated_type))
    if shape is None or stated is None or len(shape) != len(stated):
        return stated if shape is None else shape
    pairs = zip(shape, stated, strict=True)
    return tuple(own_dim if isinstance(own_dim, int) else stated_dim for own_dim, stated_dim in pairs)


def find_rank_before(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes = _NO_TYPES
) -> int | None:
    """Return the rank of the input of the first of some nodes, or None if it is unknown."""
    node = next((node for node in steps if node.op_type in _LAYOUT_OPS), None)
    return None if node is None else _step_rank(index, node, (steps[0].input[0], node.input[0]), known)


def find_rank_after(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes = _NO_TYPES
) -> int | None:
    """Return the rank of the output of the last of some nodes, or None if it is unknown."""
    node = next((node for node in reversed(steps) if node.op_type in _LAYOUT_OPS), None)
    return (
        None if node is None else _step_rank(index, node, (steps[-1].output[0], node.output[0]), known)
    )


def _step_rank(
    index: GraphIndex, node: NodeProto, names: Sequence[str], known: TensorTypes
) -> int | None:
    """Return the rank of tensors that have the same rank as those of a layout step."""
    order = get_stated_attributes(node).get("perm")
    shapes = (find_shape(index, name, known) for name in names)
    found = order or next((shape for shape in shapes if shape is not None), None)
    return None if found is None else len(found)


def _axis_step(index: GraphIndex, node: NodeProto, known: TensorTypes) -> axes.AxisStep | None:
    """Return the axis step of a Transpose or Reshape, or None if it is not known."""
    shape = find_shape(index, node.input[0], known)
    if node.op_type == "Transpose":
        order = get_stated_attributes(node).get("perm", list(reversed(range(len(shape or ())))))
        before = shape or (None,) * len(order)
        if len(before) != len(order):
            return None
        return axes.AxisStep(tuple(order), before, tuple(before[i] for i in order))
    target_shape = get_constant_value(index, node.input[1])
    if target_shape is None or shape is None:
        return None
    behind = [int(dim) or (shape[i] if i < len(shape) else None) for i, dim in enumerate(target_shape)]
    return axes.AxisStep(None, shape, tuple(behind))
