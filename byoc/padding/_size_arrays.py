"""Values that follow from sizes and constants alone, such as causal masks, in the padded run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from byoc.model import RANDOM_OPERATORS, evaluate_dim, list_dim_names, to_numpy_dtype
from byoc.model.ranges import Interval
from byoc.padding._padded_graph import PaddedGraph, Shape
from byoc.padding._zones import Part, Zone

_MAX_ELEMENTS = 1 << 23
_MAX_NODES = 400

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

    None where it has NaN, and where the sizes are too many to try. Elements that no zone has count as
    [0, 0].
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
