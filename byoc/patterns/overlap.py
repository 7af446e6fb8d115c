"""Overlapping composites, kept as alternatives: which of them are formed is left to the placement.

Where a composite that was not chosen overlaps one that was, without being part of it, both are
candidates: their nodes stay units of their own, and the placement chooses candidates that have no node
in common.
"""

from collections.abc import Sequence

from byoc.graph.index import GraphIndex
from byoc.patterns.candidates import candidates
from byoc.patterns.group import composite, grouped, single, sorted_units
from byoc.patterns.pattern import Pattern
from byoc.patterns.unit import Unit
from byoc.verdict import Mark


def with_alternatives(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> tuple[list[Unit], list[Unit]]:
    """Return the units of a graph in topological order, and the composites that overlap.

    The nodes of the composites are units by themselves. What cannot run by itself, or is part of a QDQ
    group, is in no alternative: there the larger match is chosen, as `group` does.
    """
    found = candidates(index, patterns, marks)
    units = grouped(index, found, marks)
    unit_of = {node: unit for unit in units for node in unit.nodes}
    alone = {
        number: single(index, number, mark)
        for number, mark in enumerate(marks)
        if number in unit_of and mark.verdict and mark.plain and mark.standalone
    }
    opened: dict[int, Unit] = {}
    rivals: dict[tuple[int, ...], Unit] = {}
    for match in found:
        nodes = tuple(sorted(match.nodes.values()))
        around = {id(unit_of[node]): unit_of[node] for node in nodes if node in unit_of}.values()
        whole = any(set(nodes) <= set(unit.nodes) for unit in around)
        crossed = [unit for unit in around if len(unit.nodes) > 1]
        parts = {*nodes, *(node for unit in crossed for node in unit.nodes)}
        if whole or not crossed or not parts <= alone.keys():
            continue
        if any(unit.kind != "composite" for unit in crossed):
            continue
        rivals.setdefault(nodes, composite(index, match, marks))
        for unit in crossed:
            opened[id(unit)] = unit
            rivals.setdefault(unit.nodes, unit)
    if not rivals:
        return units, []
    kept = [unit for unit in units if id(unit) not in opened]
    kept += [alone[node] for unit in opened.values() for node in unit.nodes]
    return sorted_units(index, kept), sorted(rivals.values(), key=lambda unit: unit.nodes)
