"""Rules that type what cuts, joins and pads tensors: Slice, Split, Concat, Pad."""

from byoc.model._tensor_types import Dim
from byoc.model.inference._elementwise_shapes import Types, keep_dtype, make_type, merge_dims
from byoc.model.inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    is_dim_at_least,
    max_dims,
    min_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model.inference._known_node import KnownNode, Rule
from byoc.model.inference._moved_values import (
    END_OF_AXIS,
    expand_unknown,
    list_elements,
    list_taken,
    read_slices,
)

# An end of at least this many stands for the end of the axis, in whatever type it was written.
_FAR = 2**31 - 1


def read_dims(node: KnownNode, position: int) -> list[Dim] | None:
    """Return the extents that an input gives, None if not even their number is known.

    An element is None if it is unknown, may be negative, or is no whole number.
    """
    elements = list_elements(expand_unknown(node, position))
    if elements is None:
        return None
    return [
        element if not isinstance(element, float) and is_dim_at_least(element, 0) else None
        for element in elements
    ]


def _concat(node: KnownNode) -> Types:
    shapes = [node.get_shape(i) for i in range(len(node.types))]
    known = [shape for shape in shapes if shape is not None]
    dtype = keep_dtype(node)
    if not known or len({len(shape) for shape in known}) > 1:
        return [make_type(dtype, None)]
    rank, axis = len(known[0]), node.attributes.get("axis", 1)
    if not -rank <= axis < rank:
        return [None]
    merged = list(known[0])
    for shape in known[1:]:
        merged = list(map(merge_dims, merged, shape))
    axis %= rank
    merged[axis] = add_dims(*(None if shape is None else shape[axis] for shape in shapes))
    return [make_type(dtype, merged)]


def _split(node: KnownNode) -> Types:
    shape, count = node.get_shape(0), len(node.proto.output)
    dtype = node.get_dtype(0)
    if shape is None:
        return [make_type(dtype, None)] * count
    axis = node.attributes.get("axis", 0)
    if not -len(shape) <= axis < len(shape):
        return [None] * count
    axis %= len(shape)
    parts = node.attributes.get("split")
    if parts is None and node.has_input(1):
        parts = read_dims(node, 1)
    elif parts is None:
        size = ceil_divide_dims(shape[axis], count)
        if isinstance(shape[axis], int) or count == 1:
            parts = [*[size] * (count - 1), subtract_dims(shape[axis], multiply_dims(size, count - 1))]
        else:  # whether the last one is smaller is not known
            exact = multiply_dims(floor_divide_dims(shape[axis], count), count) == shape[axis]
            parts = [size if exact else None] * count
    if parts is None or len(parts) != count:
        parts = [None] * count
    return [make_type(dtype, [*shape[:axis], part, *shape[axis + 1 :]]) for part in parts]


def _slice(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    if shape is None:
        return [make_type(node.get_dtype(0), None)]
    cuts = read_slices(node, len(shape))
    if cuts is None:
        return [make_type(node.get_dtype(0), [None] * len(shape))]
    dims = [cut_dim(dim, *cuts[i]) if i in cuts else dim for i, dim in enumerate(shape)]
    return [make_type(node.get_dtype(0), dims)]


def cut_dim(dim: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Return the extent that is left of one by a Slice, None where that is not certain."""
    if not isinstance(step, int) or step == 0:
        return None
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return len(list_taken(dim, start, end, step))
    if dim == 0:
        return 0
    if step < 0 and end in END_OF_AXIS:
        end = -(2**63)
    if step < 0:
        back = start == -1 or (isinstance(start, int) and start >= _FAR)
        whole = back and isinstance(end, int) and end <= -_FAR
        return ceil_divide_dims(dim, -step) if whole else _cut_backwards(dim, start, end, -step)
    first, last = _find_position(dim, start), min_dims(_find_position(dim, end), dim)
    return ceil_divide_dims(max_dims(subtract_dims(last, first), 0), step)


def _cut_backwards(dim: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """Return the extent that is left of an open one by a Slice of numbers that goes back by `step`.

    A start is brought to the first or the last element, an end to the last or the place before the
    first.
    """
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    last = subtract_dims(dim, 1)
    if start < 0:
        first = max_dims(add_dims(dim, start), 0)
    else:
        first = last if start >= _FAR else min_dims(start, last)
    if end <= -_FAR:
        stop: Dim = -1
    else:
        stop = max_dims(add_dims(dim, end), -1) if end < 0 else min_dims(end, last)
    count = ceil_divide_dims(max_dims(subtract_dims(first, stop), 0), step)
    return min_dims(count, dim)  # there may be no elements


def _find_position(dim: Dim, position: Dim) -> Dim:
    """Return a position along an axis as one of at least 0; negative ones count backwards."""
    if position is None:
        return None
    if position == 0 or add_dims(dim, position) == 0:  # as many from the back as there are
        return 0
    if position == dim or (isinstance(position, int) and position >= _FAR):
        return dim
    if is_dim_at_least(multiply_dims(-1, position), 1):
        return max_dims(add_dims(dim, position), 0)
    if is_dim_at_least(position, 0):
        return position
    # One less than an extent is the last position; of none at all, it is 0 either way.
    return max_dims(position, 0) if add_dims(position, 1) == dim else None


def _pad(node: KnownNode) -> Types:
    shape, dtype = node.get_shape(0), node.get_dtype(0)
    if shape is None:
        return [make_type(dtype, None)]
    pads = node.attributes.get("pads", node.attributes.get("paddings"))
    if pads is None:
        pads = list_elements(expand_unknown(node, 1))
    axes = list(range(len(shape)))
    if node.has_input(3):
        given = list_elements(node.get_value(3))
        if given is None or not all(isinstance(a, int) and -len(shape) <= a < len(shape) for a in given):
            return [make_type(dtype, [None] * len(shape))]
        axes = [axis % len(shape) for axis in given]
    if pads is None or len(pads) != 2 * len(axes):
        return [make_type(dtype, [None] * len(shape))]
    dims = list(shape)
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        dims[axis] = add_dims(dims[axis], begin, end)
    return [make_type(dtype, dims)]


def _compress(node: KnownNode) -> Types:
    """Return the type of Compress, whose condition may be shorter than the axis."""
    shape, taken = node.get_shape(0), list_elements(node.get_value(1))
    axis, dtype = node.attributes.get("axis"), node.get_dtype(0)
    count = sum(map(bool, taken)) if taken is not None else None
    if axis is None:
        return [make_type(dtype, [count])]
    if shape is None or not -len(shape) <= axis < len(shape):
        return [make_type(dtype, None)]
    axis %= len(shape)
    return [make_type(dtype, [*shape[:axis], count, *shape[axis + 1 :]])]


CUTTING_RULES: dict[str, Rule] = {
    "Compress": _compress,
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
}
"""Operator of ONNX's main domain to its rule."""
