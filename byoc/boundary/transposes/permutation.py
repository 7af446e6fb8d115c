"""Axis orders as in ONNX's Transpose: axis `i` of the output is axis `order[i]` of the input."""

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeVar

from onnx import NodeProto, TypeProto, helper

from byoc.graph.attributes import get_stated_attributes
from byoc.graph.walk import is_onnx

AxisOrder = tuple[int, ...]
T = TypeVar("T")


def identity_order(rank: int) -> AxisOrder:
    """Return the order that changes nothing."""
    return tuple(range(rank))


def invert_order(order: AxisOrder) -> AxisOrder:
    """Return the order that reverts another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def compose_orders(first: AxisOrder, second: AxisOrder) -> AxisOrder:
    """Return the order that is equivalent to two orders in succession."""
    return tuple(first[axis] for axis in second)


def permute(order: AxisOrder, items: Sequence[T]) -> list[T]:
    """Return items given per axis (extents, pads) in the axis order of a transposed tensor."""
    return [items[axis] for axis in order]


def permute_axis(order: AxisOrder, axis: int) -> int:
    """Return the position of an axis, which may count from the end, in a transposed tensor."""
    return order.index(axis % len(order))


def transpose_type(kind: TypeProto | None, order: AxisOrder) -> TypeProto | None:
    """Return the type of a transposed tensor, or None if the rank is not known."""
    if kind is None or len(kind.tensor_type.shape.dim) != len(order):
        return None
    result = deepcopy(kind)
    for i, axis in enumerate(order):
        result.tensor_type.shape.dim[i].CopyFrom(kind.tensor_type.shape.dim[axis])
    return result


def read_order(node: NodeProto, rank: int | None) -> AxisOrder | None:
    """Return the axis order of a Transpose, or None for another node or an unknown rank."""
    if node.op_type != "Transpose" or not is_onnx(node):
        return None
    perm = get_stated_attributes(node).get("perm")
    if perm is not None:
        return tuple(perm)
    return tuple(reversed(range(rank))) if rank is not None else None


def set_attribute_value(node: NodeProto, name: str, value: int | Sequence[int]) -> None:
    """Set an attribute of a node, replacing one of the same name."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
