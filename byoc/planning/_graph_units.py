"""The graphs of a model that are placed, and their units: annotated and grouped for each target."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.costs import AlternativeComposite, can_partition_bodies
from byoc.model import GraphIndex
from byoc.patterns import JointUnit, Mark, Unit, group_units, group_with_alternatives, join_units
from byoc.rules import Target, annotate_graph


@dataclass(frozen=True, eq=False)
class GraphUnits:
    """The units of a graph in topological order, and overlapping composites that are left open."""

    units: list[JointUnit]
    alternatives: list[AlternativeComposite]


def find_graphs(index: GraphIndex) -> Iterator[GraphIndex]:
    """Yield the graphs in which regions may form: a graph, and bodies inside it that may be cut."""
    yield index
    for node, bodies in index.bodies.items():
        if can_partition_bodies(index, node):
            for body in bodies:
                yield from find_graphs(body.index)


def annotate_graphs(index: GraphIndex, targets: Sequence[Target]) -> dict[int, list[list[Mark]]]:
    """Return the marks of the nodes of each graph: by the id of its index, then target, then node."""
    return {
        id(graph): [annotate_graph(graph, target) for target in targets] for graph in find_graphs(index)
    }


def group_graphs(
    index: GraphIndex, targets: Sequence[Target], marks: Mapping[int, Sequence[Sequence[Mark]]]
) -> dict[int, GraphUnits]:
    """Return the units of each graph, by the id of its index, from the marks of its nodes."""
    return {id(graph): _group(graph, targets, marks[id(graph)]) for graph in find_graphs(index)}


def _group(index: GraphIndex, targets: Sequence[Target], marks: Sequence[Sequence[Mark]]) -> GraphUnits:
    """Return the units of a graph: grouped for each target, and joined over all targets."""
    each: list[list[Unit]] = []
    rivals: list[tuple[int, Unit]] = []
    for device, (target, own) in enumerate(zip(targets, marks, strict=True), 1):
        if target.rules.overlaps == "placement":
            units, overlapping = group_with_alternatives(index, target.patterns, own)
            rivals += [(device, unit) for unit in overlapping]
        else:
            units = group_units(index, target.patterns, own)
        each.append(units)
    joined = join_units(index, each, marks)
    return GraphUnits(joined, [*_find_alternatives(joined, rivals)])


def _find_alternatives(
    units: Sequence[JointUnit], rivals: Sequence[tuple[int, Unit]]
) -> Iterator[AlternativeComposite]:
    """Yield the composites whose nodes are whole units, as the rows of these."""
    row_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    for device, unit in rivals:
        rows = tuple(sorted({row_of[node] for node in unit.nodes}))
        covered = sum(len(units[row].nodes) for row in rows)
        if (
            len(rows) > 1
            and covered == len(unit.nodes)
            and all(units[row].is_supported(device - 1) for row in rows)
        ):
            yield AlternativeComposite(device, rows, unit)
