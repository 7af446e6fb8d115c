"""Overlapping composites that are left to the placement as alternatives.

If a composite that was not chosen overlaps a chosen one, without being part of it, both are candidates:
their nodes stay single units, and the placement chooses candidates that share no node.
"""

from collections.abc import Sequence

from byoc.graph.index import GraphIndex
from byoc.patterns.candidates import find_candidates
from byoc.patterns.group import make_composite_unit, group_matches, make_single_unit, sort_units
from byoc.patterns.pattern import Pattern
from byoc.patterns.unit import Unit
from byoc.verdict import Mark


def group_with_alternatives(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> tuple[list[Unit], list[Unit]]:
    """Divide a graph into units in topological order, and return overlapping composites as well.

    The nodes of these composites are single units. Nodes that cannot run alone, or that are part of a
    QDQ group, are in no alternative: there the larger match is chosen, as `group_units` does.
    """
    found = find_candidates(index, patterns, marks)
    units = group_matches(index, found, marks)
    unit_of = {node: unit for unit in units for node in unit.nodes}
    alone = {
        number: make_single_unit(index, number, mark)
        for number, mark in enumerate(marks)
        if number in unit_of and mark.verdict and mark.accepts_plain and mark.standalone
    }
    opened: dict[tuple[int, ...], Unit] = {}
    rivals: dict[tuple[int, ...], Unit] = {}
    for match in found:
        nodes = tuple(sorted(match.nodes.values()))
        around = {unit_of[node].nodes: unit_of[node] for node in nodes if node in unit_of}.values()
        overlapping = [unit for unit in around if len(unit.nodes) > 1]
        involved = {*nodes, *(node for unit in overlapping for node in unit.nodes)}
        if (
            overlapping
            and not any(set(nodes) <= set(unit.nodes) for unit in around)
            and involved <= alone.keys()
            and all(unit.kind == "composite" for unit in overlapping)
        ):
            rivals.setdefault(nodes, make_composite_unit(index, match, marks))
            for unit in overlapping:
                opened[unit.nodes] = rivals.setdefault(unit.nodes, unit)
    if not rivals:
        return units, []
    kept = [unit for unit in units if unit.nodes not in opened]
    kept += [alone[node] for nodes in opened for node in nodes]
    return sort_units(index, kept), sorted(rivals.values(), key=lambda unit: unit.nodes)
