"""Rules that type onnxruntime's operators that move data: gathers, crops, pads; and transforms."""

from collections.abc import Mapping

from byoc.model.inference._elementwise_shapes import Types, make_type
from byoc.model.inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model.inference._known_node import KnownNode, Rule
from byoc.model.inference._moved_values import list_elements


def _gather_blocks(node: KnownNode) -> Types:
    """Return the type of GatherBlockQuantized; a byte holds two elements of 4 bits."""
    data, indices, dtype = node.get_shape(0), node.get_shape(1), node.get_dtype(2)
    kind = node.get_dtype(0)
    if data is None or indices is None or not data or kind is None:
        return [make_type(dtype, None)]
    axis = node.attributes.get("gather_axis", 0) % len(data)
    packed = 8 // node.attributes.get("bits", 4) if kind == "uint8" else 1
    dims = [*data[:-1], multiply_dims(data[-1], packed)]
    return [make_type(dtype, [*dims[:axis], *indices, *dims[axis + 1 :]])]


def _gather_elements(node: KnownNode) -> Types:
    """Return the type of GatherND: data, and indices whose last axis addresses leading axes."""
    data, indices = node.get_shape(0), node.get_shape(1)
    depth = indices[-1] if indices else None
    if data is None or not indices or not isinstance(depth, int):
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*indices[:-1], *data[depth:]])]


def _embed_rows(node: KnownNode) -> Types:
    """Return the type of TorchEmbedding: rows of a table."""
    table, indices = node.get_shape(0), node.get_shape(1)
    known = table is not None and indices is not None and len(table) == 2
    return [make_type(node.get_dtype(0), [*(indices or ()), (table or (None,))[-1]] if known else None)]


def _sample_grid(node: KnownNode) -> Types:
    """Return the type of GridSample: images [N, C, ...], a grid [N, ..., axes]."""
    images, grid = node.get_shape(0), node.get_shape(1)
    if images is None or grid is None or len(images) < 3:
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*images[:2], *grid[1:-1]])]


def _crop(node: KnownNode) -> Types:
    """Return the type of CropAndResize: images [N, C, H, W], boxes [R, 4], a size of value [h, w]."""
    images, boxes = node.get_shape(0), node.get_shape(1)
    size = list_elements(node.get_value(3))
    channels = images[1] if images is not None and len(images) == 4 else None
    height, width = size if size is not None and len(size) == 2 else (None, None)
    return [make_type(node.get_dtype(0), [boxes[0] if boxes else None, channels, height, width])]


def _insert_axis(node: KnownNode) -> Types:
    """Return the type of ExpandDims, whose second input has the value of the axis."""
    shape, known = node.get_shape(0), list_elements(node.get_value(1))
    if shape is None or not known or not isinstance(known[0], int):
        return [make_type(node.get_dtype(0), None)]
    axis = known[0] + len(shape) + 1 if known[0] < 0 else known[0]
    return [make_type(node.get_dtype(0), [*shape[:axis], 1, *shape[axis:]])]


def _pad(node: KnownNode) -> Types:
    shape, pads = node.get_shape(0), list_elements(node.get_value(1))
    if shape is None:
        return [make_type(node.get_dtype(0), None)]
    if pads is None or len(pads) != 2 * len(shape):
        return [make_type(node.get_dtype(0), [None] * len(shape))]
    dims = [add_dims(dim, pads[i], pads[i + len(shape)]) for i, dim in enumerate(shape)]
    return [make_type(node.get_dtype(0), dims)]


def _count_up(node: KnownNode) -> Types:
    """Return the type of Range: numbers from a start to a limit in steps."""
    values = [list_elements(node.get_value(i)) for i in range(3)]
    start, limit = (each[0] if each else None for each in values[:2])
    step = (values[2][0] if values[2] else None) if node.has_input(2) else 1
    whole = all(isinstance(value, (int, str)) for value in (start, limit, step))
    count = None
    if whole and isinstance(step, int) and step > 0:
        count = ceil_divide_dims(subtract_dims(limit, start), step)
    count = count if not isinstance(count, int) or count >= 0 else 0
    return [make_type(node.get_dtype(0), [count])]


def _find_unique(node: KnownNode) -> Types:
    """Return the types of Unique: distinct elements, the index of each element, their counts."""
    return [
        make_type(node.get_dtype(0), [None]),
        make_type("int64", node.get_shape(0)),
        make_type("int64", [None]),
    ]


def _unfold(node: KnownNode) -> Types:
    """Return the type of UnfoldTensor: slices along an axis, their elements in a new last axis."""
    shape, size = node.get_shape(0), node.attributes.get("size")
    if not shape or size is None:
        return [make_type(node.get_dtype(0), None)]
    axis, step = node.attributes.get("dim", -1) % len(shape), node.attributes.get("step", 1)
    count = add_dims(floor_divide_dims(subtract_dims(shape[axis], size), step), 1)
    return [make_type(node.get_dtype(0), [*shape[:axis], count, *shape[axis + 1 :], size])]


def _measure_distances(node: KnownNode) -> Types:
    """Return the type of CDist: distances of the rows of two matrices."""
    a, b = node.get_shape(0), node.get_shape(1)
    return [make_type(node.get_dtype(0), [a[0] if a else None, b[0] if b else None])]


def _transform(node: KnownNode) -> Types:
    """Return the type of Rfft over one axis: half the frequencies, with real and imaginary parts."""
    shape = node.get_shape(0)
    if not shape or node.attributes.get("signal_ndim", 1) != 1:
        return [make_type(node.get_dtype(0), None)]
    bins = add_dims(floor_divide_dims(shape[-1], 2), 1)
    return [make_type(node.get_dtype(0), [*shape[:-1], bins, 2])]


def _transform_back(node: KnownNode) -> Types:
    """Return the type of Irfft over one axis: [..., bins, 2] to an even number of samples."""
    shape = node.get_shape(0)
    if not shape or len(shape) < 2 or node.attributes.get("signal_ndim", 1) != 1:
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*shape[:-2], multiply_dims(2, subtract_dims(shape[-2], 1))])]


MOVEMENT_RULES: Mapping[str, Rule] = {
    "com.microsoft.CDist": _measure_distances,
    "com.microsoft.CropAndResize": _crop,
    "com.microsoft.ExpandDims": _insert_axis,
    "com.microsoft.GatherBlockQuantized": _gather_blocks,
    "com.microsoft.GatherND": _gather_elements,
    "com.microsoft.GridSample": _sample_grid,
    "com.microsoft.Irfft": _transform_back,
    "com.microsoft.Pad": _pad,
    "com.microsoft.Range": _count_up,
    "com.microsoft.Rfft": _transform,
    "com.microsoft.TorchEmbedding": _embed_rows,
    "com.microsoft.UnfoldTensor": _unfold,
    "com.microsoft.Unique": _find_unique,
}
"""Operator, as rule files spell it, to its rule."""
