"""Axis orders as in ONNX's Transpose: axis `i` of the output is axis `order[i]` of the input."""

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeVar

from onnx import NodeProto, TypeProto, helper

from byoc.graph.attributes import written
from byoc.graph.walk import is_onnx

Order = tuple[int, ...]
T = TypeVar("T")


def identity(rank: int) -> Order:
    """Return the order that changes nothing."""
    return tuple(range(rank))


def inverse(order: Order) -> Order:
    """Return the order that reverts another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def then(first: Order, second: Order) -> Order:
    """Return the order that is equivalent to two orders in succession."""
    return tuple(first[axis] for axis in second)


def moved(order: Order, items: Sequence[T]) -> list[T]:
    """Return items given per axis (extents, pads) in the axis order of a transposed tensor."""
    return [items[axis] for axis in order]


def axis_after(order: Order, axis: int) -> int:
    """Return the position of an axis, which may count from the end, in a transposed tensor."""
    return order.index(axis % len(order))


def transposed_type(kind: TypeProto | None, order: Order) -> TypeProto | None:
    """Return the type of a transposed tensor, or None if the rank is not known."""
    if kind is None or len(kind.tensor_type.shape.dim) != len(order):
        return None
    result = deepcopy(kind)
    for i, axis in enumerate(order):
        result.tensor_type.shape.dim[i].CopyFrom(kind.tensor_type.shape.dim[axis])
    return result


def order_of(node: NodeProto, rank: int | None) -> Order | None:
    """Return the axis order of a Transpose, or None for another node or an unknown rank."""
    if node.op_type != "Transpose" or not is_onnx(node):
        return None
    perm = written(node).get("perm")
    if perm is not None:
        return tuple(perm)
    return tuple(reversed(range(rank))) if rank is not None else None


def set_attribute(node: NodeProto, name: str, value: int | Sequence[int]) -> None:
    """Set an attribute of a node, replacing one of the same name."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
