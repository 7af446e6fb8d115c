"""The pattern grouper: nodes merge into composites, these into QDQ groups, the rest are units alone.

Larger matches go first, equal ones in the order of the file and then of the nodes; a node belongs to at
most one unit. Units that became one node each never form a cycle.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe
from byoc.patterns.candidates import candidates
from byoc.patterns.match import Match
from byoc.patterns.order import Order
from byoc.patterns.pattern import Pattern
from byoc.patterns.qdq import wrap
from byoc.patterns.unit import HasNodes, Unit
from byoc.verdict import YES, Mark, refuse

__all__ = ["Unit", "chosen", "group", "grouped"]


T = TypeVar("T", bound=HasNodes)


def group(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Unit]:
    """Return the units of the main graph in topological order; constant nodes belong to none."""
    return grouped(index, candidates(index, patterns, marks), marks)


def grouped(index: GraphIndex, found: Iterable[Match], marks: Sequence[Mark]) -> list[Unit]:
    """Return the units as `group` does, where the candidates are known."""
    matches = _chosen(index, found)
    inner = {node for match in matches for node in match.nodes.values()}
    units = [composite(index, match, marks) for match in matches]
    for number, mark in enumerate(marks):
        if number not in inner and number not in index.constant_nodes:
            units.append(single(index, number, mark))
    wrapped = wrap(index, units, marks)
    ordered = sorted_units(index, wrapped)
    if len(ordered) < len(wrapped):
        raise AssertionError("units form a cycle")
    return ordered


def chosen(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Match]:
    """Return the composites of the main graph: each node in one at most, and no cycle between them."""
    return _chosen(index, candidates(index, patterns, marks))


def _chosen(index: GraphIndex, found: Iterable[Match]) -> list[Match]:
    taken: set[int] = set()
    kept: list[Match] = []
    order = Order(index)
    for match in found:
        nodes = set(match.nodes.values())
        if taken.isdisjoint(nodes) and order.join(nodes) is None:
            taken |= nodes
            kept.append(match)
    return kept


def composite(index: GraphIndex, match: Match, marks: Sequence[Mark]) -> Unit:
    """Return a match as a unit."""
    nodes = tuple(sorted(match.nodes.values()))
    return Unit(
        name=_name(index, match.root),
        nodes=nodes,
        verdict=YES,
        rules=tuple(marks[node].rule for node in nodes if marks[node].verdict),
        match=match,
        kind="composite",
        must=any(marks[node].must for node in nodes),
    )


def single(index: GraphIndex, number: int, mark: Mark) -> Unit:
    """Return a node as a unit of its own."""
    verdict = mark.verdict
    if verdict and not mark.standalone:
        verdict = refuse(f"{index.nodes[number].op_type} is taken only inside a composite")
    rules = (mark.rule,) if verdict else ()
    must = bool(verdict) and mark.must
    return Unit(_name(index, number), (number,), verdict, rules, must=must)


def _name(index: GraphIndex, number: int) -> str:
    node = index.nodes[number]
    return node.name or next((name for name in node.output if name), describe(node))


def sorted_units(index: GraphIndex, units: Sequence[T]) -> list[T]:
    """Return units in a topological order: by their last nodes, where that is one.

    Where units wait for one another in a circle, these and what comes after them are left out.
    """
    ordered = sorted(units, key=lambda unit: unit.nodes[-1])
    unit_of = {node: row for row, unit in enumerate(ordered) for node in unit.nodes}
    followers: list[list[int]] = [[] for _ in ordered]
    missing = [0] * len(ordered)
    for row, unit in enumerate(ordered):
        names = (name for node in unit.nodes for name in index.reads[node])
        producers = {unit_of.get(index.producer.get(name, -1), row) for name in names} - {row}
        missing[row] = len(producers)
        for producer in producers:
            followers[producer].append(row)
    ready = [row for row, count in enumerate(missing) if not count]
    heapify(ready)
    result = []
    while ready:
        row = heappop(ready)
        result.append(ordered[row])
        for follower in followers[row]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, follower)
    return result
