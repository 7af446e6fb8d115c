"""Ranges of operators that move or choose elements, and of sums and products of many."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import inf, isfinite
from operator import sub
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model._constants import find_constant_value
from byoc.model._tensor_data import FLOAT_DTYPES, Dim, read_array
from byoc.model.ranges._intervals import (
    NUMBERS,
    Interval,
    RangedNode,
    RangeRule,
    RuleResult,
    TensorRange,
    absolute,
    combine_corners,
    join_all,
    multiply,
    repeat_sum,
    square,
    widen_floats,
)


def _keep(node: RangedNode) -> TensorRange:
    """Return the range of an operator that keeps all elements and their order."""
    return node.get(0)


def _move(node: RangedNode) -> TensorRange:
    """Return the range of an operator whose elements are some of the first input's."""
    return node.get(0).drop_parts()


def _move_with_zeros(node: RangedNode) -> TensorRange:
    return TensorRange(node.get(0).whole.join(Interval(0, 0)))


def _measure_shape(node: RangedNode) -> TensorRange:
    shape = node.get_shape(0)
    if shape is None:
        return TensorRange(Interval(0, node.ranges.most_extent))
    ends = slice(node.attributes.get("start"), node.attributes.get("end"))
    return TensorRange.of_parts([node.bound_extent(dim) for dim in shape[ends]])


def _count_elements(node: RangedNode) -> TensorRange:
    shape = node.get_shape(0)
    return TensorRange.of_parts([node.bound_count((None,) if shape is None else shape)])


def _concatenate(node: RangedNode) -> TensorRange:
    found = node.get_all()
    if node.makes_vector:
        parts = [each.parts for each in found]
        if all(each is not None for each in parts):
            return TensorRange.of_parts([part for each in parts for part in each or ()])
    return TensorRange(join_all(each.whole for each in found if each.parts != ()))


def _gather(node: RangedNode) -> TensorRange:
    data = node.get(0)
    if data.parts and node.index.get_rank(node.inputs[0]) == 1:
        chosen = node.read(1)
        if chosen is not None and all(-len(data.parts) <= i < len(data.parts) for i in chosen):
            return TensorRange.of_parts([data.parts[int(i)] for i in chosen])
    return data.drop_parts()


def _slice(node: RangedNode) -> TensorRange:
    data = node.get(0)
    if not data.parts or node.index.get_rank(node.inputs[0]) != 1:
        return data.drop_parts()
    if "starts" in node.attributes:
        starts, ends = node.attributes["starts"], node.attributes["ends"]
    else:
        starts, ends = node.read(1), node.read(2)
    steps = node.read(4) if node.has(4) else [1]
    if not starts or not ends or not steps:
        return data.drop_parts()
    start, end, step = int(starts[0]), int(ends[0]), int(steps[0])
    if step < 0 and end < -len(data.parts):
        return TensorRange.of_parts(data.parts[start::step])
    return TensorRange.of_parts(data.parts[start:end:step])


def _split(node: RangedNode) -> RuleResult:
    data = node.get(0)
    shapes = [node.index.get_shape(name) for name in node.outputs]
    sizes = [shape[0] if shape is not None and len(shape) == 1 else None for shape in shapes]
    known = [size for size in sizes if isinstance(size, int)]
    if not data.parts or len(known) < len(sizes) or sum(known) != len(data.parts):
        return RuleResult(tuple(data.drop_parts() for _ in node.outputs))
    ends = [sum(known[: i + 1]) for i in range(len(known))]
    return RuleResult(
        tuple(
            TensorRange.of_parts(data.parts[end - size : end])
            for size, end in zip(known, ends, strict=True)
        )
    )


def _pad(node: RangedNode) -> TensorRange:
    data, mode = node.get(0).whole, node.attributes.get("mode", "constant")
    if mode not in ("constant", b"constant"):
        return TensorRange(data)
    filled = Interval.at(node.attributes["value"]) if "value" in node.attributes else Interval(0, 0)
    return TensorRange(data.join(node.get(2).whole if node.has(2) else filled))


def _fill(node: RangedNode) -> TensorRange | None:
    """Return the range of a ConstantOfShape."""
    value = node.attributes.get("value")
    element = 0 if value is None else read_array(value, None).ravel()[0].item()
    if not isinstance(element, (bool, int, float)):
        return None
    shape = node.index.get_shape(node.outputs[0])
    found = Interval.at(element)
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int):
        return TensorRange.of_parts([found] * shape[0]) if shape[0] <= 64 else TensorRange(found)
    return TensorRange(found)


def _count_up(node: RangedNode) -> TensorRange | None:
    """Return the range of a Range of whole numbers, which does not reach its limit."""
    if "int" not in node.get_output_dtype():
        return None
    start, limit, step = (node.get(i).whole for i in range(3))
    if step.low > 0:
        return TensorRange(Interval(start.low, max(start.low, limit.high - 1)))
    if step.high < 0:
        return TensorRange(Interval(min(start.high, limit.low + 1), start.high))
    return TensorRange(start.join(limit))


def _scatter(node: RangedNode) -> TensorRange:
    """Return the range of a scatter: of the data and the updates, or what a reduction makes of them."""
    position = len(node.inputs) - 1
    data, updates = node.get(0).whole, node.get(position).whole
    reduction = node.attributes.get("reduction", "none")
    count = node.bound_count(node.get_shape(position) or (None,))
    if reduction not in ("none", b"none", "min", b"min", "max", b"max"):
        if reduction not in ("add", b"add") or "int" not in node.get_output_dtype():
            return TensorRange(NUMBERS)
        sums = combine_corners(multiply, updates, count).join(Interval(0, 0))
        return TensorRange(Interval(data.low + sums.low, data.high + sums.high))
    return TensorRange(data.join(updates))


def _locate(node: RangedNode, axis: int) -> Interval:
    """Return the interval of positions along an axis of the first input."""
    return Interval(0, max(node.bound_axis(0, axis).high - 1, 0))


def _find_extreme(node: RangedNode) -> TensorRange:
    return TensorRange(_locate(node, node.attributes.get("axis", 0)))


def _select_largest(node: RangedNode) -> RuleResult:
    axis = node.attributes.get("axis", -1)
    return RuleResult((node.get(0).drop_parts(), TensorRange(_locate(node, axis))))


def _locate_nonzeros(node: RangedNode) -> TensorRange:
    shape = node.get_shape(0)
    bounds = [node.bound_extent(dim).high for dim in ((None,) if shape is None else shape)]
    return TensorRange(Interval(0, max(max(bounds, default=1) - 1, 0)))


def _find_distinct(node: RangedNode) -> RuleResult:
    shape, axis = node.get_shape(0), node.attributes.get("axis")
    counted = (None,) if shape is None else shape if axis is None else (shape[axis],)
    most = node.bound_count(counted).high
    places = TensorRange(Interval(0, max(most - 1, 0)))
    made = (node.get(0).drop_parts(), places, places, TensorRange(Interval(0, most)))
    return RuleResult(made[: len(node.outputs)])


def _select_boxes(node: RangedNode) -> TensorRange:
    """Return the range of the indices of a NonMaxSuppression: of a batch, a class and a box."""
    ends = [node.bound_axis(0, 1).high, *(node.bound_axis(1, axis).high for axis in (0, 1))]
    return TensorRange(Interval(0, max(max(ends) - 1, 0)))


def _encode_positions(node: RangedNode) -> TensorRange:
    return node.get(2).drop_parts()


def _resize(node: RangedNode) -> TensorRange | None:
    nearest = node.attributes.get("mode", "nearest") in ("nearest", b"nearest")
    cropped = node.attributes.get("coordinate_transformation_mode") in (
        *("tf_crop_and_resize", b"tf_crop_and_resize"),
    )
    return _move(node) if nearest and not cropped else None


def _pool(node: RangedNode) -> RuleResult:
    """Return the ranges of a MaxPool: elements, and their positions in the whole input."""
    most = node.bound_count(node.get_shape(0) or (None,)).high
    return RuleResult((node.get(0).drop_parts(), TensorRange(Interval(0, max(most - 1, 0)))))


def _draw_classes(node: RangedNode) -> TensorRange:
    return TensorRange(_locate(node, 1))


_KEEPING = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_MOVING = (
    *("Transpose", "Expand", "Tile", "GatherElements", "GatherND", "Compress", "ReverseSequence"),
    *("DepthToSpace", "SpaceToDepth", "GlobalMaxPool"),
)

MOVEMENT_RULES: Mapping[str, RangeRule] = {
    **dict.fromkeys(_KEEPING, _keep),
    **dict.fromkeys(_MOVING, _move),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    **dict.fromkeys(("ArgMax", "ArgMin"), _find_extreme),
    **dict.fromkeys(("Trilu", "CenterCropPad"), _move_with_zeros),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Concat": _concatenate,
    "ConstantOfShape": _fill,
    "Gather": _gather,
    "MaxPool": _pool,
    "Multinomial": _draw_classes,
    "NonMaxSuppression": _select_boxes,
    "NonZero": _locate_nonzeros,
    "OneHot": _encode_positions,
    "Pad": _pad,
    "Range": _count_up,
    "Shape": _measure_shape,
    "Size": _count_elements,
    "Slice": _slice,
    "Split": _split,
    "TopK": _select_largest,
    "Unique": _find_distinct,
}
"""Operator, as rule files spell it, to its rule."""

READ_POSITIONS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"), ()),
    **dict.fromkeys(("Multinomial", "ConstantOfShape", "EyeLike", "Hardmax", "Bernoulli"), ()),
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN"), ()),
    **dict.fromkeys(("Less", "LessOrEqual", "Or", "Xor", "QuantizeLinear"), ()),
    **dict.fromkeys(("DynamicQuantizeLinear", "Sigmoid", "Softmax", "HardSigmoid", "Tanh"), ()),
    **dict.fromkeys(("Erf", "Sin", "Cos", "Softsign", "Exp"), ()),
    "OneHot": (2,),
}
"""The inputs whose ranges rules ask for, where these are not all."""


# Ranges of sums and products of many numbers: reductions, matrices, convolutions, pools.


_EXACT = 1 << 24
"""Sums of at most this magnitude are exact even in float32: weights are not read to know them better."""
_MOST_READ = 1 << 20
"""Elements of weights that are added up; of more only the largest is known."""
_MOST_FACTORS = 128
"""A product of more numbers than this is taken to be unlimited; integers have no more bits."""


def _find_reduced(node: RangedNode) -> tuple[Dim, ...] | None:
    """Return the extents that a reduction is over; None where they are not known."""
    shape = node.get_shape(0)
    axes = node.read_axes(1)
    if shape is None:
        return None
    if axes is None:
        if node.has(1) and node.read(1) is None:  # axes that are known when it runs
            return None
        return shape
    return tuple(shape[axis] for axis in axes if -len(shape) <= axis < len(shape))


def _count_reduced(node: RangedNode) -> Interval:
    """Return the number of elements that each result of a reduction is made of."""
    reduced = _find_reduced(node)
    if reduced is None:
        return Interval(0, node.bound_count(node.get_shape(0) or (None,)).high)
    return node.bound_count(reduced)


def _reduces_vector(node: RangedNode) -> bool:
    """Return whether a vector whose elements are known one by one becomes one number."""
    return (
        bool(node.get(0).parts)
        and node.index.get_rank(node.inputs[0]) == 1
        and bool(_find_reduced(node))
    )


def _sum_up(function: Callable[[Interval], Interval]) -> RangeRule:
    """Return the rule of the sum of a function of each element."""

    def rule(node: RangedNode) -> RuleResult:
        found = node.get(0).map(function)
        if found.parts and _reduces_vector(node):
            low, high = (sum(end(p) for p in found.parts) for end in (_get_low, _get_high))
            summed = sum(part.magnitude for part in found.parts)
            return RuleResult((TensorRange.of_parts([Interval(low, high)]),), summed)
        count = _count_reduced(node)
        total = combine_corners(multiply, found.whole, count)
        widened = _widen_sums(node, total, count)
        return RuleResult((widened,), repeat_sum(found.whole, count).magnitude)

    return rule


def _get_low(found: Interval) -> float:
    return found.low


def _get_high(found: Interval) -> float:
    return found.high


def _widen_sums(node: RangedNode, found: Interval, count: Interval) -> TensorRange:
    """Return sums with room for as many roundings as there are terms, where they are of floats."""
    dtype = node.get_output_dtype()
    if dtype not in FLOAT_DTYPES:
        return TensorRange(found)
    return TensorRange(widen_floats(Interval.around(found.magnitude), dtype, count.high))


def _multiply_up(node: RangedNode) -> RuleResult:
    found = node.get(0)
    if found.parts and _reduces_vector(node):
        product = reduce(lambda a, b: combine_corners(multiply, a, b), found.parts)
        summed = reduce(multiply, (max(part.magnitude, 1) for part in found.parts))
        return RuleResult((TensorRange.of_parts([product]),), summed)
    count, most = _count_reduced(node).high, found.whole.magnitude
    largest: float = 1
    if most > 1:
        largest = most ** int(count) if count <= _MOST_FACTORS and isfinite(most) else inf
    low = 0 if found.whole.low >= 0 else -largest
    return RuleResult((TensorRange(Interval(low, largest)),), largest)


def _select_extreme(node: RangedNode) -> TensorRange:
    """Return the range of ReduceMax or ReduceMin; of no elements the end of the type is the result."""
    found, count = node.get(0).whole, _count_reduced(node)
    if count.low >= 1:
        return TensorRange(found)
    limits = node.get_limits()
    end = limits.low if node.operator == "ReduceMax" else limits.high
    return TensorRange(found.join(Interval.at(end)))


def _average(node: RangedNode) -> TensorRange:
    return _widen_sums(node, node.get(0).whole.join(Interval(0, 0)), _count_all(node, 0))


def _count_all(node: RangedNode, position: int) -> Interval:
    shape = node.get_shape(position)
    return Interval(0, node.ranges.most_extent) if shape is None else node.bound_count(shape)


def _add_along_axis(node: RangedNode) -> RuleResult:
    """Return the range of a CumSum."""
    axis = node.read(1)
    shape = node.get_shape(0)
    along = node.bound_axis(0, int(axis[0])).high if axis and shape else _count_all(node, 0).high
    found = repeat_sum(node.get(0).whole, Interval(0, along))
    return RuleResult((_widen_sums(node, found, Interval(0, along)),), found.magnitude)


def _accumulate(a: Interval, b: Interval, terms: float, start: Interval) -> RuleResult:
    """Return the range of a sum of products of two intervals, which begins at `start`."""
    found = repeat_sum(combine_corners(multiply, a, b), Interval(0, terms))
    whole = Interval(found.low + start.low, found.high + start.high)
    return RuleResult((TensorRange(whole),), max(found.magnitude + start.magnitude, whole.magnitude))


_NOTHING = Interval(0, 0)


def _count_inner(node: RangedNode, position: int) -> float:
    """Return the extent that a product of matrices sums over: the last of its first operand."""
    return node.bound_axis(position, -1).high


def _multiply_matrices(node: RangedNode) -> RuleResult | None:
    if node.get_output_dtype() in FLOAT_DTYPES:
        return None
    return _accumulate(node.get(0).whole, node.get(1).whole, _count_inner(node, 0), _NOTHING)


def _shift(node: RangedNode, position: int, zero: int) -> Interval:
    """Return the range of quantized numbers without their zero point."""
    moved = node.get(zero).whole if node.has(zero) else _NOTHING
    return combine_corners(sub, node.get(position).whole, moved)


def _read_weights(node: RangedNode, position: int, zero: int) -> NDArray[Any] | None:
    """Return constant weights without their zero point, int32, output channels first; None if unknown.

    The zero point is one for all, or one for each channel: the first axis of convolutions, the last of
    matrices.
    """
    name, index = node.inputs[position], node.index
    kind = index.types.get(name)
    if not index.is_constant(name) or kind is None or not 0 < (kind.elements or 0) <= _MOST_READ:
        return None
    weights = find_constant_value(index, name)
    moved = find_constant_value(index, node.inputs[zero]) if node.has(zero) else np.zeros((), np.int64)
    if weights is None or moved is None or weights.dtype.kind not in "iu" or weights.ndim < 2:
        return None
    whole = weights.astype(np.int32)
    if "MatMul" in node.operator:
        whole = np.moveaxis(whole, -1, 0)
    if moved.size not in (1, whole.shape[0]):
        return None
    return whole - moved.astype(np.int32).reshape(-1, *[1] * (whole.ndim - 1))


def _weigh(node: RangedNode, places: tuple[int, int], terms: float, start: Interval) -> RuleResult:
    """Return the range of sums of integers by weights; `places` are those of the weights and zero point.

    Where the weights are constant the sum over each channel is known, else so many of the largest terms.
    """
    read = _shift(node, 0, 2)
    found = _accumulate(read, _shift(node, *places), terms, start)
    weights = _read_weights(node, *places) if found.summed > _EXACT else None
    if weights is None:
        return found
    axes = tuple(range(1, weights.ndim))
    above, below = (np.maximum(each, 0).sum(axis=axes) for each in (weights, -weights))
    low, high = min(read.low, 0), max(read.high, 0)  # partial sums and padding are of fewer terms
    most = max(int(a) * high - int(b) * low for a, b in zip(above, below, strict=True))
    least = min(int(a) * low - int(b) * high for a, b in zip(above, below, strict=True))
    whole = Interval(least + start.low, most + start.high)
    summed = max(most, -least) + start.magnitude
    return RuleResult((TensorRange(whole),), summed)


def _multiply_integers(node: RangedNode) -> RuleResult:
    return _weigh(node, (1, 3), _count_inner(node, 0), _NOTHING)


def _count_window(node: RangedNode, position: int) -> float:
    """Return the number of products that a convolution sums: the weights of one output channel."""
    shape = node.get_shape(position)
    return node.ranges.most_extent if shape is None else node.bound_count(shape[1:]).high


def _convolve_integers(node: RangedNode) -> RuleResult:
    return _weigh(node, (1, 3), _count_window(node, 1), _NOTHING)


def _saturate(node: RangedNode, found: RuleResult) -> RuleResult:
    """Return a result that is rounded to the output's dtype, which is saturated by definition."""
    return RuleResult((TensorRange(node.get_limits()),), found.summed)


def _convolve_quantized(node: RangedNode) -> RuleResult:
    start = node.get(8).whole if node.has(8) else _NOTHING
    return _saturate(node, _weigh(node, (3, 5), _count_window(node, 3), start))


def _multiply_quantized(node: RangedNode) -> RuleResult:
    return _saturate(node, _weigh(node, (3, 5), _count_inner(node, 0), _NOTHING))


def _multiply_general(node: RangedNode) -> RuleResult | None:
    """Return the range of a Gemm of whole numbers."""
    if node.get_output_dtype() in FLOAT_DTYPES:
        return None
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if not alpha.is_integer() or not beta.is_integer():
        return _give_up(node)
    first = 0 if node.attributes.get("transA") else 1
    terms = node.bound_axis(0, first).high
    added = node.get(2).whole if node.has(2) else _NOTHING
    scaled = combine_corners(multiply, node.get(0).whole, Interval.at(int(alpha)))
    start = combine_corners(multiply, added, Interval.at(int(beta)))
    return _accumulate(scaled, node.get(1).whole, terms, start)


def _give_up(node: RangedNode) -> RuleResult:
    """Return the interval of sums of an unknown number of elements."""
    del node
    return RuleResult((TensorRange(NUMBERS),), inf)


def _contract(node: RangedNode) -> RuleResult | None:
    return None if node.get_output_dtype() in FLOAT_DTYPES else _give_up(node)


SUM_RULES: Mapping[str, RangeRule] = {
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _select_extreme),
    **dict.fromkeys(("ReduceMean", "AveragePool", "GlobalAveragePool"), _average),
    "ConvInteger": _convolve_integers,
    "CumSum": _add_along_axis,
    "Einsum": _contract,
    "Gemm": _multiply_general,
    "MatMul": _multiply_matrices,
    "MatMulInteger": _multiply_integers,
    "QLinearConv": _convolve_quantized,
    "QLinearMatMul": _multiply_quantized,
    "ReduceL1": _sum_up(absolute),
    "ReduceProd": _multiply_up,
    "ReduceSum": _sum_up(lambda found: found),
    "ReduceSumSquare": _sum_up(square),
}
"""Operator, as rule files spell it, to its rule."""
