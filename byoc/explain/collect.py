"""Collecting what the annotator and the grouper say of every node of a model, bodies included."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from onnx import NodeProto

from byoc.costs.trips import called
from byoc.costs.work import Sizes, work
from byoc.errors import InputError, nearest
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.unshare import is_dequantize, unshared
from byoc.graph.walk import describe, is_onnx
from byoc.patterns.explain import NearMiss, near_misses
from byoc.patterns.group import Unit, group
from byoc.patterns.qdq import is_border
from byoc.rules.annotate import Annotator, Attempt, Objection
from byoc.rules.load import Target
from byoc.verdict import Mark


def operator(node: NodeProto) -> str:
    """Return an operator as rule files write it: `Conv`, `com.microsoft.Gelu`."""
    return node.op_type if is_onnx(node) else f"{node.domain}.{node.op_type}"


@dataclass(frozen=True, eq=False)
class Refusal:
    """A node that the accelerator does not take.

    `graph` is the body that it is in, empty for the main graph; `attempts` are the rules that were
    tried, the nearest first, the grouper's reasons among them where a rule accepts the node and it is
    refused all the same; `reasons` are those of the first. A DequantizeLinear or QuantizeLinear that
    goes with a refused operator has no attempts. `operations` is its compute.
    """

    graph: str
    index: GraphIndex
    number: int
    attempts: tuple[Attempt, ...]
    reasons: tuple[Objection, ...]
    operations: float

    @property
    def name(self) -> str:
        """What the node is called: its name, or its first output."""
        return called(self.index.nodes[self.number])

    @property
    def op(self) -> str:
        """The operator as rule files write it."""
        return operator(self.index.nodes[self.number])

    @property
    def places(self) -> tuple[str, ...]:
        """Where in the rule file the reasons stand."""
        return tuple(reason.place for reason in self.reasons)


@dataclass(frozen=True, eq=False)
class Explained:
    """What was found in one graph: the main one, or the body that `graph` names."""

    graph: str
    index: GraphIndex
    marks: Sequence[Mark]
    units: Sequence[Unit]
    misses: Sequence[NearMiss]
    operations: Mapping[int, float]
    quantized: bool
    """Whether the target has rules for quantized operators."""

    @cached_property
    def unit_of(self) -> dict[int, Unit]:
        """The unit of each node that is not constant."""
        return {number: unit for unit in self.units for number in unit.nodes}

    @cached_property
    def taken(self) -> Set[int]:
        """The nodes that the accelerator takes."""
        return {number for unit in self.units if unit.verdict for number in unit.nodes}


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a target says of a model: the graphs, the nodes asked about, and those that it refuses.

    `asked` are pairs of a graph and a node number; `operations` is the compute of the whole model.
    """

    model: Model
    target: Target
    graphs: tuple[Explained, ...]
    asked: tuple[tuple[Explained, int], ...]
    refusals: tuple[Refusal, ...]

    @property
    def operations(self) -> float:
        """The compute of all nodes of the model."""
        return sum(sum(graph.operations.values()) for graph in self.graphs)

    @property
    def refused_operations(self) -> float:
        """The compute of the nodes that are refused."""
        return sum(refusal.operations for refusal in self.refusals)

    @property
    def composites(self) -> dict[str, int]:
        """How often each composite of the target was found, in the order of its file."""
        found = Counter(unit.composite for graph in self.graphs for unit in graph.units)
        return {pattern.name: found[pattern.name] for pattern in self.target.patterns}


def explain(model: Model, target: Target, node: str | None = None, op: str | None = None) -> Explanation:
    """Return what a target says of a model.

    With `node` only the node of that name (or output) is looked at, with `op` only nodes of that
    operator. Raises InputError when there is none.
    """
    if target.quantized:
        model = unshared(model)
    graphs = tuple(_explained(place, index, target) for place, index in _graphs("", model.index))
    asked = tuple((graph, number) for graph in graphs for number in _chosen(graph, node, op))
    if (node or op) and not asked:
        raise _not_there(model, graphs, node, op)
    wanted = {(id(graph), number) for graph, number in asked}
    refusals = tuple(
        refusal
        for graph in graphs
        for refusal in _refusals(graph, Annotator(target, graph.index))
        if (id(graph), refusal.number) in wanted
    )
    return Explanation(model, target, graphs, asked, refusals)


def _graphs(place: str, index: GraphIndex) -> Iterator[tuple[str, GraphIndex]]:
    yield place.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from _graphs(f"{place}{called(index.nodes[number])}/{body.attribute}/", body.index)


def _explained(place: str, index: GraphIndex, target: Target) -> Explained:
    annotator = Annotator(target, index)
    marks = [annotator.mark(number) for number in range(len(index.nodes))]
    sizes = Sizes(index.types)
    units = group(index, target.patterns, marks)
    matches = [unit.match for unit in units if unit.match is not None]
    return Explained(
        quantized=target.quantized,
        graph=place,
        index=index,
        marks=marks,
        units=units,
        misses=near_misses(index, target.patterns, marks, matches=matches),
        operations={
            number: work(index, sizes, (number,)).operations
            for number in range(len(index.nodes))
            if number not in index.constant_nodes
        },
    )


def _chosen(graph: Explained, name: str | None, op: str | None) -> Iterator[int]:
    for number in graph.operations:
        node = graph.index.nodes[number]
        if op is not None and op not in (node.op_type, operator(node)):
            continue
        if name is None or name == node.name or name in filter(None, node.output):
            yield number


def _not_there(
    model: Model, graphs: Sequence[Explained], name: str | None, op: str | None
) -> InputError:
    nodes = [graph.index.nodes[number] for graph in graphs for number in graph.operations]
    named = [
        node for node in nodes if name is not None and name in (node.name, *filter(None, node.output))
    ]
    if named and op is not None:
        there = ", ".join(dict.fromkeys(map(operator, named)))
        return InputError(f"{model.source}: '{name}' is of the operator {there}, not {op}")
    known = {node.op_type for node in nodes} | {operator(node) for node in nodes}
    if op is not None and op not in known:
        return InputError(f"{model.source}: there is no operator {op}{nearest(op, known)}")
    if op is not None:
        nodes = [node for node in nodes if op in (node.op_type, operator(node))]
    wanted = f"node '{name}'" if op is None else f"{op} '{name}'"
    return InputError(f"{model.source}: there is no {wanted}{_like(str(name), nodes)}")


def _like(name: str, nodes: Sequence[NodeProto]) -> str:
    """Return a suggestion: the nearest name, or one that has the same letters and digits in it."""
    names = {label: None for node in nodes for label in (node.name, *node.output) if label}
    hint = nearest(name, names)
    letters = _letters(name)
    if not hint and letters:
        inside = [label for label in names if letters in _letters(label)]
        hint = f" (did you mean {min(inside, key=len)}?)" if inside else ""
    return hint


def _letters(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower())


def _refusals(graph: Explained, annotator: Annotator) -> Iterator[Refusal]:
    for unit in graph.units:
        if unit.verdict:
            continue
        for number in unit.nodes:
            attempts: tuple[Attempt, ...] = ()
            goes_with = _goes_with(graph, unit)
            if goes_with:
                reasons: tuple[Objection, ...] = (Objection("", goes_with),)
            else:
                attempts = _attempts(graph, unit, number, annotator)
                reasons = attempts[0].objections
            yield Refusal(graph.graph, graph.index, number, attempts, reasons, graph.operations[number])


def _attempts(graph: Explained, unit: Unit, number: int, annotator: Annotator) -> tuple[Attempt, ...]:
    """Return what speaks against a node: of the rules, and of the grouper where one accepts it."""
    tried = [attempt for attempt in annotator.attempts(number) if attempt.objections]
    mark = graph.marks[number]
    if not mark.verdict:
        return tuple(tried)
    key = "standalone" if mark.plain and not mark.standalone else "quantized"
    said = (Objection(f"{mark.rule}.{key}", reason) for reason in unit.verdict.reasons)
    own = Attempt(mark.rule, tuple(said))
    if mark.quantized and not mark.plain and not _is_between(graph.index, unit):
        return (*tried, own)  # no rule for quantized operators was meant
    return (own, *tried)


def _is_between(index: GraphIndex, unit: Unit) -> bool:
    """Return whether a DequantizeLinear or a QuantizeLinear is in a unit or next to it."""
    return any(
        is_border(index.nodes[near])
        for number in unit.nodes
        for near in (number, *_before(index, number), *_behind(index, number))
        if near not in index.constant_nodes
    )


def _before(index: GraphIndex, number: int) -> Iterator[int]:
    yield from (index.producer[name] for name in index.nodes[number].input if name in index.producer)


def _behind(index: GraphIndex, number: int) -> Iterator[int]:
    for name in index.nodes[number].output:
        yield from index.consumers.get(name, ())


def _goes_with(graph: Explained, unit: Unit) -> str:
    """Return with which refused operator a DequantizeLinear or QuantizeLinear goes, empty: with none."""
    index, number = graph.index, unit.nodes[0]
    node = index.nodes[number]
    if len(unit.nodes) > 1 or not is_border(node) or not graph.quantized:
        return ""
    near = _behind(index, number) if is_dequantize(node) else _before(index, number)
    for other in near:
        if not is_border(index.nodes[other]) and other in graph.unit_of and other not in graph.taken:
            return f"it goes with {describe(index.nodes[other])}, which is refused"
    return ""
