"""Rules that bound the output of a node by its inputs, zone by zone.

A rule returns None where it proves nothing. Bounds are those of exact arithmetic; that floats are
rounded is left to whoever uses them, with room to spare.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf, isnan, sqrt, trunc
from operator import add, mul, sub

import numpy as np

from byoc.model import to_numpy_dtype
from byoc.model.ranges import ZERO, Interval, square
from byoc.padding._bound_matrix_rules import FUNCTION_RULES, MATRIX_BOUND_RULES, BoundRule, BoundView
from byoc.padding._padded_graph import UNPADDED, Part, map_moved_axes

_UNIT = Interval(0.0, 1.0)


def _combine(function: Callable[[float, float], float]) -> BoundRule:
    """Return the rule of a function that is monotone in each operand, whichever way.

    Of more than two operands, such as those of a Sum, one after the other is taken.
    """

    def rule(view: BoundView) -> Interval | None:
        found = view.find_broadcast(0)
        for position in range(1, len(view.node.input)):
            other = view.find_broadcast(position)
            found = None if found is None or other is None else _meet_ends(function, found, other)
        return found

    return rule


def _meet_ends(function: Callable[[float, float], float], a: Interval, b: Interval) -> Interval | None:
    ends = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return None if any(map(isnan, ends)) else Interval(min(ends), max(ends))


def _average(view: BoundView) -> Interval | None:
    found, count = _combine(add)(view), len(view.node.input)
    return None if found is None else Interval(found.low / count, found.high / count)


def _take_rest(view: BoundView) -> Interval | None:
    """Bound a Mod: less than the divisor, with its sign, or with the dividend's if `fmod` is set."""
    a, b = view.find_broadcast(0), view.find_broadcast(1)
    if a is None or b is None or not (a.is_finite or view.zone.is_unpadded) or b.low <= 0 <= b.high:
        return None
    if not view.attributes.get("fmod"):
        return Interval(min(b.low, 0.0), max(b.high, 0.0))
    most = min(a.magnitude, b.magnitude)
    return Interval(-most if a.low < 0 else 0.0, most if a.high > 0 else 0.0)


def _apply_slopes(view: BoundView) -> Interval | None:
    """Bound a PRelu: x above 0, and x times a slope below."""
    found, slope = view.find_broadcast(0), view.find_broadcast(1)
    if found is None or slope is None:
        return None
    above = Interval(max(found.low, 0.0), max(found.high, 0.0))
    if found.low >= 0:
        return above
    below = _meet_ends(mul, Interval(found.low, min(found.high, 0.0)), slope)
    return below if below is None or found.high < 0 else below.join(above)


def _drop_out(view: BoundView) -> Interval | None:
    """Bound a Dropout that does nothing, as it does unless it trains."""
    is_trained = view.get_input(2) or view.output != view.node.output[0]
    return None if is_trained else view.find(0, view.zone)


def _dequantize(view: BoundView) -> Interval | None:
    """Bound a DequantizeLinear by the largest scale and zero point."""
    found = view.find(0, view.zone)
    scale, zero = view.find_constant_magnitude(1), view.find_constant_magnitude(2)
    if found is None or scale is None or zero is None:
        return None
    return Interval.around(scale * (found.magnitude + zero))


def _multiply(view: BoundView) -> Interval | None:
    if view.get_input(0) == view.get_input(1):
        found = view.find_broadcast(0)
        return None if found is None else square(found)
    for position in (0, 1):  # by one over a root
        factor = _follow(view, view.get_input(1 - position), "Div", "Reciprocal")
        is_inverse = factor is not None and factor.operator == "Reciprocal"
        if factor and (is_inverse or factor.find(0, UNPADDED) == Interval(1.0, 1.0)):
            normalized = _bound_normalized(view, position, factor.get_input(0 if is_inverse else 1))
            if normalized is not None:
                return normalized
    return _combine(mul)(view)


def _divide(view: BoundView) -> Interval | None:
    normalized = _bound_normalized(view, 0, view.get_input(1))
    if normalized is not None:
        return normalized
    divisor = view.find_broadcast(1)
    if divisor is None or divisor.low <= 0 <= divisor.high:
        return None
    if to_numpy_dtype(view.graph.get_dtype(view.output)).kind != "f":
        return None
    found = view.find_broadcast(0)
    if found is None:
        return None
    ends = [x / y for x in (found.low, found.high) for y in (divisor.low, divisor.high)]
    return None if any(map(isnan, ends)) else Interval(min(ends), max(ends))


def _follow(view: BoundView, name: str, *operators: str) -> BoundView | None:
    """Return the node that makes a tensor, None where it is none of some operators."""
    number = view.graph.index.producers.get(name)
    found = None if number is None else BoundView(view.graph, number, name, UNPADDED, view.bounds)
    return found if found is not None and found.operator in operators else None


def _bound_normalized(view: BoundView, position: int, root_name: str) -> Interval | None:
    """Bound `d / sqrt(mean(d * d) + e)` by the root of the number of elements that the mean is of.

    `position` is that of `d` among the inputs, `root_name` the tensor that it is divided by.
    """
    root = _follow(view, root_name, "Sqrt")
    added = root and _follow(view, root.get_input(0), "Add")
    if not added:
        return None
    for side in (0, 1):
        mean = _follow(view, added.get_input(side), "ReduceMean")
        other = added.find(1 - side, UNPADDED)
        power = mean and _follow(view, mean.get_input(0), "Pow", "Mul")
        if not mean or not power or other is None or other.low <= 0:
            continue
        squared = {power.get_input(0)}
        if power.operator == "Mul":
            squared.add(power.get_input(1))
        elif power.find(1, UNPADDED) != Interval(2.0, 2.0):
            continue
        axes = mean.read_axes(1)
        if squared != {view.get_input(position)} or not axes or not mean.attributes.get("keepdims", 1):
            continue
        below = view.find_broadcast(position)
        if below is None or not (view.zone.is_unpadded or below.is_finite):
            return None
        shape = mean.get_shape(0)
        count = np.prod([view.graph.count(shape[axis]) for axis in axes])
        return Interval.around(sqrt(float(count)))
    return None


def _raise_to_power(view: BoundView) -> Interval | None:
    found, power = view.find_broadcast(0), view.find(1, UNPADDED)
    if found is None:
        return None
    if power == Interval(2.0, 2.0):
        return square(found)
    if power == Interval(3.0, 3.0):
        return Interval(_power(found.low, 3), _power(found.high, 3))
    exponent = view.find_broadcast(1)
    if exponent is None or not (found.low > 0 or (found.low == 0 and exponent.low >= 0)):
        return None
    return _meet_ends(_power, found, exponent)


def _power(value: float, exponent: float) -> float:
    try:
        return float(value**exponent)
    except OverflowError:
        return inf if value > 0 else -inf


def _clip(view: BoundView) -> Interval | None:
    found = view.find(0, view.zone)
    limits = [view.attributes.get(name) for name in ("min", "max")]
    for position in (1, 2):
        if view.get_input(position):
            bound = view.find(position, UNPADDED)
            if bound is None:
                return None
            limits[position - 1] = (bound.low, bound.high)[position - 1]
    if found is None:
        return None
    low = found.low if limits[0] is None else max(found.low, limits[0])
    high = found.high if limits[1] is None else min(found.high, limits[1])
    return Interval(min(low, high), max(low, high))


def _cast(view: BoundView) -> Interval | None:
    found = view.find(0, view.zone)
    kind = to_numpy_dtype(view.graph.get_dtype(view.output)).kind
    if found is None:
        return None
    if kind == "b":
        if found.is_zero:
            return ZERO
        return _UNIT if found.low <= 0 <= found.high else Interval(1.0, 1.0)
    if kind in "iu":
        return Interval(float(trunc(found.low)), float(trunc(found.high))) if found.is_finite else None
    return found if kind == "f" else None


def _compare(
    is_true: Callable[[Interval, Interval], bool], is_false: Callable[[Interval, Interval], bool]
) -> BoundRule:
    """Return the rule of a comparison by when it holds for all, and for none, of two intervals."""

    def rule(view: BoundView) -> Interval | None:
        a, b = view.find_broadcast(0), view.find_broadcast(1)
        if a is None or b is None:
            return None
        if is_true(a, b):
            return Interval(1.0, 1.0)
        return ZERO if is_false(a, b) else _UNIT

    return rule


def _choose(view: BoundView) -> Interval | None:
    condition = view.find_broadcast(0)
    if condition is not None and condition.low >= 1:
        return view.find_broadcast(1)
    if condition is not None and condition.is_zero:
        return view.find_broadcast(2)
    a, b = view.find_broadcast(1), view.find_broadcast(2)
    return None if a is None or b is None else a.join(b)


def _move(view: BoundView) -> Interval | None:
    """Bound what elements are moved: those of the input where they come from."""
    axes = map_moved_axes(view)
    repeats = view.operator in {"Expand", "Tile"}
    if not repeats and any(a not in axes for a, part in view.zone.parts if part is not Part.first):
        return None
    if view.operator in {"Reshape", "Flatten"}:
        before, after = view.get_shape(0), view.shape
        axes = {
            axis: source
            for axis, source in axes.items()
            if view.zone.get(axis) is not Part.first or before[source] == after[axis]
        }
    return view.find(0, view.zone.move(axes))


def _slice(view: BoundView) -> Interval | None:
    """Bound a Slice or a Split: by the whole axis where it cuts one."""
    before, after = view.get_shape(0), view.shape
    zone = view.zone
    for axis, part in view.zone.parts:
        if before[axis] != after[axis] or not view.graph.is_padded(before[axis]):
            zone = zone.with_part(axis, None if part is Part.first else Part.whole)
    return view.find(0, zone)


def _concatenate(view: BoundView) -> Interval | None:
    """Bound a Concat, of whose inputs the last alone is padded along its axis; skip empty ones."""
    axis = int(view.attributes["axis"]) % len(view.shape)
    last = len(view.node.input) - 1
    zone, positions = view.zone, [n for n in range(last + 1) if view.get_shape(n)[axis] != 0]
    if not positions:
        return None
    if zone.get(axis) is Part.rest:
        positions = [last]
    elif zone.get(axis) is Part.first:
        extent = view.get_shape(positions[0])[axis]
        if isinstance(extent, int) or len(positions) == 1:
            positions = positions[:1]
        else:
            zone = zone.with_part(axis, None)
    found = [view.find(position, zone) for position in positions]
    known = [each for each in found if each is not None]
    return reduce(Interval.join, known) if len(known) == len(found) else None


_PLAIN = {
    "Add": _combine(add),
    "And": _combine(min),
    "Cast": _cast,
    "Clip": _clip,
    "CastLike": _cast,
    "Concat": _concatenate,
    "DequantizeLinear": _dequantize,
    "Dropout": _drop_out,
    "Div": _divide,
    "Equal": _compare(
        lambda a, b: a == b and a.low == a.high, lambda a, b: a.high < b.low or b.high < a.low
    ),
    "Greater": _compare(lambda a, b: a.low > b.high, lambda a, b: a.high <= b.low),
    "GreaterOrEqual": _compare(lambda a, b: a.low >= b.high, lambda a, b: a.high < b.low),
    "Less": _compare(lambda a, b: a.high < b.low, lambda a, b: a.low >= b.high),
    "LessOrEqual": _compare(lambda a, b: a.high <= b.low, lambda a, b: a.low > b.high),
    "Max": _combine(max),
    "Mean": _average,
    "Min": _combine(min),
    "Mod": _take_rest,
    "Mul": _multiply,
    "Or": _combine(max),
    "PRelu": _apply_slopes,
    "Pow": _raise_to_power,
    "Slice": _slice,
    "Split": _slice,
    "Sub": _combine(sub),
    "Sum": _combine(add),
    "Where": _choose,
}
_MOVING = ("Transpose", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Tile", "Identity")

BOUND_RULES: Mapping[str, BoundRule] = {
    **FUNCTION_RULES,
    **_PLAIN,
    **dict.fromkeys(_MOVING, _move),
    **MATRIX_BOUND_RULES,
}
"""Operator, as rule files spell it, to its rule."""
