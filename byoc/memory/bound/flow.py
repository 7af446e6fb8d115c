"""Maximum flow in whole numbers of any size (Dinic, Soviet Mathematics Doklady 11, 1970)."""

from collections import deque

ENDLESS = 1 << 100
"""A capacity that no cut may hold; sums of bytes stay far below it."""


class Network:
    """Nodes 0 (source), 1 (sink) and as many more as are asked for, joined by arcs with capacities."""

    def __init__(self) -> None:
        """Begin with no arcs."""
        self._arcs: list[list[int]] = [[], []]
        self._head: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """Return a new node."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, capacity: int) -> None:
        """Join two nodes."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._arcs[start].append(len(self._head))
            self._head.append(end)
            self._left.append(room)

    def maximum_flow(self) -> int:
        """Return the most that flows from source to sink, which is what a minimum cut holds."""
        total = 0
        while (levels := self._levels())[1] >= 0:
            used = [0] * len(self._arcs)
            while pushed := self._push(levels, used):
                total += pushed
        return total

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._arcs)
        levels[0] = 0
        waiting = deque([0])
        while waiting and levels[1] < 0:
            node = waiting.popleft()
            for arc in self._arcs[node]:
                head = self._head[arc]
                if self._left[arc] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def _push(self, levels: list[int], used: list[int]) -> int:
        """Send what fits along one shortest way; `used` are arcs of each node that lead nowhere now."""
        way: list[int] = []
        node = 0
        while node != 1:
            arcs = self._arcs[node]
            while used[node] < len(arcs):
                arc = arcs[used[node]]
                if self._left[arc] and levels[self._head[arc]] == levels[node] + 1:
                    break
                used[node] += 1
            if used[node] < len(arcs):
                way.append(arcs[used[node]])
                node = self._head[way[-1]]
                continue
            if not way:
                return 0
            node = self._head[way.pop() ^ 1]
            used[node] += 1
        pushed = min(self._left[arc] for arc in way)
        for arc in way:
            self._left[arc] -= pushed
            self._left[arc ^ 1] += pushed
        return pushed
