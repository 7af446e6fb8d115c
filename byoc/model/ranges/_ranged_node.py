"""A node as the rules of ranges ask about it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from byoc.model._constants import get_constant_value
from byoc.model._graph_index import GraphIndex
from byoc.model._tensor_types import Dim
from byoc.model.inference import bound_dim, list_dim_names
from byoc.model.ranges._intervals import (
    MAX_PARTS,
    NUMBERS,
    Interval,
    TensorRange,
    combine_corners,
    limit_of_dtype,
    multiply,
)

if TYPE_CHECKING:
    from byoc.model.ranges._value_ranges import ValueRanges

MOST_EXTENT = 2**24
"""What an open extent is taken to be at most, unless the user gives it a range (docs/rules.md)."""

Shape = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class RangedNode:
    """A node of a graph, with the ranges of what it reads."""

    ranges: "ValueRanges"
    number: int

    @property
    def index(self) -> GraphIndex:
        """The index of its graph."""
        return self.ranges.index

    @property
    def operator(self) -> str:
        """Its operator, as rule files spell it."""
        return self.index.node_kinds[self.number].operator

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs; empty for one that is left out."""
        return self.index.node_inputs[self.number]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs; empty for one that is left out."""
        return self.index.node_outputs[self.number]

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes with all defaults."""
        return self.index.get_attributes(self.index.nodes[self.number])

    def has(self, position: int) -> bool:
        """Return whether an input is given."""
        return position < len(self.inputs) and bool(self.inputs[position])

    def get(self, position: int) -> TensorRange:
        """Return the range of an input; all numbers where it is left out."""
        return self.ranges.find(self.inputs[position]) if self.has(position) else TensorRange(NUMBERS)

    def get_all(self) -> list[TensorRange]:
        """Return the ranges of all inputs that are given."""
        return [self.ranges.find(name) for name in self.inputs if name]

    def get_shape(self, position: int) -> Shape | None:
        """Return the shape of an input, None if its rank is not known."""
        return self.index.get_shape(self.inputs[position]) if self.has(position) else None

    def get_dtype(self, position: int) -> str:
        """Return the dtype of an input; empty where it is not known."""
        return (self.index.get_dtype(self.inputs[position]) or "") if self.has(position) else ""

    def get_output_dtype(self, position: int = 0) -> str:
        """Return the dtype of an output; empty where it is not known."""
        return self.index.get_dtype(self.outputs[position]) or ""

    @property
    def makes_vector(self) -> bool:
        """Whether its output is known to be a scalar or a vector: elements are followed one by one."""
        rank = self.index.get_rank(self.outputs[0])
        return rank is not None and rank <= 1

    def read(self, position: int) -> list[float] | None:
        """Return the elements of an input that is the same in every run, None for any other."""
        if not self.has(position):
            return None
        parts = self.ranges.find(self.inputs[position]).parts
        if parts is not None:
            return [p.low for p in parts] if all(p.low == p.high for p in parts) else None
        array = get_constant_value(self.index, self.inputs[position])
        if array is None or array.size > MAX_PARTS or array.dtype.kind not in "biuf":
            return None
        return [each.item() for each in array.ravel()]

    def read_axes(self, position: int) -> list[int] | None:
        """Return axes from an attribute or an input; None for all, or where they are not known.

        They are empty where the operator is told to do nothing without axes.
        """
        stated = self.attributes.get("axes")
        if stated is None and self.has(position):
            found = self.read(position)
            stated = None if found is None else [int(axis) for axis in found]
        if not stated and self.attributes.get("noop_with_empty_axes"):
            return []
        return list(stated) if stated else None

    def bound_extent(self, dim: Dim) -> Interval:
        """Return the interval of an extent: that of the user's ranges where it is open."""
        if isinstance(dim, int):
            return Interval(dim, dim)
        known = self.index.planned.ranges
        names = list_dim_names(dim) if dim is not None else ()
        most = self.ranges.most_extent
        found = bound_dim(dim, {name: known.get(name, (0, most)) for name in names})
        low, high = found or (0, most)
        return Interval(max(low, 0), max(high, 0))

    def bound_count(self, dims: Iterable[Dim]) -> Interval:
        """Return the interval of the product of some extents."""
        bounds = (self.bound_extent(dim) for dim in dims)
        return reduce(lambda a, b: combine_corners(multiply, a, b), bounds, Interval(1, 1))

    def bound_axis(self, position: int, axis: int) -> Interval:
        """Return the interval of an input's extent along an axis."""
        shape = self.get_shape(position)
        if shape is None or not -len(shape) <= axis < len(shape):
            return Interval(0, self.ranges.most_extent)
        return self.bound_extent(shape[axis])

    def get_limits(self, position: int = 0) -> Interval:
        """Return the interval of an output's dtype."""
        return limit_of_dtype(self.get_output_dtype(position))


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule: ranges of outputs before they are rounded or wrap, None where unproven.

    `summed` is the largest magnitude of what is summed or multiplied on the way to them.
    """

    outputs: tuple[TensorRange | None, ...]
    summed: float = 0


RangeRule = Callable[[RangedNode], "RuleResult | TensorRange | Interval | None"]
"""Gives the range of a node's first output, or the result for all; None where it proves nothing."""
