"""Orders of axes as ONNX's Transpose has them: axis `i` of the output is the input's `order[i]`."""

from collections.abc import Sequence
from typing import TypeVar

from onnx import NodeProto, TypeProto, helper

from byoc.graph.attributes import written
from byoc.graph.walk import is_onnx

Order = tuple[int, ...]
T = TypeVar("T")


def identity(rank: int) -> Order:
    """Return the order that leaves everything where it is."""
    return tuple(range(rank))


def inverse(order: Order) -> Order:
    """Return the order that undoes one."""
    return tuple(order.index(axis) for axis in range(len(order)))


def then(first: Order, second: Order) -> Order:
    """Return the one order that does what two do one after the other."""
    return tuple(first[axis] for axis in second)


def moved(order: Order, items: Sequence[T]) -> list[T]:
    """Return what is said of each axis (extents, pads) in the order of a transposed tensor's axes."""
    return [items[axis] for axis in order]


def axis_after(order: Order, axis: int) -> int:
    """Return where an axis, which may count from the end, stands in a transposed tensor."""
    return order.index(axis % len(order))


def transposed_type(kind: TypeProto | None, order: Order) -> TypeProto | None:
    """Return the type of a tensor that is transposed; None where the rank is not known."""
    if kind is None or len(kind.tensor_type.shape.dim) != len(order):
        return None
    result = TypeProto()
    result.CopyFrom(kind)
    for i, axis in enumerate(order):
        result.tensor_type.shape.dim[i].CopyFrom(kind.tensor_type.shape.dim[axis])
    return result


def order_of(node: NodeProto, rank: int | None) -> Order | None:
    """Return what a Transpose does to its axes, None for any other node or where it does not say."""
    if node.op_type != "Transpose" or not is_onnx(node):
        return None
    perm = written(node).get("perm")
    if perm is not None:
        return tuple(perm)
    return tuple(reversed(range(rank))) if rank is not None else None


def set_attribute(node: NodeProto, name: str, value: int | Sequence[int]) -> None:
    """Write an attribute on a node, in the place of one of that name."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
