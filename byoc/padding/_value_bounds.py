"""Bounds of the values of tensors in the padded run, zone by zone.

Bounds are found when a rule of alignment asks for them, from the tensor backwards. Those of the
unpadded run's elements count on that run to compute numbers: where it overflows, or makes NaN, nothing
is promised. Those of what padding adds count on nothing: where no bound is proven there is none.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import inf, isinf, isnan, prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from byoc._dataclasses import dataclass, field
from byoc.model import RANDOM_OPERATORS, evaluate_dim, list_dim_names, to_numpy_dtype
from byoc.model.ranges import NUMBERS, Interval, limit_of_dtype
from byoc.padding._bound_matrix_rules import BoundView
from byoc.padding._bound_rules import BOUND_RULES
from byoc.padding._padded_graph import (
    ILL_FORMED,
    UNPADDED,
    Assumptions,
    NotAlignedError,
    PaddedGraph,
    Part,
    Shape,
    Zone,
)

# Values that follow from sizes and constants alone, such as causal masks, in the padded run.

_MAX_ELEMENTS = 1 << 23
_MAX_NODES = 400  # whose bounds are asked for one question

Array = NDArray[Any]


@dataclass(eq=False)
class SizeArrays:
    """The arrays of a padded graph that no input's values enter, in the padded run."""

    graph: PaddedGraph
    _known: dict[str, Array | None] = field(default_factory=dict)

    @cached_property
    def names(self) -> frozenset[str]:
        """The tensors that follow from constants and shapes."""
        index = self.graph.index
        found = set(index.constant_names)
        for number, node in enumerate(index.nodes):
            outputs = [name for name in index.node_outputs[number] if name]
            if all(self.graph.find_elements(name) is not None for name in outputs):
                found.update(outputs)
            elif node.op_type in RANDOM_OPERATORS or number in index.bodies:
                continue
            elif found.issuperset(index.reads[number]):
                found.update(outputs)
        return frozenset(found)

    def find(self, name: str) -> Array | None:
        """Return the value of a tensor of `names`, None where it cannot be computed or is too large."""
        if name not in self._known:
            self._known[name] = self._compute(name)
        return self._known[name]

    def find_bounds(self, name: str, zone: Zone) -> Interval | None:
        """Return the bounds of a tensor of `names` in a zone, for all sizes together."""
        array, shape = self.find(name), self.graph.get_shape(name)
        if array is None or shape is None or array.dtype.kind not in "biuf":
            return None
        return bound_array(self.graph, array, shape, zone)

    def _compute(self, name: str) -> Array | None:
        stored = self._read(name)
        if stored is not None:
            return stored
        index = self.graph.index
        wanted: set[int] = set()
        feeds: dict[str, Array] = {}
        pending = [name]
        while pending:
            each = pending.pop()
            if each in feeds:
                continue
            value = self._read(each)
            if value is not None:
                feeds[each] = value
                continue
            number = index.producers.get(each)
            if number is None or not self._is_small(each):
                return None
            if number not in wanted:
                wanted.add(number)
                pending.extend(index.reads[number])
            if len(wanted) > _MAX_NODES:
                return None
        return self._run([index.nodes[number] for number in sorted(wanted)], feeds, name)

    def _read(self, name: str) -> Array | None:
        """Return a value that is stored, or of which each element is known."""
        found = self.graph.find_elements(name)
        shape = self.graph.get_shape(name)
        if found is None or shape is None:
            return self.graph.read_constant(name)
        values = [self.graph.count(dim) for dim in found]
        dtype = to_numpy_dtype(self.graph.get_dtype(name))
        return np.array(values, dtype).reshape([self.graph.count(dim) for dim in shape])

    def _is_small(self, name: str) -> bool:
        shape = self.graph.get_shape(name)
        return shape is not None and prod(map(self.graph.count, shape)) <= _MAX_ELEMENTS

    def _run(
        self, nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], name: str
    ) -> Array | None:
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

        imports = [helper.make_opsetid(d, v) for d, v in self.graph.index.opsets.items()]
        graph = helper.make_graph(
            nodes,
            "sizes",
            [onnx.ValueInfoProto(name=each) for each in feeds],
            [onnx.ValueInfoProto(name=name)],
        )
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        try:
            with np.errstate(all="ignore"):
                (found,) = map(np.asarray, ReferenceEvaluator(model).run(None, dict(feeds)))
        except Exception:  # an operator that the reference implementation lacks
            return None
        return found


def bound_array(graph: PaddedGraph, array: Array, shape: Shape, zone: Zone) -> Interval | None:
    """Return the bounds of an array of the padded run in a zone, for all sizes of the unpadded run.

    None where it has NaN, and where the sizes are too many to try. A zone without
    elements has the bounds [0, 0].
    """
    if array.shape != tuple(map(graph.count, shape)):
        return None
    values = array.astype(np.float64)
    if not values.size or np.isnan(values).any():
        return Interval(0.0, 0.0) if not values.size else None
    moving: list[int] = []
    for axis, dim in enumerate(shape):
        part = zone.get(axis)
        if part is Part.first:
            values = values.take([0], axis)
        elif graph.is_padded(dim) and part is not Part.whole:
            moving.append(axis)
    return _bound_moving(graph, values, shape, {axis: zone.get(axis) for axis in moving})


def _bound_moving(
    graph: PaddedGraph, values: Array, shape: Shape, moving: Mapping[int, Part | None]
) -> Interval | None:
    """Bound floats by the parts of axes whose extents differ with the size; all of any other axis."""
    sizes = graph.list_sizes(sorted({name for axis in moving for name in list_dim_names(shape[axis])}))
    if sizes is None:
        return None
    others = tuple(axis for axis in range(values.ndim) if axis not in moving)
    tables = []
    for sign in (-1.0, 1.0):  # the largest of all that a zone has, by where it begins or ends
        table = (sign * values).max(axis=others, keepdims=True) if others else sign * values
        for axis in moving:
            if moving[axis] is Part.rest:
                table = np.flip(np.maximum.accumulate(np.flip(table, axis), axis), axis)
            else:
                table = np.maximum.accumulate(table, axis)
        tables.append(table)
    found: Interval | None = None
    for each in sizes:
        where = [0] * values.ndim
        for axis, part in moving.items():
            extent = evaluate_dim(shape[axis], each)
            assert extent is not None
            where[axis] = extent if part is Part.rest else extent - 1
        if all(0 <= at < extent for at, extent in zip(where, tables[0].shape, strict=True)):
            low, high = (float(table[tuple(where)]) for table in tables)
            here = Interval(-low, high)
            found = here if found is None else found.join(here)
    return Interval(0.0, 0.0) if found is None else found


# Bounds of the values of tensors in the padded run, zone by zone.


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
    # What is asked for at present, and of each question the first that found no bound.
    _asked: list[tuple[str, Zone]] = field(default_factory=list)
    _lost: dict[tuple[str, Zone], tuple[str, Zone]] = field(default_factory=dict)

    @cached_property
    def arrays(self) -> SizeArrays:
        """The values that follow from sizes and constants."""
        return SizeArrays(self.graph)

    def find(self, name: str, zone: Zone) -> Interval | None:
        """Return the bounds of a tensor in a zone, None where none are known."""
        zone = self._drop_unpadded(name, zone)
        key = name, zone
        if key not in self._known:
            self._asked.append(key)
            try:
                found = self._compute(name, zone)
            finally:  # of a RecursionError as well, which its caller catches
                self._asked.pop()
            self._known[key] = self._bound_by_dtype(name, zone) if found is None else found
        if self._known[key] is None and self._asked:
            self._lost.setdefault(self._asked[-1], key)
        return self._known[key]

    def describe_loss(self, name: str, zone: Zone) -> str:
        """Return a sentence on where the bounds of a tensor were lost, of which `find` returned None."""
        key = name, self._drop_unpadded(name, zone)
        while key in self._lost:
            key = self._lost[key]
        number = self.graph.index.producers.get(key[0])
        if number is None:
            return f"nothing bounds the input '{key[0]}' there"
        view = BoundView(self.graph, number, *key, self)
        if view.operator not in BOUND_RULES:
            return f"no rule bounds what {view.operator} makes ('{key[0]}')"
        return f"nothing bounds what {view.operator} makes there ('{key[0]}')"

    def _bound_by_dtype(self, name: str, zone: Zone) -> Interval | None:
        """Return the interval of a tensor's dtype; of floats, only in the unpadded run."""
        dtype = self.graph.get_dtype(name)
        held = limit_of_dtype(dtype)
        if held != NUMBERS:
            return Interval(float(held.low), float(held.high))
        return NUMBERS if zone.is_unpadded else None

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
        whole = self._bound_by_dtype(name, UNPADDED) or NUMBERS
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
