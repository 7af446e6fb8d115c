"""Why not: where a composite nearly matched, and what was in the way."""

from collections.abc import Collection, Sequence

from byoc.graph.index import GraphIndex
from byoc.patterns.candidates import free_nodes
from byoc.patterns.group import chosen
from byoc.patterns.match import Match
from byoc.patterns.pattern import Pattern
from byoc.patterns.probe import Explorer, NearMiss
from byoc.patterns.table import Table
from byoc.verdict import Mark

__all__ = ["NearMiss", "near_misses"]

_MOST_AROUND = 2_000
_MOST_TRIED = 200_000  # in one call, for all patterns: a few seconds


def near_misses(
    index: GraphIndex,
    patterns: Sequence[Pattern],
    marks: Sequence[Mark],
    node: int | None = None,
    matches: Sequence[Match] | None = None,
) -> list[NearMiss]:
    """Return where patterns nearly matched, by node and then in the order of the patterns.

    A miss has half of the pattern's lines, and two, the one that failed counted among the two if only
    its operator fits. Of several with a node in common, by one pattern, the deepest is given. Nodes that
    are in a composite are no misses, unless `node` asks for those of one node. `matches` are the
    composites that were found; they are looked for where they are not given. What would take too many
    attempts to find out is not told.
    """
    table = Table.of(index)
    if matches is None:
        matches = chosen(index, patterns, marks)
    taken = {number for match in matches for number in match.nodes.values()}
    own: dict[str, set[int]] = {}
    for match in matches:
        own.setdefault(match.pattern.name, set()).update(match.nodes.values())
    explorer = Explorer(table, free_nodes(index, marks), marks)
    found: list[tuple[int, int, NearMiss]] = []
    left = _MOST_TRIED
    for place, pattern in enumerate(patterns):
        explorer.left[0] = share = left // (len(patterns) - place)
        barred = taken if node is None else own.get(pattern.name, set())
        looked_at = (
            None if node is None else _around(table, node, max(len(f.nodes) for f in pattern.forms))
        )
        misses = [
            miss
            for form in pattern.forms
            for miss in explorer.misses(pattern, form, barred, looked_at)
            if barred.isdisjoint(miss.nodes) and (node is None or node in (*miss.nodes, miss.blocked))
        ]
        left -= share - max(explorer.left[0], 0)
        seen: set[int] = set()
        for miss in sorted(misses, key=lambda miss: (-miss.matched, miss.node)):
            nodes = miss.nodes if miss.blocked is None else miss.nodes | {miss.blocked}
            if seen.isdisjoint(nodes):
                seen |= nodes
                found.append((miss.node, place, miss))
    return [miss for _, _, miss in sorted(found, key=lambda item: item[:2])]


def _around(table: Table, node: int, steps: int) -> Collection[int]:
    """Return the nodes at most so many steps from one, forwards or backwards."""
    index = table.index
    found, edge = {node}, {node}
    for _ in range(steps):
        before = {index.producer.get(name, -1) for n in edge for name in table.inputs[n]} - {-1}
        after = {n for e in edge for name in table.outputs[e] for n in index.consumers.get(name, ())}
        edge = (before | after) - found
        found |= edge
        if len(found) > _MOST_AROUND:
            break
    return found
