"""The effect of byoc's own conversion nodes at a boundary, read from the nodes themselves.

Their marks only say that byoc inserted a node, and for what kind of conversion.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from onnx import NodeProto

from byoc.boundary import axes
from byoc.graph.attributes import written
from byoc.graph.index import GraphIndex
from byoc.graph.marks import CAST, LAYOUT, mark_of
from byoc.graph.types import Dim, TensorType
from byoc.graph.values import constant_value

# A layout is made by the first two; the others make whole blocks, in a wider dtype where there is no Pad
# for their own, and cut them off again.
_MOVING = ("Transpose", "Reshape")
_STAYING = ("Cast", "Pad", "Slice", "Identity")

Types = Mapping[str, TensorType]
_NONE: Types = MappingProxyType({})


def is_conversion(node: NodeProto) -> bool:
    """Return whether byoc inserted a node to change the layout or float type of its first input."""
    if mark_of(node) == LAYOUT:
        return node.op_type in (*_MOVING, *_STAYING)
    return mark_of(node) == CAST and node.op_type == "Cast"


def casts(steps: Sequence[NodeProto]) -> bool:
    """Return whether one of the conversions changes the float type."""
    return any(mark_of(node) == CAST for node in steps)


def done(
    index: GraphIndex, steps: Sequence[NodeProto], terms: axes.Terms | None, known: Types = _NONE
) -> axes.Terms | None:
    """Return the layout after some nodes from the one before, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for node in steps:
        if terms is None or node.op_type not in _MOVING:
            continue
        step = _step(index, node, known)
        terms = axes.forward(terms, step) if step is not None else None
    return terms


def undone(
    index: GraphIndex, steps: Sequence[NodeProto], terms: axes.Terms | None, known: Types = _NONE
) -> axes.Terms | None:
    """Return the layout before some nodes from the one after, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    if terms is None or not steps:
        return terms
    shape = known_shape(index, steps[0].input[0], known)
    rank = len(shape) if shape is not None else rank_before(index, steps, known)
    groups: axes.Groups | None = None if rank is None else tuple((i,) for i in range(rank))
    moves = [_step(index, node, known) for node in steps if node.op_type in _MOVING]
    for step in moves:
        groups = axes.gathered(groups, step) if groups is not None and step is not None else None
    if groups is not None and rank is not None:
        return axes.solved(groups, shape or (None,) * rank, terms)
    for step in reversed(moves):  # they may lead into a layout as well
        terms = axes.backward(terms, step) if terms is not None and step is not None else None
    return terms


def known_shape(index: GraphIndex, name: str, known: Types = _NONE) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor according to an index, completed from `known`."""
    found, stated_type = (each.get(name) for each in (index.types, known))
    shape, stated = (None if kind is None else kind.shape for kind in (found, stated_type))
    if shape is None or stated is None or len(shape) != len(stated):
        return stated if shape is None else shape
    pairs = zip(shape, stated, strict=True)
    return tuple(own_dim if isinstance(own_dim, int) else stated_dim for own_dim, stated_dim in pairs)


def rank_before(index: GraphIndex, steps: Sequence[NodeProto], known: Types = _NONE) -> int | None:
    """Return the rank of the input of the first of some nodes, or None if it is unknown."""
    node = next((node for node in steps if node.op_type in _MOVING), None)
    return None if node is None else _rank(index, node, (steps[0].input[0], node.input[0]), known)


def rank_behind(index: GraphIndex, steps: Sequence[NodeProto], known: Types = _NONE) -> int | None:
    """Return the rank of the output of the last of some nodes, or None if it is unknown."""
    node = next((node for node in reversed(steps) if node.op_type in _MOVING), None)
    return None if node is None else _rank(index, node, (steps[-1].output[0], node.output[0]), known)


def _rank(index: GraphIndex, node: NodeProto, names: Sequence[str], known: Types) -> int | None:
    """Return the rank of tensors that have the same rank as those of a layout step."""
    order = written(node).get("perm")
    shapes = (known_shape(index, name, known) for name in names)
    found = order or next((shape for shape in shapes if shape is not None), None)
    return None if found is None else len(found)


def _step(index: GraphIndex, node: NodeProto, known: Types) -> axes.Step | None:
    """Return the axis step of a Transpose or Reshape, or None if it is not known."""
    shape = known_shape(index, node.input[0], known)
    if node.op_type == "Transpose":
        order = written(node).get("perm", list(reversed(range(len(shape or ())))))
        before = shape or (None,) * len(order)
        if len(before) != len(order):
            return None
        return axes.Step(tuple(order), before, tuple(before[i] for i in order))
    target_shape = constant_value(index, node.input[1])
    if target_shape is None or shape is None:
        return None
    behind = [int(dim) or (shape[i] if i < len(shape) else None) for i, dim in enumerate(target_shape)]
    return axes.Step(None, shape, tuple(behind))
