"""Ranges of operators that move elements, choose among them, or tell shapes and positions."""

from collections.abc import Mapping, Sequence

from byoc.model._tensor_data import read_array
from byoc.model.ranges._intervals import (
    NUMBERS,
    Interval,
    RangedNode,
    RangeRule,
    RuleResult,
    TensorRange,
    combine_corners,
    join_all,
    multiply,
)


def _keep(node: RangedNode) -> TensorRange:
    """Return the range of an operator that keeps all elements and their order."""
    return node.get(0)


def _move(node: RangedNode) -> TensorRange:
    """Return the range of an operator whose elements are some of the first input's."""
    return node.get(0).drop_parts()


def _join(node: RangedNode) -> TensorRange:
    return TensorRange(join_all(found.whole for found in node.get_all()))


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
