"""Ranges of operators that compute element by element."""

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf, isfinite, sqrt
from operator import add, sub

from byoc.model._tensor_data import FLOAT_DTYPES
from byoc.model.ranges._intervals import (
    MAX_PARTS,
    NUMBERS,
    TRUTH,
    Interval,
    RangedNode,
    RangeRule,
    RuleResult,
    TensorRange,
    absolute,
    combine_corners,
    divide_whole,
    limit_of_dtype,
    multiply,
    round_down,
    round_to_zero,
    round_up,
    square,
)

Combination = Callable[[Interval, Interval], Interval]


def _zip(node: RangedNode, function: Combination, *found: TensorRange) -> TensorRange:
    """Return the range of a function of operands that are broadcast, element by element if few."""

    def combine(a: TensorRange, b: TensorRange) -> TensorRange:
        whole = function(a.whole, b.whole)
        if a.parts is None or b.parts is None or not node.makes_vector:
            return TensorRange(whole)
        size = max(len(a.parts), len(b.parts))
        if 1 not in (len(a.parts), len(b.parts)) and len(a.parts) != len(b.parts):
            return TensorRange(whole)
        if size > MAX_PARTS or not a.parts or not b.parts:
            return TensorRange(whole)
        pairs = zip(_stretch(a.parts, size), _stretch(b.parts, size), strict=True)
        return TensorRange.of_parts([function(one, other) for one, other in pairs])

    return reduce(combine, found)


def _stretch(parts: tuple[Interval, ...], size: int) -> tuple[Interval, ...]:
    return parts * size if len(parts) == 1 else parts


def _combine(function: Callable[[float, float], float]) -> RangeRule:
    """Return the rule of a function of operands that is monotone in each, whichever way."""

    def rule(node: RangedNode) -> TensorRange:
        return _zip(node, lambda a, b: combine_corners(function, a, b), *node.get_all())

    return rule


def _map(function: Callable[[Interval], Interval]) -> RangeRule:
    return lambda node: node.get(0).map(function)


def _rise(function: Callable[[float], float]) -> RangeRule:
    """Return the rule of a function of one operand that does not fall."""
    return _map(lambda found: Interval(function(found.low), function(found.high)))


def _stay_between(low: float, high: float) -> RangeRule:
    return lambda _: Interval(low, high)


def _multiply(node: RangedNode) -> TensorRange:
    if node.inputs[0] == node.inputs[1]:
        return node.get(0).map(square)
    return _combine(multiply)(node)  # type: ignore[return-value]


def _divide(node: RangedNode) -> TensorRange:
    whole = node.get_output_dtype() not in FLOAT_DTYPES
    return _zip(node, _divide_integers if whole else _divide_floats, node.get(0), node.get(1))


def _divide_integers(a: Interval, b: Interval) -> Interval:
    """Divide, rounding towards 0; nothing is defined of a division by 0."""
    parts = [Interval(max(b.low, 1), b.high)] if b.high >= 1 else []
    parts += [Interval(b.low, min(b.high, -1))] if b.low <= -1 else []
    if not parts:
        return NUMBERS
    found = reduce(Interval.join, (combine_corners(divide_whole, a, part) for part in parts))
    return found.join(Interval(0, 0)) if a.low <= 0 <= a.high else found


def _divide_floats(a: Interval, b: Interval) -> Interval:
    if b.low <= 0 <= b.high:
        return NUMBERS
    return combine_corners(lambda x, y: x / y, _as_floats(a), _as_floats(b))


def _as_floats(found: Interval) -> Interval:
    return Interval(float(found.low), float(found.high))


def _take_rest(node: RangedNode) -> TensorRange:
    fmod = bool(node.attributes.get("fmod")) or node.get_output_dtype() in FLOAT_DTYPES

    def rest(a: Interval, b: Interval) -> Interval:
        most = max(b.magnitude - (0 if node.get_output_dtype() in FLOAT_DTYPES else 1), 0)
        if fmod:  # the sign is that of the dividend
            found = Interval(-most if a.low < 0 else 0, most if a.high > 0 else 0)
            return found.meet(Interval(min(a.low, 0), max(a.high, 0)))
        found = Interval(-most if b.low < 0 else 0, most if b.high > 0 else 0)
        if a.low >= 0 and b.low >= 0:
            return found.meet(Interval(0, a.high))
        return found

    return _zip(node, rest, node.get(0), node.get(1))


_MOST_POWER = 128  # more than any integer type has bits


def _raise_to_power(node: RangedNode) -> TensorRange:
    def power(base: Interval, exponent: Interval) -> Interval:
        if exponent.low == exponent.high == 2:
            return square(base)
        least, most = base.magnitude, exponent.high
        if node.get_output_dtype() in FLOAT_DTYPES and exponent.low < 0:
            return NUMBERS
        if not isfinite(least) or most > _MOST_POWER:
            return NUMBERS if least > 1 else Interval(-1, 1)
        largest = max(least, 1) ** max(int(round_up(most)), 0)
        return Interval(0 if base.low >= 0 else -largest, largest)

    return _zip(node, power, node.get(0), node.get(1))


def _clip(node: RangedNode) -> TensorRange:
    ends = [node.attributes.get(name) for name in ("min", "max")]
    low, high = (Interval.at(end) if end is not None else None for end in ends)
    if node.has(1):
        low = node.get(1).whole
    if node.has(2):
        high = node.get(2).whole

    def clip(found: Interval) -> Interval:
        if low is not None:
            found = combine_corners(max, found, low)
        return found if high is None else combine_corners(min, found, high)

    return node.get(0).map(clip)


def _cast(node: RangedNode) -> TensorRange:
    return convert(node.get(0), node.get_dtype(0), node.get_output_dtype())


def convert(found: TensorRange, before: str, after: str) -> TensorRange:
    """Return a range in another dtype, before it wraps; nothing is defined of floats beyond integers."""
    if after == "bool":
        return found.map(_tell_zero)
    if not before or before == "string":
        return TensorRange(limit_of_dtype(after))
    if "int" not in after or before == "bool" or "int" in before:
        return found
    limits = limit_of_dtype(after)

    def truncate(part: Interval) -> Interval:
        whole = Interval(round_to_zero(part.low), round_to_zero(part.high))
        return whole if limits.holds(whole) else limits

    return found.map(truncate)


def _tell_zero(found: Interval) -> Interval:
    if found.is_zero:
        return found
    return TRUTH if found.low <= 0 <= found.high else Interval(1, 1)


def _choose(node: RangedNode) -> TensorRange:
    condition = node.get(0)

    a, b = node.get(1), node.get(2)
    if condition.whole.low >= 1 and condition.parts != ():
        return a.drop_parts()
    if condition.whole.is_zero and condition.parts != ():
        return b.drop_parts()
    if condition.parts and a.parts and b.parts and node.makes_vector:
        size = max(len(condition.parts), len(a.parts), len(b.parts))
        if all(len(each.parts or ()) in (1, size) for each in (condition, a, b)):
            rows = zip(*(_stretch(each.parts or (), size) for each in (condition, a, b)), strict=True)
            return TensorRange.of_parts([_choose_part(*row) for row in rows])
    return TensorRange(a.whole.join(b.whole))


def _choose_part(truth: Interval, a: Interval, b: Interval) -> Interval:
    if truth.low >= 1:
        return a
    return b if truth.is_zero else a.join(b)


def _negate(found: Interval) -> Interval:
    return Interval(-found.high, -found.low)


def _tell_sign(value: float) -> float:
    return (value > 0) - (value < 0)


def _invert_bits(node: RangedNode) -> TensorRange:
    limits = node.get_limits()
    most = limits.high if limits.low == 0 else -1
    return node.get(0).map(lambda found: Interval(most - found.high, most - found.low))


def _combine_bits(node: RangedNode) -> TensorRange:
    """Bound what bits of two numbers give: no more bits than the larger has."""

    def combine(a: Interval, b: Interval) -> Interval:
        if a.low < 0 or b.low < 0:
            most = max(a.magnitude, b.magnitude)
            return Interval(-_fill_bits(most) - 1, _fill_bits(most))
        if node.operator == "BitwiseAnd":
            return Interval(0, min(a.high, b.high))
        return Interval(0, _fill_bits(max(a.high, b.high)))

    return _zip(node, combine, node.get(0), node.get(1))


def _fill_bits(most: float) -> float:
    return 2 ** int(most).bit_length() - 1 if isfinite(most) else inf


def _shift_bits(node: RangedNode) -> TensorRange:
    direction = node.attributes.get("direction")
    left = direction in ("LEFT", b"LEFT")

    def shift(a: Interval, b: Interval) -> Interval:
        bits = Interval(*(int(max(min(end, _MOST_POWER), 0)) for end in (b.low, b.high)))
        if left:
            return combine_corners(lambda value, by: multiply(value, 2**by), a, bits)
        return combine_corners(lambda value, by: int(value) >> int(by), a, bits) if a.is_finite else a

    return _zip(node, shift, node.get(0), node.get(1))


def _dequantize(node: RangedNode) -> TensorRange:
    zero = node.get(2).whole if node.has(2) else Interval(0, 0)
    moved = combine_corners(sub, node.get(0).whole, zero)
    return TensorRange(combine_corners(multiply, moved, node.get(1).whole))


def _quantize(node: RangedNode) -> RuleResult:
    """Return the range of the quantized type: quantization saturates by its definition."""
    return RuleResult(
        tuple(
            TensorRange(node.get_limits(i)) if name and "int" in node.get_output_dtype(i) else None
            for i, name in enumerate(node.outputs)
        )
    )


def _take_root(found: Interval) -> Interval:
    return Interval(sqrt(max(found.low, 0)), sqrt(found.high) if found.high > 0 else 0.0)


def _invert(found: Interval) -> Interval:
    return _divide_floats(Interval(1, 1), found)


def _drop_out(node: RangedNode) -> RuleResult:
    trained = node.has(2) and node.read(2) != [0]
    return RuleResult((None if trained else node.get(0), TensorRange(TRUTH)))


def _round_half(value: float) -> float:
    return float(round(value)) if isfinite(value) else value


_COMPARISONS = (
    *("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Or", "Xor"),
    *("EyeLike", "Hardmax", "Bernoulli"),
)
# A share of the range that functions of floats may be off.
_ROOM = 1e-3
_UNIT = _stay_between(-_ROOM, 1 + _ROOM)
_AROUND_UNIT = _stay_between(-1 - _ROOM, 1 + _ROOM)

ELEMENT_RULES: Mapping[str, RangeRule] = {
    **dict.fromkeys(_COMPARISONS, _stay_between(0, 1)),
    **dict.fromkeys(("Sigmoid", "Softmax", "HardSigmoid"), _UNIT),
    **dict.fromkeys(("Tanh", "Erf", "Sin", "Cos", "Softsign"), _AROUND_UNIT),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _combine_bits),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Abs": _map(absolute),
    "Add": _combine(add),
    "BitShift": _shift_bits,
    "BitwiseNot": _invert_bits,
    "Ceil": _rise(round_up),
    "Clip": _clip,
    "DequantizeLinear": _dequantize,
    "Div": _divide,
    "Dropout": _drop_out,
    "DynamicQuantizeLinear": _quantize,
    "Floor": _rise(round_down),
    "Max": _combine(max),
    "Min": _combine(min),
    "Mod": _take_rest,
    "Mul": _multiply,
    "Neg": _map(_negate),
    "Not": _map(lambda found: Interval(1 - found.high, 1 - found.low)),
    "Pow": _raise_to_power,
    "QuantizeLinear": _quantize,
    "Reciprocal": _map(_invert),
    "Relu": _rise(lambda value: max(value, 0)),
    "Round": _rise(_round_half),
    "Sign": _rise(_tell_sign),
    "Sqrt": _map(_take_root),
    "Sub": _combine(sub),
    "Sum": _combine(add),
    "Where": _choose,
}
"""Operator, as rule files spell it, to its rule."""
