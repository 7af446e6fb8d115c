"""Collecting what the annotator and the grouper say of every node of a model, bodies included."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx import NodeProto

from byoc.costs.trips import called
from byoc.costs.work import Sizes, work
from byoc.errors import InputError, nearest
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.unshare import unshared
from byoc.graph.walk import is_onnx
from byoc.patterns.explain import NearMiss, near_misses
from byoc.patterns.group import Unit, group
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
    tried, the nearest first; `reasons` those of the nearest, or the grouper's where a rule accepts the
    node and it is refused all the same; `operations` is its compute.
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

    @cached_property
    def unit_of(self) -> dict[int, Unit]:
        """The unit of each node that is not constant."""
        return {number: unit for unit in self.units for number in unit.nodes}


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
    return Explained(
        graph=place,
        index=index,
        marks=marks,
        units=group(index, target.patterns, marks),
        misses=near_misses(index, target.patterns, marks),
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
    if op is not None:
        known = {node.op_type for node in nodes}
        wanted = f"operator {op}" if name is None else f"operator {op} of the name '{name}'"
        return InputError(f"{model.source}: there is no {wanted}{nearest(op, known)}")
    names = {label for node in nodes for label in (node.name, *node.output) if label}
    return InputError(f"{model.source}: there is no node '{name}'{nearest(str(name), names)}")


def _refusals(graph: Explained, annotator: Annotator) -> Iterator[Refusal]:
    for unit in graph.units:
        if unit.verdict:
            continue
        for number in unit.nodes:
            mark = graph.marks[number]
            if mark.verdict:  # a rule accepts the node, and yet the grouper could not take the unit
                attempts: tuple[Attempt, ...] = ()
                key = "standalone" if mark.plain and not mark.standalone else "quantized"
                place = f"{mark.rule}.{key}"
                reasons = tuple(Objection(place, reason) for reason in unit.verdict.reasons)
            else:
                attempts = tuple(annotator.attempts(number))
                reasons = attempts[0].objections
            yield Refusal(graph.graph, graph.index, number, attempts, reasons, graph.operations[number])
