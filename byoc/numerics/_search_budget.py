"""The limit of a search: its work, counted, so that no plan depends on a machine or on its load."""

from collections.abc import Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Self

# Topological order with keys, disjoint sets, and rounding up.


def sort_topologically(
    predecessors: Sequence[Collection[int]], keys: Sequence[Any] | None = None
) -> list[int]:
    """Return the nodes 0, 1, ... in topological order, of those that are ready the smallest key first.

    The keys are distinct; without them, a key is the node's number. Nodes on a cycle, and those after
    one, are left out.
    """
    if keys is None and all(not before or max(before) < i for i, before in enumerate(predecessors)):
        return list(range(len(predecessors)))
    waiting = [0] * len(predecessors)
    after: list[list[int]] = [[] for _ in predecessors]
    for node, before in enumerate(predecessors):
        for other in before:
            waiting[node] += 1
            after[other].append(node)
    nodes = list(range(len(predecessors)))
    if keys is not None:
        nodes.sort(key=keys.__getitem__)
    rank = [0] * len(nodes)  # numbers are compared in less time than keys
    for place, node in enumerate(nodes):
        rank[node] = place
    ready = [rank[node] for node, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        node = nodes[heappop(ready)]
        order.append(node)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, rank[other])
    return order


def find_cycle(predecessors: Sequence[Iterable[int]]) -> list[int]:
    """Return the nodes of a cycle; empty if there is none."""
    try:
        TopologicalSorter(dict(enumerate(predecessors))).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def merge_groups(count: int, groups: Iterable[Sequence[int]]) -> list[int]:
    """Return for each of the numbers 0..count-1 the least of its set, each group being in one set."""
    parent = list(range(count))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for group in groups:
        for other in group[1:]:
            least, most = sorted((root(group[0]), root(other)))
            parent[most] = least
    return [root(number) for number in range(count)]


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple of a number that is not below `size`."""
    return -(-size // multiple) * multiple


class SearchBudget:
    """Seconds that searches may take on an ordinary computer, counted by their steps, never measured.

    Each search says what it does (`spend`), at the seconds that such steps take on one core of about
    3 GHz. On another computer, or a busy one, the search takes longer, and finds the same.
    """

    def __init__(self, seconds: float = inf, whole: Self | None = None) -> None:
        """Allow so many seconds; what is spent is taken from `whole`, too."""
        self._left = seconds
        self._whole = whole

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        within = self._left if self._whole is None else min(self._left, self._whole.left)
        return max(within, 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, seconds: float) -> None:
        """Take the seconds of a step away."""
        self._left -= seconds
        if self._whole is not None:
            self._whole.spend(seconds)

    def limit(self, seconds: float) -> "SearchBudget":
        """Return a part of this budget, of at most so many seconds."""
        return SearchBudget(seconds, self)
