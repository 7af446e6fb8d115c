"""The tensors of a region while it is lowered: in any order of axes, which operators agree on.

ONNX has images as NCHW and TOSA as NHWC. A value remembers in which order its axes lie, so that a
Transpose costs nothing, and axes are moved only where an operator wants another order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byoc.codegen import Quantization

from .tosa_graph import Tensor, TosaGraph

IMAGE = (0, 2, 3, 1)
"""The order of an image's axes in TOSA: NHWC."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the region: its axis `order[i]` is axis `i` of `tensor`.

    A tensor of rank 0 has rank 1 here. `quantization` is None for what is no quantized number.
    """

    tensor: Tensor
    order: tuple[int, ...]
    quantization: Quantization | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in ONNX's order of axes."""
        extents = dict(zip(self.order, self.tensor.shape, strict=True))
        return tuple(extents[axis] for axis in range(len(self.order)))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.order)

    def position(self, axis: int) -> int:
        """Return the axis of `tensor` that an axis of the region's tensor is; it may be negative."""
        return self.order.index(axis % self.rank)


def make_plain(tensor: Tensor, quantization: Quantization | None = None) -> Value:
    """Return the value of a tensor whose axes lie in ONNX's order."""
    return Value(tensor, tuple(range(len(tensor.shape))), quantization)


def arrange(graph: TosaGraph, value: Value, order: Sequence[int]) -> Value:
    """Return a value with its axes in an order."""
    order = tuple(order)
    if order == value.order:
        return value
    perms = [value.order.index(axis) for axis in order]
    return replace(value, tensor=graph.transpose(value.tensor, perms), order=order)


def arrange_plain(graph: TosaGraph, value: Value) -> Value:
    """Return a value with its axes in ONNX's order."""
    return arrange(graph, value, range(value.rank))


def expand_rank(graph: TosaGraph, value: Value, rank: int) -> Value:
    """Return a value with leading axes of extent 1, as broadcasting adds them."""
    more = rank - value.rank
    if not more:
        return value
    tensor = graph.reshape(value.tensor, (*[1] * more, *value.tensor.shape))
    return replace(value, tensor=tensor, order=(*range(more), *(axis + more for axis in value.order)))


def reshape_value(graph: TosaGraph, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape, as ONNX's Reshape, with as few axes moved as possible.

    Axes that are split or joined have to be neighbours in the order that they lie in; where they are
    not, those of each group are brought together first.
    """
    shape = tuple(shape) or (1,)
    groups = _group_axes(value.shape, shape)
    place = {axis: position for position, axis in enumerate(value.order)}
    groups.sort(key=lambda group: min((place[axis] for axis in group[0]), default=-1))
    value = arrange(graph, value, [axis for before, _ in groups for axis in before])
    order = tuple(axis for _, behind in groups for axis in behind)
    return replace(value, tensor=graph.reshape(value.tensor, [shape[i] for i in order]), order=order)


def _group_axes(before: Sequence[int], behind: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of axes, in order, that hold as many elements before as behind."""
    groups = []
    first = second = 0
    while first < len(before) or second < len(behind):
        start = first, second
        sizes = [math.prod(before[first : first + 1]), math.prod(behind[second : second + 1])]
        first, second = min(first + 1, len(before)), min(second + 1, len(behind))
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0] *= before[first]
                first += 1
            else:
                sizes[1] *= behind[second]
                second += 1
        groups.append((list(range(start[0], first)), list(range(start[1], second))))
    return groups
