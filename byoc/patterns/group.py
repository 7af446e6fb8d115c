"""The grouper: nodes become composites, these become QDQ groups, and the rest are units alone.

Larger matches go first, equal ones in the order of the file and then of the nodes; a node belongs to at
most one unit. Contracting each unit to one node never makes a cycle.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import TypeVar

from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe_node
from byoc.patterns.candidates import find_candidates
from byoc.patterns.match import Match
from byoc.patterns.order import ContractionOrder
from byoc.patterns.pattern import Pattern
from byoc.patterns.qdq import form_qdq_groups
from byoc.patterns.unit import NodeGroup, Unit
from byoc.verdict import YES, Mark, refuse

__all__ = ["Unit", "find_composites", "group_units", "group_matches"]


T = TypeVar("T", bound=NodeGroup)


def group_units(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Unit]:
    """Divide the main graph into units, in topological order; constant nodes belong to none."""
    return group_matches(index, find_candidates(index, patterns, marks), marks)


def group_matches(index: GraphIndex, candidates: Iterable[Match], marks: Sequence[Mark]) -> list[Unit]:
    """Divide the main graph into units, given the candidate matches."""
    matches = _choose_composites(index, candidates)
    inner = {node for match in matches for node in match.nodes.values()}
    units = [make_composite_unit(index, match, marks) for match in matches]
    for number, mark in enumerate(marks):
        if number not in inner and number not in index.constant_nodes:
            units.append(make_single_unit(index, number, mark))
    wrapped = form_qdq_groups(index, units, marks)
    ordered = sort_units(index, wrapped)
    if len(ordered) < len(wrapped):
        raise AssertionError("units form a cycle")
    return ordered


def find_composites(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Match]:
    """Find the composites of the main graph: no two share a node, and no cycle between them."""
    return _choose_composites(index, find_candidates(index, patterns, marks))


def _choose_composites(index: GraphIndex, found: Iterable[Match]) -> list[Match]:
    """Choose matches greedily: no two share a node, and no cycle between them."""
    inner: set[int] = set()
    matches: list[Match] = []
    order = ContractionOrder(index)
    for match in found:
        nodes = set(match.nodes.values())
        if inner.isdisjoint(nodes) and order.join(nodes) is None:
            inner |= nodes
            matches.append(match)
    return matches


def make_composite_unit(index: GraphIndex, match: Match, marks: Sequence[Mark]) -> Unit:
    """Make a unit of a match."""
    nodes = tuple(sorted(match.nodes.values()))
    return Unit(
        name=_unit_name(index, match.root),
        nodes=nodes,
        verdict=YES,
        rules=tuple(marks[node].rule for node in nodes if marks[node].verdict),
        match=match,
        kind="composite",
        must=any(marks[node].is_required for node in nodes),
    )


def make_single_unit(index: GraphIndex, number: int, mark: Mark) -> Unit:
    """Make a unit of one node."""
    verdict = mark.verdict
    if verdict and not mark.standalone:
        verdict = refuse(f"{index.nodes[number].op_type} is taken only inside a composite")
    rules = (mark.rule,) if verdict else ()
    must = bool(verdict) and mark.is_required
    return Unit(_unit_name(index, number), (number,), verdict, rules, must=must)


def _unit_name(index: GraphIndex, number: int) -> str:
    node = index.nodes[number]
    return node.name or next((name for name in node.output if name), describe_node(node))


def sort_units(index: GraphIndex, units: Sequence[T]) -> list[T]:
    """Sort units topologically, units that are ready at the same time by their last nodes.

    Units on a cycle, and those that depend on them, are left out.
    """
    ordered = sorted(units, key=lambda unit: unit.nodes[-1])
    row_of = {node: row for row, unit in enumerate(ordered) for node in unit.nodes}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for row, unit in enumerate(ordered):
        names = (name for node in unit.nodes for name in index.reads[node])
        sorter.add(row, *({row_of.get(index.producers.get(name, -1), row) for name in names} - {row}))
    with suppress(CycleError):  # as many rows as possible are ready nevertheless
        sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    result = []
    while ready:
        row = heappop(ready)
        result.append(ordered[row])
        sorter.done(row)
        for follower in sorter.get_ready():
            heappush(ready, follower)
    return result
