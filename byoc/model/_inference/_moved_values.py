"""Values of small tensors that are made of elements of others: by Gather, Slice, Concat, ..."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.model._inference._extents import multiply_dims
from byoc.model._tensor_data import Dim, TensorType

# A node with the types and values that are known before the model runs.


@dataclass(frozen=True, eq=False)
class KnownNode:
    """A node with the types and values of its inputs, as far as they are known.

    `attributes` are those in effect: stated ones and the defaults of the schema. `types` and `values`
    have an entry for each name in `proto.input`, None where it is left out or not known. Integer values
    may be arrays of objects whose elements are extents: a number, an expression, or None.
    """

    proto: NodeProto
    opset: int
    attributes: Mapping[str, Any]
    types: tuple[TensorType | None, ...]
    values: tuple[NDArray[Any] | None, ...]

    def has_input(self, position: int) -> bool:
        """Return whether an input is there, not left out."""
        return position < len(self.proto.input) and bool(self.proto.input[position])

    def get_type(self, position: int) -> TensorType | None:
        """Return the type of an input, None if it is not known or left out."""
        return self.types[position] if position < len(self.types) else None

    def get_shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of an input, None if its rank is not known."""
        kind = self.get_type(position)
        return kind.shape if kind else None

    def get_dtype(self, position: int) -> str | None:
        """Return the dtype of an input, None if it is not known."""
        kind = self.get_type(position)
        return kind.dtype if kind else None

    def get_value(self, position: int) -> NDArray[Any] | None:
        """Return the value of an input, None if it is not known; elements may be symbolic."""
        return self.values[position] if position < len(self.values) else None


Rule = Callable[[KnownNode], Sequence[TensorType | None]]
"""Types the outputs of a node: an entry for each, None where nothing is known."""


Array = NDArray[Any]
Value = list[Array | None] | Array | None

MAX_ELEMENTS = 1024
"""The most elements of a tensor whose values are followed."""

END_OF_AXIS = frozenset({2**31 - 1, 2**63 - 1})
"""The ends of a Slice that stand for the end of the axis in either direction."""

_MAX_RANK = 32  # numpy's own limit before its version 2


def expand_unknown(node: KnownNode, position: int) -> Array | None:
    """Return the value of an input, or unknown elements if it is small and its shape is known."""
    value = node.get_value(position)
    if value is not None:
        return value
    shape = node.get_shape(position)
    if shape is None or any(not isinstance(dim, int) for dim in shape):
        return None
    extents = [dim for dim in shape if isinstance(dim, int)]
    return np.full(extents, None, object) if prod(extents) <= MAX_ELEMENTS else None


def list_elements(value: Array | None) -> list[Any] | None:
    """Return the elements of a vector as a list, None for an unknown value."""
    return None if value is None else value.ravel().tolist()


def make_objects(elements: Sequence[Any]) -> Array:
    """Return a vector of objects, whatever these are."""
    result = np.empty(len(elements), object)
    for i, element in enumerate(elements):
        result[i] = element
    return result


def _find_shape(node: KnownNode) -> Array | None:
    shape = node.get_shape(0)
    if shape is None:
        return None
    part = shape[slice(node.attributes.get("start", 0), node.attributes.get("end"))]
    return make_objects(part)


def _find_size(node: KnownNode) -> Array | None:
    shape = node.get_shape(0)
    return None if shape is None else make_objects([multiply_dims(*shape)]).reshape(())


def _gather(node: KnownNode) -> Array | None:
    data, indices = expand_unknown(node, 0), node.get_value(1)
    if data is None or indices is None or indices.dtype == object or not data.ndim:
        return None
    axis = node.attributes.get("axis", 0)
    if not -data.ndim <= axis < data.ndim:
        return None
    axis %= data.ndim
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    if prod(shape) > MAX_ELEMENTS:
        return None
    try:
        return np.take(data, indices.astype(np.int64).ravel(), axis).reshape(shape)
    except (IndexError, ValueError):
        return None


def _slice(node: KnownNode) -> Array | None:
    data = expand_unknown(node, 0)
    if data is None:
        return None
    steps = read_slices(node, data.ndim)
    if steps is None:
        return None
    part = [slice(None)] * data.ndim
    for axis, (start, end, step) in steps.items():
        if (
            not isinstance(start, int)
            or not isinstance(end, int)
            or not isinstance(step, int)
            or not step
        ):
            return None
        taken = list_taken(data.shape[axis], start, end, step)
        part[axis] = slice(taken.start, None if taken.stop < 0 else taken.stop, taken.step)
    return data[tuple(part)]


def list_taken(extent: int, start: int, end: int, step: int) -> range:
    """Return the positions that a Slice takes along an axis; `step` is not 0.

    Negative positions count from the back. A start before the first element is the first one in either
    direction (Python's slices backwards are empty there), as onnxruntime has it.
    """
    last = None if step < 0 and end in END_OF_AXIS else end
    return range(*slice(max(start, -extent), last, step).indices(extent))


def read_slices(node: KnownNode, rank: int) -> dict[int, tuple[Dim, Dim, Dim]] | None:
    """Return start, end and step of the axes that a Slice cuts; None if the axes are not known.

    Each is None where it is not known. Until operator set 10 they were attributes.
    """
    if "starts" in node.attributes:
        starts, ends = node.attributes["starts"], node.attributes["ends"]
        axes, steps = node.attributes.get("axes"), None
    else:
        starts, ends = (list_elements(expand_unknown(node, i)) for i in (1, 2))
        axes = list_elements(node.get_value(3)) if node.has_input(3) else None
        steps = list_elements(expand_unknown(node, 4)) if node.has_input(4) else None
        if node.has_input(3) and axes is None:
            return None
    count = next((len(each) for each in (starts, ends, axes, steps) if each is not None), None)
    if count is None:
        return None
    axes = list(range(count)) if axes is None else axes
    unknown = [None] * count
    starts, ends = unknown if starts is None else starts, unknown if ends is None else ends
    steps = (unknown if node.has_input(4) else [1] * count) if steps is None else steps
    if len({len(each) for each in (starts, ends, axes, steps)}) > 1:
        return None
    if not all(isinstance(axis, int) and -rank <= axis < rank for axis in axes):
        return None
    return {axis % rank: part for axis, *part in zip(axes, starts, ends, steps, strict=True)}  # type: ignore[misc]


def _concat(node: KnownNode) -> Array | None:
    parts = [expand_unknown(node, i) for i in range(len(node.proto.input))]
    if any(part is None or not part.ndim for part in parts):
        return None
    found = [part for part in parts if part is not None]
    if sum(part.size for part in found) > MAX_ELEMENTS:
        return None
    if any(part.dtype == object for part in found):
        found = [part.astype(object) for part in found]
    try:
        return np.concatenate(found, node.attributes.get("axis", 1 if node.opset < 4 else 0))
    except ValueError:
        return None


def read_axes(node: KnownNode) -> list[int] | None:
    """Return the axes that the attribute or the second input gives; None if left out or not known."""
    axes = node.attributes.get("axes")
    if axes is None:
        axes = list_elements(node.get_value(1))
    return axes if axes is None or all(isinstance(axis, int) for axis in axes) else None


def _unsqueeze(node: KnownNode) -> Array | None:
    data, axes = node.get_value(0), read_axes(node)
    if data is None or axes is None:
        return None
    rank = data.ndim + len(axes)
    places = {axis % rank for axis in axes}
    if len(places) < len(axes) or rank > _MAX_RANK:
        return None
    extents = iter(data.shape)
    return data.reshape([1 if axis in places else next(extents) for axis in range(rank)])


def _squeeze(node: KnownNode) -> Array | None:
    data = node.get_value(0)
    given = node.has_input(1) or "axes" in node.attributes
    axes = read_axes(node)
    if data is None or (given and axes is None):
        return None
    places = [i for i, n in enumerate(data.shape) if n == 1] if axes is None else axes
    try:
        return np.squeeze(data, tuple(places))
    except ValueError:
        return None


def _reshape(node: KnownNode) -> Array | None:
    data = node.get_value(0)
    target = node.attributes.get("shape", list_elements(node.get_value(1)))
    if data is None or target is None or not all(isinstance(dim, int) for dim in target):
        return None
    if not node.attributes.get("allowzero", 0):
        if any(dim == 0 and i >= data.ndim for i, dim in enumerate(target)):
            return None
        target = [data.shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    try:
        return data.reshape(target)
    except ValueError:
        return None


def _transpose(node: KnownNode) -> Array | None:
    data = node.get_value(0)
    try:
        return None if data is None else np.transpose(data, node.attributes.get("perm"))
    except ValueError:
        return None


def _identity(node: KnownNode) -> Array | None:
    return node.get_value(0)


def _expand(node: KnownNode) -> Array | None:
    data, target = node.get_value(0), list_elements(node.get_value(1))
    if data is None or target is None or not all(isinstance(dim, int) for dim in target):
        return None
    try:
        shape = np.broadcast_shapes(data.shape, tuple(target))
        return np.broadcast_to(data, shape).copy() if prod(shape) <= MAX_ELEMENTS else None
    except ValueError:
        return None


def _split(node: KnownNode) -> list[Array | None] | None:
    data, count = node.get_value(0), len(node.proto.output)
    axis = node.attributes.get("axis", 0)
    if data is None or not -data.ndim <= axis < data.ndim:
        return None
    parts = node.attributes.get("split", list_elements(node.get_value(1)))
    if parts is None:
        if node.has_input(1):
            return None
        size = -(-data.shape[axis] // count)
        parts = [size] * count
    edges: list[int] = np.cumsum(parts)[:-1].tolist()
    return [*np.split(data, edges, axis)]


def _tile(node: KnownNode) -> Array | None:
    data, repeats = node.get_value(0), list_elements(node.get_value(1))
    if data is None or repeats is None or not all(isinstance(each, int) for each in repeats):
        return None
    if len(repeats) != data.ndim or data.size * prod(repeats) > MAX_ELEMENTS:
        return None
    return np.tile(data, repeats)


MOVED_VALUES: Mapping[str, Callable[[KnownNode], Value]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Shape": _find_shape,
    "Size": _find_size,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operator of ONNX's main domain to what computes its outputs."""
