"""Rules of alignment for sums and extremes along axes, and for windows that slide along them."""

from collections.abc import Mapping

from byoc.padding._alignment_view import AlignmentRule, AlignmentView
from byoc.padding._padded_graph import NotAlignedError
from byoc.padding._zones import Part, Zone

_SUMS = frozenset({"ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"})


def _align_reduction(view: AlignmentView) -> None:
    """Check a reduction: sums whose padding is 0, and extremes that padding does not exceed."""
    view.require_data()
    shape = view.get_shape(0)
    axes = view.read_axes(1)
    if not axes and view.attributes.get("noop_with_empty_axes", 0):
        return
    over = {axis % len(shape) for axis in (axes or range(len(shape)))}
    padded = [axis for axis in sorted(over) if view.graph.is_padded(shape[axis])]
    if not padded:
        return
    where = f"over axis {padded[0]}, which is {shape[padded[0]]} long"
    if view.operator in _SUMS:
        check_zero(view, 0, padded, f"it sums {where}")
        return
    if view.operator in {"ReduceMax", "ReduceMin"} and len(padded) == 1:
        _check_extreme(view, padded[0], where)
        return
    raise NotAlignedError(f"it reduces {where}")


def check_zero(view: AlignmentView, position: int, axes: list[int], what: str) -> None:
    """Raise NotAlignedError unless what padding adds to an input along some axes is 0."""
    for axis in axes:
        parts = {other: Part.whole for other in axes if other != axis}
        found = view.find_bounds(position, Zone.of({**parts, axis: Part.rest}))
        if found is None or not found.is_zero:
            raise NotAlignedError(f"{what}, and padding is not proven to be 0 there", by_value=True)


def _check_extreme(view: AlignmentView, axis: int, where: str) -> None:
    rest = view.find_bounds(0, Zone.of({axis: Part.rest}))
    first = view.find_bounds(0, Zone.of({axis: Part.first}))
    largest = view.operator == "ReduceMax"
    if rest is not None and first is not None:
        if largest and rest.high <= first.low:
            return
        if not largest and rest.low >= first.high:
            return
    what = "largest" if largest else "smallest"
    raise NotAlignedError(f"it takes the {what} {where}, which may be one of padding", by_value=True)


def _align_choice(view: AlignmentView) -> None:
    """Check an ArgMax, ArgMin, TopK or the like, which chooses along one axis."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    default = -1 if view.operator == "TopK" else 0
    view.require_unpadded(0, [int(view.attributes.get("axis", default))], "it chooses along")


def _align_cumulative_sum(view: AlignmentView) -> None:
    view.require_data()
    view.require_same(1)
    shape, axes = view.get_shape(0), view.find_elements(1)
    if axes is None or len(axes) != 1 or not isinstance(axes[0], int):
        raise NotAlignedError("its axis is not known")
    axis = axes[0] % len(shape)
    if view.attributes.get("reverse", 0) and view.graph.is_padded(shape[axis]):
        check_zero(view, 0, [axis], f"it sums from the end of axis {axis}")


def _align_convolution(view: AlignmentView) -> None:
    """Check a Conv: along a padded axis no window reaches what padding adds, or that is 0.

    A window that begins in the unpadded output ends before the unpadded input does, unless pads are
    added at its end; these are zeros, as padding has to be then.
    """
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    view.require_unpadded(0, [1], "it sums over the channels,")
    padded = [axis for axis in view.list_padded(0) if axis >= 2]
    if not padded:
        return
    pads = _read_pads(view)
    if any(pads[len(pads) // 2 + axis - 2] > 0 for axis in padded):
        check_zero(view, 0, padded, f"its windows reach beyond the end of axis {padded[0]}")


def _read_pads(view: AlignmentView) -> list[int]:
    if view.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        if view.attributes["auto_pad"] == "VALID":
            return [0] * (2 * (len(view.get_shape(0)) - 2))
        raise NotAlignedError("its windows are laid out by the size (auto_pad)")
    pads = view.attributes.get("pads") or [0] * (2 * (len(view.get_shape(0)) - 2))
    return [int(pad) for pad in pads]


def _align_pool(view: AlignmentView) -> None:
    """Check a MaxPool or AveragePool whose windows do not reach beyond the end of a padded axis."""
    view.require_data()
    padded = [axis for axis in view.list_padded(0) if axis >= 2]
    if not padded:
        return
    if view.attributes.get("ceil_mode", 0) or view.has_output(1):
        raise NotAlignedError("its last window depends on the size")
    pads = _read_pads(view)
    for axis in padded:
        if pads[len(pads) // 2 + axis - 2] > 0:
            raise NotAlignedError(f"its windows reach beyond the end of axis {axis}")


def _align_batch(view: AlignmentView) -> None:
    """Check an operator that goes over all axes of an image: the batch alone may be padded."""
    view.require_data()
    rank = len(view.get_shape(0))
    view.require_unpadded(0, range(1, rank), "it goes over")
    view.require_same(*range(1, len(view.node.input)))
    view.require_equal(view.get_output_shape()[0], view.get_shape(0)[0])


def _align_recurrence(view: AlignmentView) -> None:
    """Check an RNN, GRU or LSTM: X [length, batch, input], each sequence of the batch by itself."""
    view.require_data()
    view.require_same(1, 2, 3)
    if view.attributes.get("layout", 0):
        raise NotAlignedError("its layout has the batch first")
    batch = view.get_shape(0)[1]
    view.require_unpadded(0, [0, 2], "it goes step by step along")
    for position, axis in ((4, 0), (5, 1), (6, 1)):
        if view.get_input(position):
            view.require_equal(view.get_shape(position)[axis], batch)
    view.require_same(*range(7, len(view.node.input)))


_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
_OF_BATCH = (
    *("ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("GroupNormalization", "InstanceNormalization", "LRN", "Resize", "SpaceToDepth", "Upsample"),
)

REDUCTION_RULES: Mapping[str, AlignmentRule] = {
    **dict.fromkeys(_REDUCTIONS, _align_reduction),
    **dict.fromkeys(_OF_BATCH, _align_batch),
    "ArgMax": _align_choice,
    "ArgMin": _align_choice,
    "AveragePool": _align_pool,
    "Conv": _align_convolution,
    "CumSum": _align_cumulative_sum,
    "GRU": _align_recurrence,
    "LSTM": _align_recurrence,
    "MaxPool": _align_pool,
    "RNN": _align_recurrence,
    "TopK": _align_choice,
}
"""Operator, as rule files spell it, to its rule."""
