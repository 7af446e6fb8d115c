"""From a graph to its placement problem: annotate, group, join, pose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from byoc.costs.pose import Alternative, BodyCost, Posed, pose
from byoc.graph.index import GraphIndex
from byoc.patterns.group import group
from byoc.patterns.joint import JointUnit, joint
from byoc.patterns.overlap import with_alternatives
from byoc.patterns.unit import Unit
from byoc.plan.settings import Settings
from byoc.rules.annotate import annotate


@dataclass(frozen=True, eq=False)
class Units:
    """What is placed as one, in topological order, and the overlapping composites that are open."""

    units: list[JointUnit]
    alternatives: list[Alternative]


def units_of(index: GraphIndex, settings: Settings) -> Units:
    """Return a graph annotated and grouped for each accelerator, and joined."""
    marks = [annotate(index, target) for target in settings.targets]
    each: list[list[Unit]] = []
    rivals: list[tuple[int, Unit]] = []
    for device, (target, said) in enumerate(zip(settings.targets, marks, strict=True), 1):
        if target.rules.overlaps == "placement":
            units, overlapping = with_alternatives(index, target.patterns, said)
            rivals += [(device, unit) for unit in overlapping]
        else:
            units = group(index, target.patterns, said)
        each.append(units)
    joined = joint(index, each, marks)
    return Units(joined, [*_alternatives(joined, rivals)])


def _alternatives(units: list[JointUnit], rivals: list[tuple[int, Unit]]) -> list[Alternative]:
    """Return the composites whose nodes are whole units, as the rows of these."""
    row_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    found = []
    for device, unit in rivals:
        rows = tuple(sorted({row_of[node] for node in unit.nodes}))
        covered = sum(len(units[row].nodes) for row in rows)
        if (
            len(rows) > 1
            and covered == len(unit.nodes)
            and all(units[row].taken(device - 1) for row in rows)
        ):
            found.append(Alternative(device, rows, unit))
    return found


def pose_units(  # noqa: PLR0913, PLR0917 - what the problem is made of
    index: GraphIndex,
    found: Units,
    settings: Settings,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
    place: str = "",
    kept: Sequence[Mapping[int, str]] = (),
) -> Posed:
    """Return the placement problem of some units; `bodies` has the cost of nodes with bodies.

    `place` says which body the graph is, empty for the main one. `kept` has for each accelerator units,
    by number, that may not run there, with the reason.
    """
    facts = settings.facts
    refused = [facts.rows(index, place, found.units, target.name) for target in settings.targets]
    if kept:
        refused = [{**memory, **rows} for memory, rows in zip(kept, refused, strict=True)]
    return pose(
        index,
        found.units,
        settings.host,
        settings.devices,
        bodies,
        settings.unknown,
        settings.objective,
        found.alternatives,
        refused,
    )
