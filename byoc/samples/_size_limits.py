"""Limits that the tables and masks in a model set to its open dimensions, and sizes within them.

A model rarely states how long its sequences may be, but it holds tables of that length: positions that
are gathered or cut to the length, caches of rotations, causal masks, rows for the patches of an image.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.model import (
    Dim,
    GraphIndex,
    add_dims,
    evaluate_dim,
    get_constant_value,
    get_input,
    list_dim_names,
    max_dims,
    min_dims,
    subtract_dims,
)
from byoc.model.ranges import Interval
from byoc.samples._size_relations import list_met_extents

LARGEST_SIZE = 1 << 16
"""The largest size that is tried: more positions than tables of positions have rows."""
_MAX_STEPS = 64
"""Nodes that are followed from where a table is read to the table: a few moves of axes and casts."""

Complete = Callable[[Mapping[str, int]], Mapping[str, int]]
"""Returns the sizes of all names, given those of the free ones."""


@dataclass(frozen=True)
class ExtentLimit:
    """Two extents that are equal in every run that has a result, or the first is at most the second.

    `source` says what in the model asks for it, such as `'position_ids' has 64 rows`.
    """

    one: Dim
    other: Dim
    at_most: bool
    source: str

    @property
    def names(self) -> frozenset[str]:
        """The names in both extents."""
        return list_dim_names(self.one) | list_dim_names(self.other)

    def measure(self, sizes: Mapping[str, int]) -> int | None:
        """Return the distance of the first extent from an allowed one, None where it is unknown."""
        one, other = evaluate_dim(self.one, sizes), evaluate_dim(self.other, sizes)
        if one is None or other is None:
            return None
        return max(one - other, 0) if self.at_most else one - other

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a model may run at some sizes, as far as is known."""
        if self.measure(sizes) in (0, None):
            return True
        return not self.at_most and 1 in (evaluate_dim(self.one, sizes), evaluate_dim(self.other, sizes))


def find_limits(index: GraphIndex, open_names: Collection[str]) -> list[ExtentLimit]:
    """Return the limits on open extents of a model's inputs that its main graph sets, each once."""
    found: dict[tuple[Dim, Dim], ExtentLimit] = {}
    for number, node in enumerate(index.nodes):
        for limit in (*_list_met(index, node), *_list_gathered(index, number, node)):
            if limit.names and limit.names <= set(open_names):
                found.setdefault((limit.one, limit.other), limit)
    return [*found.values()]


def _list_met(graph: GraphIndex, node: NodeProto) -> Iterator[ExtentLimit]:
    """Yield the limits of extents that meet in a node of which one at least is calculated."""
    for one, other in list_met_extents(graph, node):
        if one == other or None in (one, other) or 1 in (one, other):
            continue
        if any(isinstance(dim, str) and list_dim_names(dim) != {dim} for dim in (one, other)):
            yield ExtentLimit(one, other, False, _describe_meeting(graph, node, one, other))


def _describe_meeting(graph: GraphIndex, node: NodeProto, *dims: Dim) -> str:
    """Describe the constant tensor that brings an extent into a node which the other has to equal."""
    for name in node.input:
        shape = graph.get_shape(name) or ()
        if graph.is_constant(name) and (rows := [dim for dim in dims if dim in shape]):
            return _describe_table(name, rows[0])
    for dim in dims:
        found = next(filter(None, (_find_cut_table(graph, name, dim) for name in node.input)), "")
        if found:
            return found
    return f"{node.op_type} '{node.name or node.output[0]}' asks for it"


def _find_cut_table(graph: GraphIndex, name: str, dim: Dim) -> str:
    """Describe the table that a Slice cuts to an extent, empty where there is none before a tensor."""
    table = ""
    for _ in range(_MAX_STEPS):
        number = graph.producers.get(name)
        if number is None or dim not in (graph.get_shape(name) or ()):
            break
        node = graph.nodes[number]
        first = get_input(node, 0)
        if node.op_type == "Slice" and graph.is_constant(first):
            rows = _find_cut_extent(graph, node)
            return table or (_describe_table(first, rows) if rows else "")
        if node.op_type == "Gather" and graph.is_constant(first):
            table = table or _describe_table(first, _get_extent(graph, node))
        name = next((each for each in node.input if dim in (graph.get_shape(each) or ())), "")
    return ""


def _find_cut_extent(graph: GraphIndex, node: NodeProto) -> Dim:
    """Return the extent of the first axis that a Slice makes shorter, by an open number."""
    before, after = graph.get_shape(node.input[0]) or (), graph.get_shape(node.output[0]) or ()
    pairs = zip(before, after, strict=False)
    return next((old for old, new in pairs if old != new and not isinstance(new, int)), None)


def _describe_table(name: str, rows: Dim) -> str:
    return f"'{name}' has {rows} rows"


# Indices that are counted: the largest one depends on an extent, and has to be a row of the table.

_Bounds = tuple[Dim, Dim]
"""The least and the largest value of a tensor's numbers, as extents are written."""
_MOVED = frozenset(
    [
        *("Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"),
        *("Tile", "Gather", "Slice"),
    ]
)
"""Operators whose output has the numbers of the first input.

A Slice that makes it shorter may leave out the largest, and is not followed.
"""


def _list_gathered(graph: GraphIndex, number: int, node: NodeProto) -> Iterator[ExtentLimit]:
    """Yield the limit of a Gather from a constant table, at positions that are counted."""
    if node.op_type != "Gather" or not graph.is_constant(node.input[0]):
        return
    rows = _get_extent(graph, node)
    if number in graph.constant_nodes or not isinstance(rows, int):
        return
    bounds = _Counting(graph).bound(node.input[1])
    if bounds is not None and isinstance(bounds[1], str):
        yield ExtentLimit(add_dims(bounds[1], 1), rows, True, _describe_table(node.input[0], rows))


def _get_extent(graph: GraphIndex, node: NodeProto) -> Dim:
    """Return the extent of the axis that a Gather looks into."""
    shape = graph.get_shape(node.input[0]) or ()
    axis = int(graph.get_attributes(node).get("axis", 0))
    return shape[axis] if -len(shape) <= axis < len(shape) else None


_FOLLOWED = _MOVED | {"Mul", "Add", "Sub", "Max", "Min"}


@dataclass(frozen=True, eq=False)
class _Counting:
    """Bounds the numbers of tensors that count positions, back to the node that counts."""

    graph: GraphIndex
    known: dict[str, _Bounds | None] = field(default_factory=dict)

    def bound(self, name: str, steps: int = _MAX_STEPS) -> _Bounds | None:
        """Return the bounds of a tensor's numbers, both taken on; None where they are not known."""
        if name not in self.known:
            self.known[name] = self._bound(name, steps)
        return self.known[name]

    def _bound(self, name: str, steps: int) -> _Bounds | None:
        number = self.graph.producers.get(name)
        if number is None or self.graph.is_constant(name):
            return self._bound_source(name)
        node = self.graph.nodes[number]
        if node.op_type == "Range":
            return self._count(node)
        if node.op_type == "CumSum":
            return self._sum_flags(node)
        if not steps or node.op_type not in _FOLLOWED or self._is_cut(node):
            return None
        if node.op_type in _MOVED:
            return self.bound(node.input[0], steps - 1)
        return self._calculate(node, [self.bound(each, steps - 1) for each in node.input])

    def _bound_source(self, name: str) -> _Bounds | None:
        """Return the bounds of a constant, or of positions that a caller counts."""
        value, shape = get_constant_value(self.graph, name), self.graph.get_shape(name)
        if value is not None and value.size and value.dtype.kind in "iu":
            return int(value.min()), int(value.max())
        if name in self.graph.inputs and shape and "position" in name.lower():
            return 0, subtract_dims(shape[-1], 1)
        return None

    def _is_cut(self, node: NodeProto) -> bool:
        return node.op_type == "Slice" and self.graph.get_shape(node.input[0]) != self.graph.get_shape(
            node.output[0]
        )

    def _calculate(self, node: NodeProto, inputs: Sequence[_Bounds | None]) -> _Bounds | None:
        """Return the bounds of what is calculated from two tensors."""
        if node.op_type == "Mul":
            return self._mask(node, inputs)
        if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
            return None
        (low, high), (least, most) = inputs[0], inputs[1]
        match node.op_type:
            case "Add":
                return add_dims(low, least), add_dims(high, most)
            case "Sub":
                return subtract_dims(low, most), subtract_dims(high, least)
            case "Max":
                return max_dims(low, least), max_dims(high, most)
        return min_dims(low, least), min_dims(high, most)

    def _count(self, node: NodeProto) -> _Bounds | None:
        """Return the bounds of a Range: it has as many numbers as its extent, one after the other."""
        start, step = (get_constant_value(self.graph, node.input[i]) for i in (0, 2))
        shape = self.graph.get_shape(node.output[0])
        if start is None or step is None or not shape or start.dtype.kind not in "iu":
            return None
        if step.ravel()[0] != 1:
            return None
        low = int(start.ravel()[0])
        return low, add_dims(low - 1, shape[0])

    def _sum_flags(self, node: NodeProto) -> _Bounds | None:
        """Return the bounds of a CumSum of zeros and ones: positions of what is not left out."""
        shape, axis = self.graph.get_shape(node.input[0]), get_constant_value(self.graph, node.input[1])
        if not shape or axis is None or not self._is_flag(node.input[0]):
            return None
        return 0, shape[int(axis.ravel()[0])]

    def _mask(self, node: NodeProto, inputs: Sequence[_Bounds | None]) -> _Bounds | None:
        """Return the bounds of what is multiplied by zeros and ones."""
        for name, known in zip(node.input, reversed(inputs), strict=True):
            if known is not None and self._is_flag(name):
                return 0, known[1]
        return None

    def _is_flag(self, name: str) -> bool:
        """Return whether the numbers of a tensor are zeros and ones: proven, or a mask that is given."""
        if Interval(0, 1).holds(self.graph.value_ranges.find_interval(name)):
            return True
        while (number := self.graph.producers.get(name)) is not None:
            if self.graph.nodes[number].op_type not in ("Cast", "Identity"):
                return False
            name = self.graph.nodes[number].input[0]
        return "mask" in name.lower()


# Sizes within the limits.


@dataclass(frozen=True)
class FittedSizes:
    """Sizes of free names within limits, and for those that a limit says something of what it says."""

    sizes: Mapping[str, int]
    reasons: Mapping[str, str]


def fit_sizes(
    sizes: Mapping[str, int],
    groups: Sequence[Collection[str]],
    limits: Sequence[ExtentLimit],
    complete: Complete,
) -> FittedSizes:
    """Return sizes that break as few limits as possible, and why they are what they are.

    `groups` has the names that may change; those of one group change together, such as the sides of an
    image. Where larger sizes break a limit the largest is taken that does not, and where only some sizes
    keep one, the least of these.
    """
    fitted, reasons = dict(sizes), {}
    search = _SizeSearch(limits, complete)
    for group in groups:
        names = [name for name in group if name in fitted]
        relevant = [limit for limit in limits if search.concerns(limit, fitted, names)]
        for limit in relevant:
            if limit.allows(complete(fitted)):
                continue
            size = search.find(limit, fitted, names)
            changed = {**fitted, **dict.fromkeys(names, size or 1)}
            if size is not None and search.count_broken(changed) < search.count_broken(fitted):
                fitted = changed
                reasons.update(dict.fromkeys(names, limit.source))
        if names and not reasons.keys() & set(names):
            told = search.describe_most(relevant, fitted, names)
            reasons.update(dict.fromkeys(names, told) if told else {})
    return FittedSizes(fitted, reasons)


@dataclass(frozen=True)
class _SizeSearch:
    limits: Sequence[ExtentLimit]
    complete: Complete

    def count_broken(self, sizes: Mapping[str, int]) -> int:
        """Count the limits that sizes break."""
        known = self.complete(sizes)
        return sum(not limit.allows(known) for limit in self.limits)

    def concerns(self, limit: ExtentLimit, sizes: Mapping[str, int], names: Collection[str]) -> bool:
        """Return whether a limit depends on names: whether it measures otherwise at other sizes."""
        tried = ({**sizes, **dict.fromkeys(names, size)} for size in (1, LARGEST_SIZE))
        return bool(names) and len({limit.measure(self.complete(each)) for each in tried}) > 1

    def find(self, limit: ExtentLimit, sizes: Mapping[str, int], names: Collection[str]) -> int | None:
        """Return a size of names that keeps a limit, None where none is found.

        What a limit measures grows with a size, or shrinks with it, as extents do.
        """

        def measure(size: int) -> int:
            found = limit.measure(self.complete({**sizes, **dict.fromkeys(names, size)}))
            return LARGEST_SIZE if found is None else found

        first, largest = measure(1), max(sizes[name] for name in names)
        if first == 0:
            return find_largest(lambda size: measure(size) == 0, largest)
        sign = 1 if first > 0 else -1
        least = 1 + find_largest(lambda size: measure(size) * sign > 0, LARGEST_SIZE)
        if measure(least) != 0:
            return None
        # A window of two halves both an even size and the odd one before it: the even one is meant.
        return least + 1 if least % 2 and measure(least + 1) == 0 else least

    def describe_most(
        self, limits: Sequence[ExtentLimit], sizes: Mapping[str, int], names: Collection[str]
    ) -> str:
        """Say the largest size that keeps all limits, and which limit; empty where any size does."""

        def keeps(limit: ExtentLimit, size: int) -> bool:
            return limit.allows(self.complete({**sizes, **dict.fromkeys(names, size)}))

        def keeps_from_now(limit: ExtentLimit, size: int) -> bool:
            return size <= now or keeps(limit, size)

        now = max(sizes[name] for name in names)
        most = {
            limit: find_largest(partial(keeps_from_now, limit), LARGEST_SIZE)
            for limit in limits
            if keeps(limit, now) and not keeps(limit, LARGEST_SIZE)
        }
        if not most:
            return ""
        tightest = min(most, key=lambda limit: most[limit])
        return f"at most {most[tightest]}: {tightest.source}"


def find_largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest size up to `most` at which something holds that holds at 1, and below it."""
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
