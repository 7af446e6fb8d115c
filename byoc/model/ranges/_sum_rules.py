"""Ranges of sums and products of many numbers: reductions, matrices, convolutions, pools."""

from collections.abc import Callable, Mapping
from functools import reduce
from math import inf, isfinite
from operator import sub
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model._constants import find_constant_value
from byoc.model._tensor_data import FLOAT_DTYPES, Dim
from byoc.model.ranges._intervals import (
    NUMBERS,
    Interval,
    RangedNode,
    RangeRule,
    RuleResult,
    TensorRange,
    absolute,
    combine_corners,
    multiply,
    repeat_sum,
    square,
    widen_floats,
)

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
