"""The pattern grouper: nodes merge into composites, everything else is a unit of its own.

A unit is what the partitioner places: one node, or a composite taken whole. Larger patterns go first,
equal ones in the order of the file; a node belongs to at most one unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe
from byoc.patterns.match import Match, match_at
from byoc.patterns.pattern import Pattern
from byoc.verdict import YES, Mark, Verdict, refuse


@dataclass(frozen=True)
class Unit:
    """Nodes that are placed together, in topological order.

    `match` is there for a composite. `verdict` says whether the accelerator takes the unit, `rules`
    which rules accepted its nodes.
    """

    name: str
    nodes: tuple[int, ...]
    verdict: Verdict
    rules: tuple[str, ...]
    match: Match | None = None

    @property
    def composite(self) -> str | None:
        """The composite's name, None for a single node."""
        return self.match.pattern.name if self.match else None


def group(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Unit]:
    """Return the units of the main graph in topological order; constant nodes belong to none."""
    free = {i for i, mark in enumerate(marks) if mark.verdict} - index.constant_nodes
    matches: dict[int, Match] = {}
    for pattern in sorted(patterns, key=lambda pattern: -len(pattern.nodes)):
        for number in range(len(index.nodes)):
            if number not in free or index.nodes[number].op_type not in pattern.root.ops:
                continue
            found = match_at(pattern, number, index, free)
            if found is not None:
                matches[number] = found
                free.difference_update(found.nodes.values())
    inner = {node for match in matches.values() for node in match.nodes.values()}
    units = []
    for number, mark in enumerate(marks):
        if number in matches:
            units.append(_composite(index, number, matches[number], marks))
        elif number not in inner and number not in index.constant_nodes:
            units.append(_single(index, number, mark))
    return units


def _composite(index: GraphIndex, root: int, match: Match, marks: Sequence[Mark]) -> Unit:
    nodes = tuple(sorted(match.nodes.values()))
    return Unit(
        name=_name(index, root),
        nodes=nodes,
        verdict=YES,
        rules=tuple(marks[node].rule for node in nodes),
        match=match,
    )


def _single(index: GraphIndex, number: int, mark: Mark) -> Unit:
    verdict = mark.verdict
    if verdict and not mark.standalone:
        verdict = refuse(f"{index.nodes[number].op_type} is taken only inside a composite")
    return Unit(_name(index, number), (number,), verdict, (mark.rule,) if verdict else ())


def _name(index: GraphIndex, number: int) -> str:
    node = index.nodes[number]
    return node.name or next((name for name in node.output if name), describe(node))
