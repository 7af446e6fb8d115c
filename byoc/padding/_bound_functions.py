"""Bounds of operators that compute one number of one number, by the documentation of each operator.

Sources: the operators of ONNX (https://onnx.ai/onnx/operators/) and onnxruntime's contrib operators
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).
"""

import math
from collections.abc import Callable, Mapping
from math import inf, isfinite

from byoc.model.ranges import ZERO, Interval, absolute
from byoc.padding._bound_matrix_rules import BoundRule, BoundView

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
