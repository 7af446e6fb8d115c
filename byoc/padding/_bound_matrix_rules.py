"""Rules that bound products, sums, normalizations, and what a Gather takes from tables."""

import math
from collections.abc import Callable, Mapping
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np

from byoc._dataclasses import dataclass
from byoc.model import Dim
from byoc.model.ranges import ZERO, Interval, absolute
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


# Bounds of operators that compute one number of one number, by the documentation of each operator.
#
# Sources: the operators of ONNX (https://onnx.ai/onnx/operators/) and onnxruntime's contrib
# operators (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).

# The least values of products of x with something that grows from 0 to 1, rounded down.
_LEAST_GELU = -0.171  # x * Phi(x): -0.16998 at -0.7518
_LEAST_TANH_GELU = -0.171  # FastGelu, Phi by a hyperbolic tangent: -0.17004 at -0.7525
_LEAST_SWISH = -0.279  # x * sigmoid(x): -0.27847 at -1.2785
_LEAST_HARD_SWISH = -0.376  # x * hard_sigmoid(x): -0.375 at -1.5
_LEAST_MISH = -0.309  # x * tanh(softplus(x)): -0.30884 at -1.1924
# Below half of pi, where the tangent is not defined, in any float type.
_MOST_FOR_TANGENT = 1.5
# exp and its kin overflow float64 beyond.
_MOST_EXPONENT = 700.0


def rise(function: Callable[[float], float], low: float = -inf, high: float = inf) -> BoundRule:
    """Return the rule of a function of one operand that does not fall, defined from `low` to `high`."""

    def rule(view: BoundView) -> Interval | None:
        found = view.find(0, view.zone)
        if found is None or found.low < low or found.high > high:
            return None
        return Interval(function(found.low), function(found.high))

    return rule


def stay_between(low: float, high: float) -> BoundRule:
    """Return the rule of a function of numbers, infinite ones too, that lies between two of them."""

    def rule(view: BoundView) -> Interval | None:
        return None if view.find(0, view.zone) is None else Interval(low, high)

    return rule


def _map(function: Callable[[Interval], Interval | None]) -> BoundRule:
    """Return the rule of a function of one operand, by a function of its interval."""

    def rule(view: BoundView) -> Interval | None:
        found = view.find(0, view.zone)
        return None if found is None else function(found)

    return rule


def find_finite(view: BoundView) -> Interval | None:
    """Return the bounds of the first operand, None where it may be infinite and makes NaN of that."""
    found = view.find(0, view.zone)
    return found if found is not None and (found.is_finite or view.zone.is_unpadded) else None


def _bound_by_one(view: BoundView) -> Interval | None:
    """Bound sine, cosine and x / (1 + |x|): from -1 to 1, and NaN of an infinite operand."""
    return None if find_finite(view) is None else Interval(-1.0, 1.0)


def _gate(least: float, slope: str = "", shifts: tuple[int, ...] = ()) -> BoundRule:
    """Return the rule of x times something that grows from 0 to 1, whose least value is `least`.

    `slope` is the attribute whose factor of x the growth depends on: the least value is that for 1,
    divided by it. `shifts` are the inputs that may be added to x before.
    """

    def rule(view: BoundView) -> Interval | None:
        found, factor = find_finite(view), float(view.attributes.get(slope, 1.0)) if slope else 1.0
        if found is None or not factor > 0:
            return None
        high = found.high
        for position in shifts:
            if view.get_input(position):
                added = view.find_broadcast(position)
                if added is None:
                    return None
                high += added.high
        return None if math.isnan(high) else Interval(least / factor, max(high, 0.0))

    return rule


def _bend(negative: Callable[[float, Mapping[str, float]], float]) -> BoundRule:
    """Return the rule of a unit that is x above 0 and a function of it below, which joins there.

    `negative` gets x and the attributes. Where that function rises below, its values lie between it at
    the lower end and 0, and where it falls the other way round.
    """

    def rule(view: BoundView) -> Interval | None:
        found = view.find(0, view.zone)
        if found is None:
            return None
        gain = float(view.attributes.get("gamma", 1.0)) if view.operator == "Selu" else 1.0
        ends = [gain * end if end > 0 else negative(end, view.attributes) for end in _ends(found)]
        if gain < 0 or any(map(math.isnan, ends)):
            return None
        crossing = [0.0] if found.low < 0 < found.high else []
        return Interval(min(*ends, *crossing, inf), max(*ends, *crossing, -inf))

    return rule


def _ends(found: Interval) -> tuple[float, float]:
    return found.low, found.high


def _elu(value: float, attributes: Mapping[str, float]) -> float:
    return float(attributes.get("alpha", 1.0)) * math.expm1(value)


def _celu(value: float, attributes: Mapping[str, float]) -> float:
    alpha = float(attributes.get("alpha", 1.0))
    return alpha * math.expm1(value / alpha) if alpha > 0 else math.nan


def _selu(value: float, attributes: Mapping[str, float]) -> float:
    return float(attributes["gamma"]) * float(attributes["alpha"]) * math.expm1(value)


def _leak(value: float, attributes: Mapping[str, float]) -> float:
    return float(attributes.get("alpha", 0.01)) * value if value else 0.0


def _shrink(view: BoundView) -> Interval | None:
    """Bound a Shrink: x moved by the bias towards or from 0, or 0."""
    found, bias = view.find(0, view.zone), abs(float(view.attributes.get("bias", 0.0)))
    return None if found is None else Interval(min(found.low, 0.0) - bias, max(found.high, 0.0) + bias)


def _bound_hard_sigmoid(view: BoundView) -> Interval | None:
    found = view.find(0, view.zone)
    if found is None or (not float(view.attributes.get("alpha", 0.2)) and not found.is_finite):
        return None  # 0 times infinity
    return Interval(0.0, 1.0)


def _invert(found: Interval) -> Interval | None:
    if found.low <= 0 <= found.high:
        return None
    return Interval(1 / found.high, 1 / found.low)


def _take_even(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    """Return the function of intervals of a function of magnitudes that rises with them."""

    def of_interval(found: Interval) -> Interval:
        size = absolute(found)
        return Interval(function(size.low), function(size.high))

    return of_interval


def _fall_acos(found: Interval) -> Interval | None:
    return Interval(math.acos(found.high), math.acos(found.low)) if found.magnitude <= 1 else None


def _saturate(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return a function like exp that is infinite where a float64 would overflow."""
    return lambda value: function(value) if value < _MOST_EXPONENT else inf


def _sinh(value: float) -> float:
    return math.copysign(_saturate(math.sinh)(abs(value)), value)


def _softplus(value: float) -> float:
    return math.log1p(math.exp(value)) if value < _MOST_EXPONENT else value


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -inf


def _atanh(value: float) -> float:
    return math.atanh(value) if abs(value) < 1 else math.copysign(inf, value)


def _whole(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return a function that rounds, with infinity left as it is."""
    return lambda value: float(function(value)) if isfinite(value) else value


FUNCTION_RULES: Mapping[str, BoundRule] = {
    "Abs": _map(absolute),
    "Acos": _map(_fall_acos),
    "Acosh": rise(math.acosh, low=1.0),
    "Asin": rise(math.asin, -1.0, 1.0),
    "Asinh": rise(math.asinh),
    "Atan": rise(math.atan),
    "Atanh": rise(_atanh, -1.0, 1.0),
    "Ceil": rise(_whole(math.ceil)),
    "Celu": _bend(_celu),
    "Cos": _bound_by_one,
    "Cosh": _map(_take_even(_saturate(math.cosh))),
    "Elu": _bend(_elu),
    "Erf": stay_between(-1.0, 1.0),
    "Exp": rise(_saturate(math.exp)),
    "Floor": rise(_whole(math.floor)),
    "Gelu": _gate(_LEAST_GELU),
    "HardSigmoid": _bound_hard_sigmoid,
    "HardSwish": _gate(_LEAST_HARD_SWISH),
    "LeakyRelu": _bend(_leak),
    "Log": rise(_log, low=0.0),
    "Mish": _gate(_LEAST_MISH),
    "Neg": _map(lambda found: Interval(-found.high, -found.low)),
    "Not": _map(lambda found: Interval(1 - found.high, 1 - found.low)),
    "Reciprocal": _map(_invert),
    "Relu": rise(lambda value: max(value, 0.0)),
    "Round": rise(_whole(round)),
    "Selu": _bend(_selu),
    "Shrink": _shrink,
    "Sigmoid": stay_between(0.0, 1.0),
    "Sign": rise(lambda value: float((value > 0) - (value < 0))),
    "Sin": _bound_by_one,
    "Sinh": rise(_sinh),
    "Softplus": rise(_softplus),
    "Softsign": _bound_by_one,
    "Sqrt": rise(math.sqrt, low=0.0),
    "Swish": _gate(_LEAST_SWISH, "alpha"),
    "Tan": rise(math.tan, -_MOST_FOR_TANGENT, _MOST_FOR_TANGENT),
    "Tanh": stay_between(-1.0, 1.0),
    "ThresholdedRelu": _map(lambda found: found.join(ZERO)),
    "com.microsoft.BiasGelu": _gate(_LEAST_GELU, shifts=(1,)),
    "com.microsoft.FastGelu": _gate(_LEAST_TANH_GELU, shifts=(1,)),
    "com.microsoft.Gelu": _gate(_LEAST_GELU),
    "com.microsoft.QuickGelu": _gate(_LEAST_SWISH, "alpha"),
}
"""Operator, as rule files spell it, to its rule."""
