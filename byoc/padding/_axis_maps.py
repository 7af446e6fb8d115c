"""Maps of axes from outputs to inputs, for nodes that move elements without changing them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from byoc.model import Dim, multiply_dims
from byoc.padding._padded_graph import NotAlignedError, PaddedGraph, PaddedNode, Shape


@dataclass(frozen=True)
class AxisGroup:
    """Neighbouring axes of an input that become neighbouring axes of an output, in the same order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def group_axes(graph: PaddedGraph, before: Shape, after: Shape) -> list[AxisGroup]:
    """Return the smallest groups of axes with the same number of elements, for a Reshape.

    Padded axes that are not alone in theirs have to come first on both sides, so that what the
    unpadded run has is the beginning of the group. Axes of extent 1 are left out. Raises
    NotAlignedError where that is not so, or the shapes cannot be brought together.
    """
    groups: list[AxisGroup] = []
    pairs = [[(axis, dim) for axis, dim in enumerate(shape) if dim != 1] for shape in (before, after)]
    left, right = (iter(each) for each in pairs)
    while True:
        taken = _take_group(left, right)
        if taken is None:
            return groups
        for part in taken:
            for position, (_, dim) in enumerate(part):
                if graph.is_padded(dim) and position:
                    raise NotAlignedError(f"it joins an axis of {dim} to one before it")
        padded = [any(graph.is_padded(dim) for _, dim in part) for part in taken]
        if padded[0] != padded[1]:
            raise NotAlignedError("it reshapes an axis whose extent depends on the size")
        groups.append(AxisGroup(*(tuple(axis for axis, _ in part) for part in taken)))


_Axis = tuple[int, Dim]


def _take_group(left: Iterator[_Axis], right: Iterator[_Axis]) -> tuple[list[_Axis], list[_Axis]] | None:
    """Take axes of either side until both have the same number of elements; None at the end."""
    first, second = next(left, None), next(right, None)
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise NotAlignedError("its shapes have different numbers of elements")
    parts = [first], [second]
    counts: list[Dim] = [first[1], second[1]]
    while counts[0] != counts[1]:
        if None in counts:
            raise NotAlignedError("its shapes cannot be compared")
        side = _choose_side(*counts)
        following = next((left, right)[side], None)
        if following is None:
            raise NotAlignedError("its shapes cannot be compared")
        parts[side].append(following)
        counts[side] = multiply_dims(counts[side], following[1])
    return parts


def _choose_side(a: Dim, b: Dim) -> int:
    """Return the side that has fewer elements: the one that divides the other."""
    if isinstance(a, int) and isinstance(b, int):
        return 0 if a < b else 1
    if isinstance(a, int) or isinstance(b, int):
        return 0 if isinstance(a, int) else 1
    assert a is not None
    assert b is not None
    return 0 if len(str(a)) <= len(str(b)) else 1


def map_moved_axes(view: PaddedNode) -> Mapping[int, int]:
    """Return the axis of input 0 that each axis of the output is, for nodes that move elements.

    Axes without a counterpart are left out. Raises NotAlignedError where the axes are not known.
    """
    before, after = view.get_shape(0), view.get_output_shape()
    match view.operator:
        case "Transpose":
            order = view.attributes.get("perm") or range(len(before))[::-1]
            return dict(enumerate(int(axis) for axis in order))
        case "Unsqueeze":
            added = view.read_axes(1)
            if added is None:
                raise NotAlignedError("its axes are not known")
            new = {axis % len(after) for axis in added}
            return dict(
                zip((a for a in range(len(after)) if a not in new), range(len(before)), strict=True)
            )
        case "Squeeze":
            dropped = view.read_axes(1)
            if dropped is None:
                if any(map(view.graph.is_padded, before)):
                    raise NotAlignedError(
                        "it drops every axis of extent 1, and a padded one may be that"
                    )
                dropped = [axis for axis, dim in enumerate(before) if dim == 1]
            old = {axis % len(before) for axis in dropped}
            return dict(enumerate(axis for axis in range(len(before)) if axis not in old))
        case "Reshape" | "Flatten":
            return {group.outputs[0]: group.inputs[0] for group in group_axes(view.graph, before, after)}
        case "Expand" | "Tile":
            offset = len(after) - len(before)
            same = (axis for axis, dim in enumerate(before) if dim == after[axis + offset] and dim != 1)
            return {axis + offset: axis for axis in same}
    return {axis: axis for axis in range(len(before))}
