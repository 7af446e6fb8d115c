"""What byoc's own nodes at a border do to a tensor, read from the nodes and not from their marks.

The marks say only that a node is byoc's and of which kind.
"""

from collections.abc import Sequence

from onnx import NodeProto

from byoc.boundary import axes
from byoc.graph.attributes import written
from byoc.graph.index import GraphIndex
from byoc.graph.marks import CAST, LAYOUT, mark_of
from byoc.graph.types import Dim, TensorType
from byoc.graph.values import constant_value

# A layout is made by the first two; the others make whole blocks and cut them off again.
_MOVING = ("Transpose", "Reshape")
_STAYING = ("Pad", "Slice", "Identity")


def is_conversion(node: NodeProto) -> bool:
    """Return whether a node is byoc's and changes the layout or the float type of its first input."""
    if mark_of(node) == LAYOUT:
        return node.op_type in (*_MOVING, *_STAYING)
    return mark_of(node) == CAST and node.op_type == "Cast"


def casts(steps: Sequence[NodeProto]) -> bool:
    """Return whether one of some conversions is of the float type."""
    return any(mark_of(node) == CAST for node in steps)


def done(index: GraphIndex, steps: Sequence[NodeProto], terms: axes.Terms | None) -> axes.Terms | None:
    """Return the layout behind some nodes, given the one before; None where it is none."""
    for node in steps:
        if terms is None or node.op_type not in _MOVING:
            continue
        step = _step(index, node)
        terms = axes.forward(terms, step) if step is not None else None
    return terms


def undone(index: GraphIndex, steps: Sequence[NodeProto], terms: axes.Terms | None) -> axes.Terms | None:
    """Return the layout before some nodes, given the one behind; None where it is none."""
    if terms is None or not steps:
        return terms
    shape = _shape(index, steps[0].input[0])
    rank = _rank_before(index, steps)
    groups: axes.Groups | None = None if rank is None else tuple((i,) for i in range(rank))
    for node in steps:
        if groups is None or node.op_type not in _MOVING:
            continue
        step = _step(index, node)
        groups = axes.gathered(groups, step) if step is not None else None
    if groups is None or rank is None:
        return None
    return axes.solved(groups, shape or (None,) * rank, terms)


def _rank_before(index: GraphIndex, steps: Sequence[NodeProto]) -> int | None:
    shape = _shape(index, steps[0].input[0])
    if shape is not None:
        return len(shape)
    order = next((written(node).get("perm") for node in steps if node.op_type in _MOVING), None)
    return None if order is None else len(order)


def _shape(index: GraphIndex, name: str) -> tuple[Dim, ...] | None:
    kind: TensorType | None = index.types.get(name)
    return None if kind is None else kind.shape


def _step(index: GraphIndex, node: NodeProto) -> axes.Step | None:
    """Return what a Transpose or Reshape does to the axes, None where that is not known."""
    shape = _shape(index, node.input[0])
    if node.op_type == "Transpose":
        order = written(node).get("perm", list(reversed(range(len(shape or ())))))
        before = shape or (None,) * len(order)
        if len(before) != len(order):
            return None
        return axes.Step(tuple(order), before, tuple(before[i] for i in order))
    asked = constant_value(index, node.input[1])
    if asked is None or shape is None:
        return None
    behind = [int(dim) or (shape[i] if i < len(shape) else None) for i, dim in enumerate(asked)]
    return axes.Step(None, shape, tuple(behind))
