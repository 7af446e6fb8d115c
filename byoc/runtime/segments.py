"""The order of execution of a partitioned graph: host segments alternate with single nodes."""

from collections.abc import Collection
from dataclasses import dataclass

from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class GraphStep:
    """One step of a graph: a single node (a region, or control flow around some) or a host segment."""

    nodes: tuple[int, ...]
    single: bool


def find_steps(
    index: GraphIndex, calls: Collection[int], controls: Collection[int] = frozenset()
) -> list[GraphStep]:
    """Return the steps that run a graph in which the nodes in `calls` are regions.

    `controls` are the nodes with regions in their bodies: each is a step of its own, too. All host nodes
    with the same number of single steps on their longest path from an input form one segment. Nodes that
    no output depends on are left out. Constant nodes take part only where an output of the graph or a
    control node needs them; otherwise each segment computes those that it reads.
    """
    alone = {*calls, *controls}
    needed = _needed_nodes(index)
    level: dict[str, int] = {}
    segments: dict[int, list[int]] = {}
    singles: dict[int, list[int]] = {}
    wanted = {*index.outputs, *(name for i in controls for name in index.reads[i])}
    for i in sorted(needed):
        node = index.nodes[i]
        if i in index.constant_nodes and wanted.isdisjoint(node.output):
            continue
        ready = max((level.get(name, 0) for name in index.reads[i]), default=0)
        if i in alone:
            singles.setdefault(ready, []).append(i)
            ready += 1
        else:
            segments.setdefault(ready, []).append(i)
        level.update((name, ready) for name in node.output)
    result = []
    for number in sorted({*segments, *singles}):
        if number in segments:
            result.append(GraphStep(tuple(segments[number]), single=False))
        result += [GraphStep((i,), single=True) for i in singles.get(number, ())]
    return result


def _needed_nodes(index: GraphIndex) -> set[int]:
    """Return the nodes that an output of the graph depends on."""
    needed: set[int] = set()
    pending = list(index.outputs)
    while pending:
        node = index.producers.get(pending.pop())
        if node is not None and node not in needed:
            needed.add(node)
            pending.extend(index.reads[node])
    return needed
