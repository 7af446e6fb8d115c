"""Rules that bound products, sums, normalizations, and what a Gather takes from tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from byoc.model import Dim
from byoc.model.ranges import ZERO, Interval
from byoc.padding._padded_graph import (
    OPSET_OF_ONE_AXIS,
    UNPADDED,
    PaddedNode,
    Part,
    Shape,
    Zone,
    require_shape,
)

if TYPE_CHECKING:
    from byoc.padding._value_bounds import ValueBounds


# A node as the rules of bounds ask about it.


@dataclass(frozen=True, eq=False)
class BoundView(PaddedNode):
    """A node with the output and the zone that bounds are wanted of."""

    output: str
    zone: Zone
    bounds: "ValueBounds"

    @property
    def shape(self) -> Shape:
        """The shape of the output. Raises NotAlignedError where it is not known."""
        return require_shape(self.graph, self.output)

    def find(self, position: int, zone: Zone) -> Interval | None:
        """Return the bounds of an input in a zone of it."""
        return self.bounds.find(self.get_input(position), zone)

    def find_broadcast(self, position: int) -> Interval | None:
        """Return the bounds of an input that is broadcast to the output, where it meets the zone."""
        shape, rank = self.get_shape(position), len(self.shape)
        axes = {
            axis + rank - len(shape): axis
            for axis, dim in enumerate(shape)
            if dim != 1 and axis + rank >= len(shape)
        }
        return self.find(position, self.zone.move(axes))

    def find_constant_magnitude(self, position: int) -> float | None:
        """Return the largest absolute value of a constant input, None for any other; 0 if left out."""
        name = self.get_input(position)
        if not name:
            return 0.0
        array = self.graph.read_constant(name)
        if array is None or array.dtype.kind not in "biuf":
            return None
        return float(abs(array.astype("float64")).max(initial=0.0))


BoundRule = Callable[[BoundView], Interval | None]


def _multiply_matrices(view: BoundView) -> Interval | None:
    """Bound a MatMul or a Gemm: by the sums of a constant matrix, else by how many terms a sum has."""
    shapes = view.get_shape(0), view.get_shape(1)
    turned = [bool(view.attributes.get(name, 0)) for name in ("transA", "transB")]
    if any(len(shape) < 2 for shape in shapes):
        return None
    rank = len(view.shape)
    terms = shapes[0][-2 if turned[0] else -1]
    zones = []
    for position, shape in enumerate(shapes):
        row, column = len(shape) - 2, len(shape) - 1
        if turned[position]:
            row, column = column, row
        kept, summed = (row, column) if position == 0 else (column, row)
        axes = {rank - 2 + position: kept}
        for axis in range(len(shape) - 2):
            if shape[axis] != 1:
                axes[axis + rank - len(shape)] = axis
        zone = view.zone.move(axes)
        if not view.zone.is_unpadded:
            zone = zone.with_part(summed, Part.whole)
        zones.append(zone)
    found = _bound_product(view, zones, turned, terms)
    if found is None or view.operator != "Gemm":
        return found
    alpha, beta = (abs(float(view.attributes.get(name, 1.0))) for name in ("alpha", "beta"))
    bias = view.find_broadcast(2) if view.get_input(2) else ZERO
    return None if bias is None else Interval.around(alpha * found.magnitude + beta * bias.magnitude)


def _bound_product(
    view: BoundView, zones: list[Zone], turned: list[bool], terms: Dim
) -> Interval | None:
    first = view.find(0, zones[0])
    if first is None:
        return None
    weight = view.graph.read_constant(view.get_input(1))
    if weight is not None and weight.dtype.kind in "iuf":
        axis = weight.ndim - (1 if turned[1] else 2)
        sums = np.abs(weight.astype(np.float64)).sum(axis)
        return _scale(first, float(sums.max(initial=0.0)))
    second = view.find(1, zones[1])
    if second is None:
        return None
    return _scale(first, view.graph.count(terms) * second.magnitude)


def _scale(found: Interval, factor: float) -> Interval | None:
    """Return the numbers of at most a magnitude times a factor, None where it is not finite."""
    most = found.magnitude * factor
    return Interval.around(most) if most < np.inf else None


def _normalize(skips: tuple[int, ...] = (), scale: int = 1, shifts: tuple[int, ...] = ()) -> BoundRule:
    """Return the rule of a normalization over the last axes, `axis` and what follows.

    `skips` are inputs that are added first, `scale` is the position of the factor, `shifts` those of
    what is added behind. A normalized vector of n elements has
    a length of at most the root of n.
    """

    def rule(view: BoundView) -> Interval | None:
        added = [view.find_broadcast(position) for position in (0, *skips) if view.get_input(position)]
        if any(each is None for each in added):
            return None
        if view.output != view.node.output[0]:
            if len(view.node.output) < 4 or view.output != view.node.output[3]:
                return None
            most = sum(each.magnitude for each in added if each is not None)
            return Interval.around(most)
        if not view.zone.is_unpadded and not all(each is not None and each.is_finite for each in added):
            return None
        shape = view.get_shape(0)
        axis = int(view.attributes.get("axis", -1)) % len(shape)
        count = float(np.prod([view.graph.count(dim) for dim in shape[axis:]]))
        factors = view.find_constant_magnitude(scale)
        terms = [view.find_constant_magnitude(position) for position in shifts]
        if factors is None or any(term is None for term in terms):
            return None
        return Interval.around(sqrt(count) * factors + sum(term for term in terms if term is not None))

    return rule


def _take_softmax(view: BoundView) -> Interval | None:
    """Bound a Softmax: 0 in what padding adds to its axis, where that is proven, else from 0 to 1."""
    rank = len(view.shape)
    axis = int(view.attributes.get("axis", -1)) % rank
    if view.opset < OPSET_OF_ONE_AXIS and axis != rank - 1:
        return None
    if view.zone == Zone.of({axis: Part.rest}) and view.number in view.bounds.proven:
        return ZERO
    if not view.zone.is_unpadded:  # a row without any number is NaN
        whole = view.find(0, view.zone.with_part(axis, Part.whole))
        first = view.find(0, view.zone.with_part(axis, Part.first))
        if whole is None or whole.high == np.inf or first is None or first.low == -np.inf:
            return None
    return Interval(0.0, 1.0)


def _gather(view: BoundView) -> Interval | None:
    """Bound a Gather by all that it may take: along its axis index 0, the unpadded elements, or all."""
    shape, indices = view.get_shape(0), view.get_shape(1)
    axis = int(view.attributes.get("axis", 0)) % len(shape)
    axes = {a if a < axis else a - 1 + len(indices): a for a in range(len(shape)) if a != axis}
    zone = view.zone.move(axes)
    taken = view.find(1, view.zone.move({axis + other: other for other in range(len(indices))}))
    if taken is not None and taken.is_zero:
        zone = zone.with_part(axis, Part.first)
    elif not view.zone.is_unpadded:
        zone = zone.with_part(axis, Part.whole)
    return view.find(0, zone)


def _gather_rows(view: BoundView) -> Interval | None:
    """Bound a GatherND or GatherElements by all of its data."""
    if view.zone.is_unpadded:
        return view.find(0, UNPADDED)
    return view.find(0, Zone.of(dict.fromkeys(range(len(view.get_shape(0))), Part.whole)))


def _reduce(view: BoundView) -> Interval | None:
    """Bound a ReduceSum, ReduceMean, ReduceMax or ReduceMin by what it is of."""
    shape, axes = view.get_shape(0), view.read_axes(1)
    over = {axis % len(shape) for axis in (axes or range(len(shape)))}
    kept = [axis for axis in range(len(shape)) if axis not in over]
    if view.attributes.get("keepdims", 1):
        kept_axes = {axis: axis for axis in kept}
    else:
        kept_axes = dict(enumerate(kept))
    zone = view.zone.move(kept_axes)
    if not view.zone.is_unpadded:
        for axis in over:
            zone = zone.with_part(axis, Part.whole)
    found = view.find(0, zone)
    if found is None or view.operator != "ReduceSum":
        return found
    count = float(np.prod([view.graph.count(shape[axis]) for axis in over]))
    low, high = (0.0 if end == 0 else end * count for end in (found.low, found.high))
    return Interval(min(low, 0.0), max(high, 0.0))


MATRIX_BOUND_RULES: Mapping[str, BoundRule] = {
    "Gather": _gather,
    "GatherElements": _gather_rows,
    "GatherND": _gather_rows,
    "Gemm": _multiply_matrices,
    "LayerNormalization": _normalize(shifts=(2,)),
    "MatMul": _multiply_matrices,
    "RMSNormalization": _normalize(),
    "ReduceMax": _reduce,
    "ReduceMean": _reduce,
    "ReduceMin": _reduce,
    "ReduceSum": _reduce,
    "SimplifiedLayerNormalization": _normalize(),
    "Softmax": _take_softmax,
    "com.microsoft.SkipLayerNormalization": _normalize(skips=(1, 4), scale=2, shifts=(3,)),
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalize(skips=(1, 3), scale=2),
}
"""Operator, as rule files spell it, to its rule."""
