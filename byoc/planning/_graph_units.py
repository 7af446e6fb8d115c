"""The graphs of a model that are placed, and their units: annotated and grouped for each target."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from byoc.costs import AlternativeComposite, can_partition_bodies, check_trips
from byoc.model import Dim, GraphIndex, Model, unshare_dequantize
from byoc.patterns import (
    JointUnit,
    Mark,
    Unit,
    group_units,
    group_with_alternatives,
    join_units,
    make_single_unit,
    open_units,
    sort_units,
)
from byoc.planning._clean_models import clean_for_targets
from byoc.planning._pinned_nodes import PinnedNodes
from byoc.rules import Target, annotate_graph
from byoc.zoo import Source, load_model


@dataclass(frozen=True, eq=False)
class GraphUnits:
    """The units of a graph in topological order, and overlapping composites that are left open."""

    units: list[JointUnit]
    alternatives: list[AlternativeComposite]


def load_units(  # noqa: PLR0913, PLR0917 - what units follow from
    source: Source | Model,
    targets: Sequence[Target],
    dims: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    trips: Mapping[str, float] | None = None,
    no_passes: str | Collection[str] = (),
) -> tuple[Model, dict[int, GraphUnits]]:
    """Load, clean and group a model for some targets; return it with the units of its graphs.

    `dims` and `shapes` are those of `load_model`, `trips` the trip counts that the user gives, by node,
    `no_passes` the clean-up passes that are left out. Raises InputError as `load_model`,
    `clean_for_targets` and `check_trips` do.
    """
    model = clean_for_targets(load_model(source, dims, shapes), targets, no_passes).model
    check_trips(model.index, trips or {})
    if any(target.has_quantized_rules for target in targets):
        model = unshare_dequantize(model)
    return model, group_graphs(model.index, targets, annotate_graphs(model.index, targets))


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


def split_pinned_units(
    index: GraphIndex,
    units: Mapping[int, GraphUnits],
    marks: Mapping[int, Sequence[Sequence[Mark]]],
    pins: PinnedNodes,
) -> dict[int, GraphUnits]:
    """Return the units of each graph, composites split whose nodes are pinned to several devices.

    An edit that brings nodes together can make a composite of what was placed apart. QDQ groups stay:
    their nodes are supported together or not at all.
    """
    found = dict(units)
    for graph in find_graphs(index):
        wanted = pins.wanted.get(id(graph))
        if not wanted:
            continue
        own, each = units[id(graph)], marks[id(graph)]
        split = [
            unit
            for unit in own.units
            if len({wanted[node].device for node in unit.nodes if node in wanted}) > 1
            and _can_split(unit, each)
        ]
        if split:
            nodes = [node for unit in split for node in unit.nodes]
            kept = [unit for unit in own.units if unit not in split]
            parts = sort_units(graph, [*kept, *(_make_single(graph, node, each) for node in nodes)])
            rivals = [(each.device, each.unit) for each in own.alternatives]
            found[id(graph)] = replace(
                own, units=parts, alternatives=[*_find_alternatives(parts, rivals)]
            )
    return found


def _can_split(unit: JointUnit, marks: Sequence[Sequence[Mark]]) -> bool:
    """Return whether rules that accept a unit's nodes accept each by itself."""
    quantized = any(part.kind == "qdq" for parts in unit.on_device for part in parts)
    return not quantized and all(own[node].accepts_plain for own in marks for node in unit.nodes)


def _make_single(index: GraphIndex, node: int, marks: Sequence[Sequence[Mark]]) -> JointUnit:
    units = [make_single_unit(index, node, own[node]) for own in marks]
    return JointUnit(units[0].name, (node,), tuple((unit,) for unit in units))


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
    if len(targets) > 1:
        each, opened = open_units(index, each, marks)
        rivals += [(device, unit) for device, units in enumerate(opened, 1) for unit in units]
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
