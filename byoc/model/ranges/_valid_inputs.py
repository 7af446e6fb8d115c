"""Intervals that a valid model implies: indices lie below the rows that they look into.

ONNX makes it an error for an index to be outside of its table. So what is used as an index, or becomes
one by being moved, is within the table in every run that has a result.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from byoc.model._constants import get_constant_value
from byoc.model.ranges._intervals import Interval, limit_of_dtype
from byoc.model.ranges._ranged_node import RangedNode

if TYPE_CHECKING:
    from byoc.model.ranges._value_ranges import ValueRanges

Limits = Mapping[str, Interval]
_Limit = tuple[str, Interval]


def find_valid_ranges(ranges: "ValueRanges") -> dict[str, Interval]:
    """Return the intervals that tensors of a graph lie within in every run that is defined.

    All nodes of a graph run whenever one does.
    """
    found: dict[str, Interval] = {}
    kinds, made = ranges.index.node_kinds, ranges.index.node_outputs
    for number in reversed(range(len(kinds))):
        rule = _RULES.get(kinds[number].operator)
        if rule is None or (rule in _PASSING and made[number][0] not in found):
            continue
        for name, interval in rule(RangedNode(ranges, number), found):
            known = found.get(name)
            found[name] = interval if known is None else known.meet(interval)
    return found


def _index_rows(node: RangedNode, position: int, rows: float) -> Iterator[_Limit]:
    if node.has(position) and 0 < rows < inf:
        yield node.inputs[position], Interval(-rows, rows - 1)


def _index_along_axis(node: RangedNode, _: Limits) -> Iterator[_Limit]:
    yield from _index_rows(node, 1, node.bound_axis(0, node.attributes.get("axis", 0)).high)


def _index_tuples(node: RangedNode, _: Limits) -> Iterator[_Limit]:
    """Yield the limits of a GatherND or ScatterND, whose indices are tuples for several axes."""
    shape = node.get_shape(0)
    if shape is not None and shape:
        yield from _index_rows(node, 1, max(node.bound_extent(dim).high for dim in shape))


def _embed(node: RangedNode, _: Limits) -> Iterator[_Limit]:
    """Yield the limits of onnxruntime's EmbedLayerNormalization: ids, segments, positions."""
    for position, table in ((0, 2), (1, 4), (8, 3)):
        if node.has(table):
            yield from _index_rows(node, position, node.bound_axis(table, 0).high)


def _pass_to_all(node: RangedNode, limits: Limits) -> Iterator[_Limit]:
    known = limits.get(node.outputs[0])
    if known is not None:
        for name in node.inputs if node.operator == "Concat" else node.inputs[:1]:
            yield name, known


def _pass_if_any(node: RangedNode, limits: Limits) -> Iterator[_Limit]:
    """Yield the limit of what is repeated, unless it may be repeated no times."""
    shape = node.index.get_shape(node.outputs[0])
    if shape is not None and all(isinstance(dim, int) and dim > 0 for dim in shape):
        yield from _pass_to_all(node, limits)


def _pass_if_kept(node: RangedNode, limits: Limits) -> Iterator[_Limit]:
    """Yield the limit of what is cast to a type that holds all of it."""
    before, after = (limit_of_dtype(each) for each in (node.get_dtype(0), node.get_output_dtype()))
    if "int" in node.get_dtype(0) and "int" in node.get_output_dtype() and after.holds(before):
        yield from _pass_to_all(node, limits)


def _move_by_constant(node: RangedNode, limits: Limits) -> Iterator[_Limit]:
    """Yield the limit of a number that a constant is added to or subtracted from."""
    known, held = limits.get(node.outputs[0]), limit_of_dtype(node.get_output_dtype())
    positions = ((0, 1), (1, 0)) if node.operator == "Add" else ((0, 1),)
    for position, other in positions if known is not None and held.low < 0 else ():
        added = get_constant_value(node.index, node.inputs[other])
        if added is None or not added.size or added.min() != added.max() or known is None:
            continue
        offset = added.min().item() * (1 if node.operator == "Add" else -1)
        if known.magnitude + abs(offset) < held.high:  # else a sum that wraps may be within
            yield node.inputs[position], Interval(known.low - offset, known.high - offset)


_RULES: Mapping[str, Callable[[RangedNode, Limits], Iterator[_Limit]]] = {
    **dict.fromkeys(("Gather", "GatherElements", "Scatter", "ScatterElements"), _index_along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _index_tuples),
    **dict.fromkeys(("Add", "Sub"), _move_by_constant),
    **dict.fromkeys(("Expand", "Tile"), _pass_if_any),
    **dict.fromkeys(
        ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Concat"), _pass_to_all
    ),
    "Cast": _pass_if_kept,
    "com.microsoft.EmbedLayerNormalization": _embed,
}
_PASSING = (_move_by_constant, _pass_if_any, _pass_if_kept, _pass_to_all)
"""The rules that pass the limits of an output on to inputs."""
