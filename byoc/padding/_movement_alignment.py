"""Rules of alignment for nodes that move, cut, join and choose elements, or make them of sizes."""

from collections.abc import Mapping

from byoc.model import Dim
from byoc.padding._alignment_view import AlignmentRule, AlignmentView
from byoc.padding._axis_maps import map_moved_axes
from byoc.padding._padded_graph import NotAlignedError
from byoc.padding._zones import UNPADDED


def _align_moved(view: AlignmentView) -> None:
    """Check a Transpose, Squeeze, Unsqueeze, Reshape or Flatten, whose other input is of sizes."""
    view.require_data(0)
    axes = map_moved_axes(view)
    if any(axis not in axes.values() for axis in view.list_padded(0)):
        raise NotAlignedError("it moves a padded axis in a way that is not understood")


def _align_expanded(view: AlignmentView) -> None:
    view.require_data(0)
    view.check_broadcast([0], view.get_output_shape())


def _align_tiled(view: AlignmentView) -> None:
    """Check a Tile that does not repeat a padded axis."""
    view.require_data(0)
    for before, after in zip(view.get_shape(0), view.get_output_shape(), strict=True):
        if view.graph.is_padded(before):
            view.require_equal(before, after)


def _align_sliced(view: AlignmentView) -> None:
    """Check a Slice: it starts at indices that do not depend on the size, and goes forward there."""
    view.require_data(0)
    before, after = view.get_shape(0), view.get_output_shape()
    starts, ends = _read_numbers(view, "starts", 1), _read_numbers(view, "ends", 2)
    steps: list[Dim] | None = [1] * len(before)
    if view.get_input(4):
        steps = view.find_elements(4)
    axes = view.read_axes(3)
    if starts is None or ends is None or steps is None:
        raise NotAlignedError("it is not known what it cuts")
    for position, start in enumerate(starts):
        axis = position if axes is None else axes[position] % len(before)
        dim, step = before[axis], steps[position]
        if not isinstance(start, int) or not isinstance(step, int):
            raise NotAlignedError(f"it starts at {start}, by steps of {step}, which depends on the size")
        padded = view.graph.is_padded(dim) or view.graph.is_padded(after[axis])
        if padded and (start < 0 or step < 1):
            raise NotAlignedError(f"it starts at {start} of an axis that is {dim} long, by {step}")


def _read_numbers(view: AlignmentView, attribute: str, position: int) -> list[Dim] | None:
    """Return numbers that an attribute or, in later versions, an input gives; None where not known."""
    if attribute in view.attributes:
        return [int(value) for value in view.attributes[attribute]]
    return view.find_elements(position) if view.get_input(position) else None


def _align_split(view: AlignmentView) -> None:
    view.require_data(0)
    view.require_same(1)
    view.require_unpadded(0, [int(view.attributes.get("axis", 0))], "it splits")


def _align_joined(view: AlignmentView) -> None:
    """Check a Concat: along its axis the last input alone may be padded."""
    view.require_data()
    rank = len(view.get_shape(0))
    axis = int(view.attributes["axis"]) % rank
    positions = range(len(view.node.input))
    for position in positions[:-1]:
        dim = view.get_shape(position)[axis]
        if view.graph.is_padded(dim):
            raise NotAlignedError(f"it appends to an axis that is {dim} long, behind what padding adds")
    output = view.get_output_shape()
    for position in positions:
        for other, (dim, whole) in enumerate(zip(view.get_shape(position), output, strict=True)):
            if other != axis:
                view.require_equal(dim, whole)


def _align_gathered(view: AlignmentView) -> None:
    """Check a Gather: along a padded axis no index counts from the end."""
    view.require_data()
    shape = view.get_shape(0)
    axis = int(view.attributes.get("axis", 0)) % len(shape)
    if view.graph.is_padded(shape[axis]):
        _check_indices(view, shape[axis])


def _check_indices(view: AlignmentView, dim: Dim) -> None:
    found = view.find_bounds(1, UNPADDED)
    if found is None or found.low < 0:
        raise NotAlignedError(f"its indices may count from the end of an axis that is {dim} long")


def _align_gathered_elements(view: AlignmentView) -> None:
    view.require_data()
    shape, indices = view.get_shape(0), view.get_shape(1)
    axis = int(view.attributes.get("axis", 0)) % len(shape)
    for other, (dim, own) in enumerate(zip(shape, indices, strict=True)):
        if other != axis and (view.graph.is_padded(dim) or view.graph.is_padded(own)):
            view.require_equal(dim, own)
    if view.graph.is_padded(shape[axis]):
        _check_indices(view, shape[axis])


def _align_gathered_rows(view: AlignmentView) -> None:
    """Check a GatherND; axes that are indexed are not counted from their end if they are padded."""
    view.require_data()
    shape, indices = view.get_shape(0), view.get_shape(1)
    batch, width = int(view.attributes.get("batch_dims", 0)), indices[-1]
    if not isinstance(width, int):
        raise NotAlignedError("it indexes a number of axes that depends on the size")
    for dim, own in zip(shape[:batch], indices[:batch], strict=True):
        view.require_equal(dim, own)
    padded = [dim for dim in shape[batch : batch + width] if view.graph.is_padded(dim)]
    if padded:
        _check_indices(view, padded[0])


def _align_blocks(view: AlignmentView) -> None:
    """Check a GatherBlockQuantized, which takes rows of a constant."""
    view.require_data()
    view.require_same(0, *range(2, len(view.node.input)))


def _align_filled(view: AlignmentView) -> None:
    """Check a ConstantOfShape: the same value everywhere, and only its extents depend on sizes."""
    view.get_output_shape()


def _align_range(view: AlignmentView) -> None:
    """Check a Range from a start and by a step that do not depend on the size."""
    view.require_same(0, 2)
    view.get_output_shape()


def _align_triangle(view: AlignmentView) -> None:
    """Check a Trilu: an element is kept by its indices alone."""
    view.require_data()
    view.require_same(1)


def _align_pad(view: AlignmentView) -> None:
    """Check a Pad with a constant before a padded axis, not behind it."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    padded, rank = view.list_padded(0), len(view.get_shape(0))
    pads = _read_numbers(view, "pads", 1)
    if pads is None or len(pads) != 2 * rank or view.get_input(3):
        raise NotAlignedError("its pads are not known")
    for axis in padded:
        begin, end = pads[axis], pads[rank + axis]
        if not isinstance(begin, int) or begin < 0 or not isinstance(end, int) or end > 0:
            raise NotAlignedError(f"it pads the end of axis {axis}")
        if view.attributes.get("mode", "constant") != "constant" and (begin or end):
            raise NotAlignedError(f"it repeats elements of axis {axis}")


def _align_one_hot(view: AlignmentView) -> None:
    view.require_data()
    view.require_same(1, 2)
    view.get_output_shape()


_MOVED = ("Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten")

MOVEMENT_RULES: Mapping[str, AlignmentRule] = {
    **dict.fromkeys(_MOVED, _align_moved),
    "Concat": _align_joined,
    "ConstantOfShape": _align_filled,
    "Expand": _align_expanded,
    "EyeLike": _align_filled,
    "Gather": _align_gathered,
    "GatherElements": _align_gathered_elements,
    "GatherND": _align_gathered_rows,
    "OneHot": _align_one_hot,
    "Pad": _align_pad,
    "Range": _align_range,
    "Slice": _align_sliced,
    "Split": _align_split,
    "Tile": _align_tiled,
    "Trilu": _align_triangle,
    "com.microsoft.GatherBlockQuantized": _align_blocks,
}
"""Operator, as rule files spell it, to its rule."""
