"""Rules that type operators that move elements: Reshape, Expand, Gather and their like."""

from collections.abc import Sequence
from math import ceil, isfinite

from byoc.model._inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_shapes,
    keep_dtype,
    make_type,
    merge_dims,
)
from byoc.model._inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    is_dim_at_least,
    max_dims,
    min_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model._inference._moved_values import (
    END_OF_AXIS,
    KnownNode,
    Rule,
    expand_unknown,
    list_elements,
    list_taken,
    read_axes,
    read_slices,
)
from byoc.model._tensor_data import DTYPES, Dim, TensorType

# Rules that type what cuts, joins and pads tensors: Slice, Split, Concat, Pad.

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


def _reshape(node: KnownNode) -> Types:
    target = node.attributes.get("shape")
    elements = target if target is not None else list_elements(expand_unknown(node, 1))
    return [make_type(node.get_dtype(0), _reshape_shape(node, elements))]


def _reshape_shape(node: KnownNode, target: Sequence[Dim] | None) -> Shape:
    if target is None:
        return None
    shape, keep_zeros = node.get_shape(0), node.attributes.get("allowzero", 0)
    dims: list[Dim] = []
    for i, element in enumerate(target):
        if element == 0 and not keep_zeros:
            dims.append(shape[i] if shape is not None and i < len(shape) else None)
        else:
            dims.append(element if element is not None and is_dim_at_least(element, 0) else None)
    # An element that is not known is a number, -1, or 0 for the extent there: one of them follows.
    if shape is not None and dims.count(None) == 1:
        whole, others = multiply_dims(*shape), multiply_dims(*(dim for dim in dims if dim is not None))
        if others != 0:
            dims[dims.index(None)] = floor_divide_dims(whole, others)
    return tuple(dims)


def _flatten(node: KnownNode) -> Types:
    shape, axis = node.get_shape(0), node.attributes.get("axis", 1)
    if shape is None:
        return [make_type(node.get_dtype(0), [None, None])]
    axis = axis + len(shape) if axis < 0 else axis
    return [make_type(node.get_dtype(0), [multiply_dims(*shape[:axis]), multiply_dims(*shape[axis:])])]


def _expand(node: KnownNode) -> Types:
    target = read_dims(node, 1)
    shape = broadcast_shapes(node.get_shape(0), None if target is None else tuple(target))
    return [make_type(node.get_dtype(0), shape)]


def _tile(node: KnownNode) -> Types:
    shape, repeats = node.get_shape(0), read_dims(node, 1)
    if shape is None or repeats is None or len(repeats) != len(shape):
        return [make_type(node.get_dtype(0), None if shape is None else [None] * len(shape))]
    return [make_type(node.get_dtype(0), map(multiply_dims, shape, repeats))]


def _fill(node: KnownNode) -> Types:
    value = node.attributes.get("value")
    dtype = "float32" if value is None else DTYPES.get(value.data_type)
    return [make_type(dtype, read_dims(node, 0))]


def _range(node: KnownNode) -> Types:
    ends = [list_elements(node.get_value(i)) for i in range(3)]
    numbers = [end[0] if end is not None and len(end) == 1 else None for end in ends]
    start, limit, delta = map(_read_whole, numbers)
    count: Dim = None
    if isinstance(delta, int) and delta > 0:
        count = max_dims(ceil_divide_dims(subtract_dims(limit, start), delta), 0)
    elif isinstance(delta, int) and delta < 0:
        count = max_dims(ceil_divide_dims(subtract_dims(start, limit), -delta), 0)
    elif len(known := [each for each in numbers if isinstance(each, int | float)]) == len(numbers):
        first, last, step = known
        count = max(ceil((last - first) / step), 0) if step and all(map(isfinite, known)) else None
    return [make_type(keep_dtype(node), [count])]


def _read_whole(number: Dim | float) -> Dim:
    """Return an extent or a whole number, None for a fraction: exporters count in floats, too."""
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return number


def _transpose(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    if shape is None:
        return [node.get_type(0)]
    order = node.attributes.get("perm", list(range(len(shape)))[::-1])
    if sorted(order) != list(range(len(shape))):
        return [None]
    return [make_type(node.get_dtype(0), [shape[i] for i in order])]


def _squeeze(node: KnownNode) -> Types:
    shape, axes = node.get_shape(0), read_axes(node)
    dtype = node.get_dtype(0)
    if shape is None:
        return [make_type(dtype, None)]
    if axes is None:
        stated = node.has_input(1)
        count = node.get_shape(1) if stated else None
        if stated and count is not None and len(count) == 1 and isinstance(count[0], int):
            return [make_type(dtype, [None] * max(len(shape) - count[0], 0))]
        sure = not stated and all(isinstance(dim, int) for dim in shape)
        return [make_type(dtype, [dim for dim in shape if dim != 1] if sure else None)]
    if not all(-len(shape) <= axis < len(shape) for axis in axes):
        return [None]
    gone = {axis % len(shape) for axis in axes}
    return [make_type(dtype, [dim for i, dim in enumerate(shape) if i not in gone])]


def _unsqueeze(node: KnownNode) -> Types:
    shape, axes = node.get_shape(0), read_axes(node)
    if shape is None:
        return [make_type(node.get_dtype(0), None)]
    if axes is None:
        count = node.get_shape(1)
        known = count is not None and len(count) == 1 and isinstance(count[0], int)
        return [make_type(node.get_dtype(0), [None] * (len(shape) + count[0]) if known else None)]  # type: ignore[index, operator]
    rank = len(shape) + len(axes)
    if not all(-rank <= axis < rank for axis in axes):
        return [None]
    places = {axis % rank for axis in axes}
    if len(places) < len(axes):
        return [None]
    rest = iter(shape)
    return [make_type(node.get_dtype(0), [1 if i in places else next(rest) for i in range(rank)])]


def _gather(node: KnownNode) -> Types:
    shape, indices = node.get_shape(0), node.get_shape(1)
    axis = node.attributes.get("axis", 0)
    if shape is None or indices is None or not -len(shape) <= axis < len(shape):
        return [make_type(node.get_dtype(0), None)]
    axis %= len(shape)
    return [make_type(node.get_dtype(0), [*shape[:axis], *indices, *shape[axis + 1 :]])]


def _gather_elements(node: KnownNode) -> Types:
    return [make_type(node.get_dtype(0), node.get_shape(1))]


def _gather_points(node: KnownNode) -> Types:
    shape, indices = node.get_shape(0), node.get_shape(1)
    batch = node.attributes.get("batch_dims", 0)
    if shape is None or indices is None or not indices or not isinstance(indices[-1], int):
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*indices[:-1], *shape[batch + indices[-1] :]])]


def _take_largest(node: KnownNode) -> Types:
    shape, axis = node.get_shape(0), node.attributes.get("axis", -1)
    if shape is None or not -len(shape) <= axis < len(shape):
        return [make_type(node.get_dtype(0), None), TensorType("int64", None)]
    k = node.attributes.get("k")
    elements = [k] if k is not None else read_dims(node, 1)
    dims = list(shape)
    dims[axis] = elements[0] if elements is not None and len(elements) == 1 else None
    return [make_type(node.get_dtype(0), dims), make_type("int64", dims)]


def _find_nonzero(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    # Of a scalar there is one row in onnxruntime and numpy, and none in ONNX's inference.
    return [make_type("int64", [None if shape is None else max(len(shape), 1), None])]


def _encode(node: KnownNode) -> Types:
    """Return the type of OneHot."""
    shape, depth = node.get_shape(0), read_dims(node, 1)
    axis = node.attributes.get("axis", -1)
    if shape is None or not -len(shape) - 1 <= axis <= len(shape):
        return [make_type(node.get_dtype(2), None)]
    axis %= len(shape) + 1
    count = depth[0] if depth is not None and len(depth) == 1 else None
    return [make_type(node.get_dtype(2), [*shape[:axis], count, *shape[axis:]])]


def _shape(node: KnownNode) -> Types:
    shape = node.get_shape(0)
    part = slice(node.attributes.get("start", 0), node.attributes.get("end"))
    return [TensorType("int64", (None,) if shape is None else (len(shape[part]),))]


def _size(node: KnownNode) -> Types:
    return [TensorType("int64", ())]


def _spread_depth(node: KnownNode) -> Types:
    """Return the type of DepthToSpace."""
    shape, size = node.get_shape(0), node.attributes.get("blocksize", 0)
    if shape is None or len(shape) != 4 or size <= 0:
        return [make_type(node.get_dtype(0), None)]
    batch, channels, height, width = shape
    dims = [batch, floor_divide_dims(channels, size * size)]
    return [
        make_type(node.get_dtype(0), [*dims, multiply_dims(height, size), multiply_dims(width, size)])
    ]


def _gather_space(node: KnownNode) -> Types:
    """Return the type of SpaceToDepth."""
    shape, size = node.get_shape(0), node.attributes.get("blocksize", 0)
    if shape is None or len(shape) != 4 or size <= 0:
        return [make_type(node.get_dtype(0), None)]
    batch, channels, height, width = shape
    dims = [batch, multiply_dims(channels, size * size)]
    dims += [floor_divide_dims(height, size), floor_divide_dims(width, size)]
    return [make_type(node.get_dtype(0), dims)]


MOVEMENT_RULES: dict[str, Rule] = {
    "ConstantOfShape": _fill,
    "DepthToSpace": _spread_depth,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_points,
    "NonZero": _find_nonzero,
    "OneHot": _encode,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "SpaceToDepth": _gather_space,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _take_largest,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operator of ONNX's main domain to its rule."""
