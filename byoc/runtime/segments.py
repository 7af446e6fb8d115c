"""The order of execution of a partitioned model: host segments and regions in turn."""

from collections.abc import Collection
from dataclasses import dataclass

from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class Step:
    """What runs next: one region (`call` is its node), or the host's nodes as one segment."""

    nodes: tuple[int, ...]
    call: bool


def steps(index: GraphIndex, calls: Collection[int]) -> list[Step]:
    """Return the steps that run a graph whose nodes in `calls` are regions.

    Host nodes wait until every region they need has run, and those that can then run form one segment:
    a node's segment is the number of regions' levels before it. What no output depends on is left out.
    Constant nodes take part only where their output is wanted from outside; otherwise each segment
    computes those that it reads.
    """
    needed = _needed(index)
    level: dict[str, int] = {}
    segments: dict[int, list[int]] = {}
    regions: dict[int, list[int]] = {}
    wanted = set(index.outputs)
    for i in sorted(needed):
        node = index.nodes[i]
        if i in index.constant_nodes and wanted.isdisjoint(node.output):
            continue
        ready = max((level.get(name, 0) for name in index.reads[i]), default=0)
        if i in calls:
            regions.setdefault(ready, []).append(i)
            ready += 1
        else:
            segments.setdefault(ready, []).append(i)
        level.update((name, ready) for name in node.output)
    result = []
    for number in sorted({*segments, *regions}):
        if number in segments:
            result.append(Step(tuple(segments[number]), call=False))
        result += [Step((i,), call=True) for i in regions.get(number, ())]
    return result


def _needed(index: GraphIndex) -> set[int]:
    """Return the nodes that some output of the graph depends on."""
    needed: set[int] = set()
    pending = list(index.outputs)
    while pending:
        node = index.producer.get(pending.pop())
        if node is not None and node not in needed:
            needed.add(node)
            pending.extend(index.reads[node])
    return needed
