"""The steps of a model: which nodes each consists of, in an order that can be executed."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe


def staged(
    index: GraphIndex, left_out: frozenset[int], groups: Iterable[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the nodes of each step: the groups given, and every other node by itself.

    The nodes in `left_out` are in none. The order is that of the nodes, except where a group has to wait
    for what stands behind its first node. Raises ValueError for a node in two groups, and when a group
    would have to wait for itself.
    """
    stages: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group in groups:
        nodes = tuple(sorted(set(group) - left_out))
        if taken.intersection(nodes):
            raise ValueError(f"{describe(index.nodes[nodes[0]])} is in two groups")
        taken.update(nodes)
        if nodes:
            stages.append(nodes)
    stages += [(n,) for n in range(len(index.nodes)) if n not in taken and n not in left_out]
    return _sorted(index, stages)


def _sorted(index: GraphIndex, stages: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return stages sorted topologically, by the place of their last node where there is a choice."""
    of = {node: number for number, nodes in enumerate(stages) for node in nodes}
    before = [
        {
            of[maker]
            for node in nodes
            for name in index.reads[node]
            if (maker := index.producer.get(name)) in of and of[maker] != number
        }
        for number, nodes in enumerate(stages)
    ]
    after: list[list[int]] = [[] for _ in stages]
    for number, those in enumerate(before):
        for each in those:
            after[each].append(number)
    missing = [len(those) for those in before]
    ready = [(stages[number][-1], number) for number, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, number = heappop(ready)
        order.append(stages[number])
        for each in after[number]:
            missing[each] -= 1
            if not missing[each]:
                heappush(ready, (stages[each][-1], each))
    if len(order) < len(stages):
        stuck = next(s for s, count in zip(stages, missing, strict=True) if count and len(s) > 1)
        raise ValueError(f"the group of {describe(index.nodes[stuck[0]])} waits for itself")
    return order
