"""Bounds of the values of tensors in the padded run, zone by zone.

Bounds are found when a rule of alignment asks for them, from the tensor backwards. Those of the
unpadded run's elements count on that run to compute numbers: where it overflows, or makes NaN, nothing
is promised. Those of what padding adds count on nothing: where no bound is proven there is none.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isinf, isnan

import numpy as np

from byoc.model import to_numpy_dtype
from byoc.model.ranges import NUMBERS, Interval
from byoc.padding._bound_rules import BOUND_RULES
from byoc.padding._bound_view import BoundView
from byoc.padding._padded_graph import ILL_FORMED, Assumptions, NotAlignedError, PaddedGraph
from byoc.padding._size_arrays import SizeArrays
from byoc.padding._zones import Part, Zone


def find_fill_axis(graph: PaddedGraph, name: str) -> int | None:
    """Return the axis of an input along which its value is filled in: the last padded one.

    Along any other padded axis its last entries are repeated, the filled ones included.
    """
    padded = [axis for axis, dim in enumerate(graph.get_shape(name) or ()) if graph.is_padded(dim)]
    return padded[-1] if padded else None


# Values this much beyond the largest number of a dtype are still rounded to it.
_ROUNDED = 1 + 2.0**-26


@dataclass(eq=False)
class ValueBounds:
    """The bounds of a graph's tensors under some assumptions; `used` says that a rule asked for any.

    `proven` are the nodes that are aligned. A Softmax among them is 0 in what padding adds to its axis.
    `inputs` are the graph inputs whose bounds were asked for: what is assumed of others plays no part.
    """

    graph: PaddedGraph
    assumptions: Assumptions
    same: Collection[str]
    sized: Collection[str]
    proven: set[int] = field(default_factory=set)
    used: bool = False
    inputs: set[str] = field(default_factory=set)
    _known: dict[tuple[str, Zone], Interval | None] = field(default_factory=dict)

    @cached_property
    def arrays(self) -> SizeArrays:
        """The values that follow from sizes and constants."""
        return SizeArrays(self.graph)

    def find(self, name: str, zone: Zone) -> Interval | None:
        """Return the bounds of a tensor in a zone, None where none are known."""
        zone = self._drop_unpadded(name, zone)
        key = name, zone
        if key not in self._known:
            found = self._compute(name, zone)
            if found is None and self.graph.get_dtype(name) == "bool":
                found = Interval(0.0, 1.0)
            if found is None and zone.is_unpadded:
                found = NUMBERS
            self._known[key] = found
        return self._known[key]

    def _drop_unpadded(self, name: str, zone: Zone) -> Zone:
        """Return a zone without the parts of axes that are not padded, but for index 0."""
        shape = self.graph.get_shape(name)
        if shape is None or not zone.parts:
            return zone
        kept = {
            axis: part
            for axis, part in zone.parts
            if part is Part.first or self.graph.is_padded(shape[axis])
        }
        return zone if len(kept) == len(zone.parts) else Zone.of(kept)

    def _compute(self, name: str, zone: Zone) -> Interval | None:
        if self.graph.get_shape(name) is None:
            return None
        if name in self.arrays.names:
            return self.arrays.find_bounds(name, zone)
        number = self.graph.index.producers.get(name)
        if number is None:
            return self._bound_input(name, zone)
        rule = BOUND_RULES.get(BoundView(self.graph, number, name, zone, self).operator)
        if rule is None:
            return None
        try:
            found = rule(BoundView(self.graph, number, name, zone, self))
        except (NotAlignedError, *ILL_FORMED):
            return None
        return None if found is None else self._round(name, found)

    def _bound_input(self, name: str, zone: Zone) -> Interval | None:
        """Return the bounds of a graph input: what its dtype can hold, or what is assumed of it."""
        self.inputs.add(name)
        dtype = to_numpy_dtype(self.graph.get_dtype(name))
        whole = NUMBERS
        if dtype.kind == "b":
            whole = Interval(0.0, 1.0)
        elif dtype.kind in "iu":
            limits = np.iinfo(dtype)
            whole = Interval(float(limits.min), float(limits.max))
        axis = find_fill_axis(self.graph, name)
        first = self.assumptions.firsts.get(name)
        kept = whole
        if first is not None and axis is not None and zone.get(axis) is Part.first:
            kept = Interval(first, first)
        fill = self.assumptions.fills.get(name)
        if zone.is_unpadded:
            return kept
        if fill is None:  # its last entries again
            return whole if dtype.kind in "biu" else None
        filled = Interval(fill, fill)
        part = None if axis is None else zone.get(axis)
        if part is Part.rest:
            return filled
        return kept if part is Part.first else filled.join(whole)

    def _round(self, name: str, found: Interval) -> Interval | None:
        """Return bounds as the dtype of a tensor can hold them: what is beyond may be infinite."""
        if isnan(found.low) or isnan(found.high):
            return None
        dtype = to_numpy_dtype(self.graph.get_dtype(name))
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return found if limits.min <= found.low and found.high <= limits.max else None
        if dtype.kind != "f":
            return found if dtype.kind == "b" else None
        if found.low == found.high and isinf(found.low):
            return found
        most = float(np.finfo(dtype).max) * _ROUNDED
        low = -inf if found.low < -most else found.low
        high = inf if found.high > most else found.high
        if low > most or high < -most:
            return None
        return Interval(low, high)
