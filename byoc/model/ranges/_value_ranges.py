"""The ranges of the values of a graph's tensors, found when they are asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf, prod

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.model._constants import find_constant_value, get_constant_value
from byoc.model._graph_index import GraphBody, GraphIndex
from byoc.model._tensor_data import FLOAT_DTYPES
from byoc.model.ranges._element_rules import ELEMENT_RULES
from byoc.model.ranges._intervals import (
    MAX_PARTS,
    MOST_EXTENT,
    NUMBERS,
    Interval,
    RangedNode,
    RuleResult,
    TensorRange,
    limit_of_dtype,
    widen_floats,
)
from byoc.model.ranges._structure_rules import MOVEMENT_RULES, READ_POSITIONS, SUM_RULES

# Intervals that a valid model implies: indices lie below the rows that they look into.
#
# ONNX makes it an error for an index to be outside of its table. So what is used as an index, or
# becomes one by being moved, is within the table in every run that has a result.

Limits = Mapping[str, Interval]
_Limit = tuple[str, Interval]


def find_valid_ranges(ranges: "ValueRanges") -> dict[str, Interval]:
    """Return the intervals that tensors of a graph lie within in every run that is defined.

    All nodes of a graph run whenever one does.
    """
    found: dict[str, Interval] = {}
    kinds, made = ranges.index.node_kinds, ranges.index.node_outputs
    for number in reversed(range(len(kinds))):
        rule = _INPUT_RULES.get(kinds[number].operator)
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


_INPUT_RULES: Mapping[str, Callable[[RangedNode, Limits], Iterator[_Limit]]] = {
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


_RULES = {**SUM_RULES, **MOVEMENT_RULES, **ELEMENT_RULES}
_MOST_READ = 1 << 20
"""Elements of a constant that are read to know its range; more are taken to be any of their type."""
_ROUNDS = 3
"""How often the ranges of what goes from iteration to iteration are tried before all are given up."""
_UNKNOWN = RuleResult(())


@dataclass(frozen=True)
class NodeRange:
    """The names, dtypes and intervals of a node's tensors, before they are rounded or wrap.

    `summed` is the largest magnitude of what is summed or multiplied on the way.
    """

    reads: tuple[tuple[str, str, Interval], ...]
    makes: tuple[tuple[str, str, Interval], ...]
    summed: float


@dataclass(eq=False)
class ValueRanges:
    """The ranges of a graph's tensors; each holds in every run that is defined, NaN apart.

    `given` has those of a body's formal inputs, `outer` the ranges of the graph around.
    """

    index: GraphIndex
    outer: "ValueRanges | None" = None
    given: Mapping[str, Interval] = field(default_factory=dict)
    _known: dict[str, TensorRange] = field(default_factory=dict)
    _exact: dict[int, RuleResult] = field(default_factory=dict)
    _bodies: dict[int, "dict[int, ValueRanges]"] = field(default_factory=dict)

    def find(self, name: str) -> TensorRange:
        """Return the range of a tensor: that of its dtype where nothing is proven."""
        pending = [name]
        while pending:
            top = pending[-1]
            if top in self._known:
                pending.pop()
                continue
            number = self._find_producer(top)
            needed = () if number is None else self._list_needed(number)
            missing = [each for each in needed if each not in self._known]
            if missing:
                pending.extend(missing)
            elif number is None:
                self._known[top] = self._find_source(top)
            else:
                self._compute_node(number)
        return self._known[name]

    def find_interval(self, name: str) -> Interval:
        """Return the interval of a tensor's values."""
        return self.find(name).whole

    def describe_node(self, number: int, inputs: Sequence[str]) -> NodeRange:
        """Return the whole numbers that a node makes, and that it reads of some of its inputs."""
        index, reads, makes = self.index, [], []
        for name in dict.fromkeys(inputs):
            if "int" in (dtype := index.get_dtype(name) or ""):
                reads.append((name, dtype, self.find(name).whole))
        for position, name in enumerate(index.node_outputs[number]):
            if "int" in (dtype := index.get_dtype(name) or ""):
                whole, exact = self.find(name).whole, self._exact.get(number, _UNKNOWN)
                found = exact.outputs[position] if position < len(exact.outputs) else None
                if found is not None:
                    whole = found.whole
                elif number not in index.bodies:
                    whole = NUMBERS
                makes.append((name, dtype, whole))
        summed = self._exact[number].summed if makes and number in self._exact else 0
        return NodeRange(tuple(reads), tuple(makes), summed)

    def enter_body(self, body: GraphIndex) -> "ValueRanges":
        """Return the ranges in a body of a node of the graph."""
        for number, bodies in self.index.bodies.items():
            if any(each.index is body for each in bodies):
                return self._get_bodies(number)[id(body)]
        raise LookupError("the graph has no such body")

    def _find_producer(self, name: str) -> int | None:
        """Return the node whose rule gives a tensor's range; None where its value is read instead."""
        number = self.index.producers.get(name)
        if number is None or not self.index.is_constant(name):
            return number
        small = find_constant_value(self.index, name)
        return number if small is None and name not in self.index.stored_tensors else None

    def _list_needed(self, number: int) -> Sequence[str]:
        """Return the inputs whose ranges the rule of a node asks for."""
        operator = self.index.node_kinds[number].operator
        if operator not in _RULES:
            return ()
        names = self.index.node_inputs[number]
        positions = READ_POSITIONS.get(operator)
        if positions is None:
            return [name for name in names if name]
        return [names[i] for i in positions if i < len(names) and names[i]]

    def _compute_node(self, number: int) -> None:
        node = RangedNode(self, number)
        bodies = number in self.index.bodies
        result = self._join_bodies(number) if bodies else self._apply_rule(node)
        self._exact[number] = result
        for position, name in enumerate(node.outputs):
            if name:
                found = result.outputs[position] if position < len(result.outputs) else None
                self._known[name] = self._limit(name, self._settle(node, name, found))

    def _apply_rule(self, node: RangedNode) -> RuleResult:
        rule = _RULES.get(node.operator)
        made = rule(node) if rule is not None else None
        if isinstance(made, Interval):
            made = TensorRange(made)
        return made if isinstance(made, RuleResult) else RuleResult((made,))

    def _settle(self, node: RangedNode, name: str, found: TensorRange | None) -> TensorRange:
        """Return the interval of stored exact results: whole numbers wrap, floats are rounded."""
        dtype = self.index.get_dtype(name)
        limits = limit_of_dtype(dtype)
        if found is None:
            return TensorRange(limits)
        if dtype in FLOAT_DTYPES and node.operator not in MOVEMENT_RULES:
            return found.map(lambda part: widen_floats(part, dtype))
        if limits.holds(found.whole):
            return found
        wrapped = found.map(lambda part: part if limits.holds(part) else limits)
        return wrapped if limits.holds(wrapped.whole) else TensorRange(limits, wrapped.parts)

    def _limit(self, name: str, found: TensorRange) -> TensorRange:
        """Return a range without what no run that is defined has."""
        valid = self._valid.get(name)
        return found if valid is None else found.map(lambda part: part.meet(valid))

    @cached_property
    def most_extent(self) -> int:
        """The largest size that an extent is taken to have of which nothing is known.

        An extent that depends on data counts elements of some tensor, which may be of a known size.
        """
        if self.outer is not None:
            return self.outer.most_extent
        sizes = (kind.elements for kind in {*self.index.types.values()})
        return max(MOST_EXTENT, *(size for size in sizes if size is not None), 0)

    @cached_property
    def _valid(self) -> Mapping[str, Interval]:
        return find_valid_ranges(self)

    def _find_source(self, name: str) -> TensorRange:
        """Return the range of a constant, of an input, or of a tensor of the graph around."""
        index = self.index
        if name in self.given:
            return self._limit(name, TensorRange(self.given[name]))
        if index.is_constant(name):
            return _read_range(index, name)
        if self.outer is not None and name not in index.inputs and name not in index.producers:
            return self._limit(name, self.outer.find(name))
        return self._limit(name, TensorRange(limit_of_dtype(index.get_dtype(name))))

    def _get_bodies(self, number: int) -> "dict[int, ValueRanges]":
        if number not in self._bodies:
            self._bodies[number] = {}
            bodies = self.index.bodies[number]
            operator = self.index.node_kinds[number].operator
            for body in bodies:
                given = self._find_formals(number, body, operator)
                self._bodies[number][id(body.index)] = type(self)(body.index, self, given)
        return self._bodies[number]

    def _find_formals(self, number: int, body: GraphBody, operator: str) -> dict[str, Interval]:
        """Return the ranges of a body's inputs, which hold in every iteration."""
        formals, read = list(body.index.inputs), self.index.node_inputs[number]
        if operator == "Loop":
            first: dict[str, Interval] = {}
            if formals:
                most = self.find(read[0]).whole.high if read[0] else NUMBERS.high
                first[formals[0]] = Interval(0, max(most - 1, 0)).meet(limit_of_dtype("int64"))
            return self._find_invariant(body, first, formals[2:], read[2:], 1)
        if operator == "Scan":
            node = RangedNode(self, number)
            scanned = int(node.attributes.get("num_scan_inputs", 0))
            states = len(formals) - scanned
            if len(read) != len(formals):  # before opset 9 there are sequence lengths
                return {}
            sliced = dict(zip(formals[states:], read[states:], strict=True))
            first = {formal: self.find(name).whole for formal, name in sliced.items()}
            return self._find_invariant(body, first, formals[:states], read[:states], 0)
        return {}

    def _find_invariant(
        self,
        body: GraphBody,
        first: dict[str, Interval],
        formals: Sequence[str],
        started: Sequence[str],
        skipped: int,
    ) -> dict[str, Interval]:
        """Return ranges of what goes from iteration to iteration that each iteration keeps.

        They begin as the ranges at the start; those that an iteration leaves are widened to their dtype.
        """
        outputs = list(body.index.outputs)[skipped:]
        held = {formal: self.find(name).whole for formal, name in zip(formals, started, strict=False)}
        for _ in range(_ROUNDS):
            inner = type(self)(body.index, self, {**first, **held})
            left = [
                formal
                for formal, output in zip(formals, outputs, strict=False)
                if formal in held and not held[formal].holds(inner.find(output).whole)
            ]
            if not left:
                return {**first, **held}
            held = {formal: found for formal, found in held.items() if formal not in left}
        return first

    def _join_bodies(self, number: int) -> RuleResult:
        """Return the ranges of the outputs of an If, a Loop or a Scan."""
        index, operator = self.index, self.index.node_kinds[number].operator
        if operator not in ("If", "Loop", "Scan"):
            return _UNKNOWN
        inner = self._get_bodies(number)
        made: list[TensorRange | None] = []
        for position in range(len(index.node_outputs[number])):
            found: Interval | None = None
            for body in index.bodies[number]:
                ranges = inner[id(body.index)]
                outputs = list(body.index.outputs)
                place = position + (operator == "Loop")
                whole = ranges.find(outputs[place]).whole if place < len(outputs) else NUMBERS
                found = whole if found is None else found.join(whole)
            carried = position + 2 * (operator == "Loop")
            names = index.node_inputs[number]
            states = len(names) - 2 if operator == "Loop" else 0
            if operator == "Scan":
                count = RangedNode(self, number).attributes.get("num_scan_inputs", 0)
                states = len(names) - int(count)
            if position < states and carried < len(names) and found is not None:
                found = found.join(self.find(names[carried]).whole)  # after no iterations
            made.append(None if found is None else TensorRange(found))
        return RuleResult(tuple(made))


@dataclass(eq=False)
class PlainRanges(ValueRanges):
    """The ranges of a graph's tensors in any run, also one that fails at an index beyond its table."""

    @cached_property
    def _valid(self) -> Mapping[str, Interval]:
        return {}


def _read_range(index: GraphIndex, name: str) -> TensorRange:
    """Return the range of a constant, element by element if it has few."""
    limits = limit_of_dtype(index.get_dtype(name))
    stored = index.stored_tensors.get(name)
    if stored is not None and prod(stored.dims) > _MOST_READ:
        return TensorRange(limits)
    array = find_constant_value(index, name)
    if array is None or array.dtype.kind in "OSU":
        return TensorRange(limits)
    if array.dtype.kind not in "biuf":  # of the package ml_dtypes
        array = array.astype(np.float32)
    if not array.size:
        return TensorRange(Interval(0, 0), ())
    if array.dtype.kind == "f" and np.isnan(array).any():
        return TensorRange(NUMBERS)
    if array.size <= MAX_PARTS:
        return TensorRange.of_parts([Interval(each, each) for each in array.ravel().tolist()])
    return TensorRange(Interval(array.min().item(), array.max().item()))
