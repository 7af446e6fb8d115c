"""A topological order under contraction: which nodes can be joined without a cycle.

Each node has a position after those of all nodes that it reads, so that only nodes between the first and
the last of some nodes can be on a path that leaves these nodes and returns. Joining nodes changes as few
positions as possible (Pearce and Kelly, A dynamic topological sort algorithm for directed acyclic
graphs, JEA 2006).
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from byoc._dataclasses import dataclass, field
from byoc.model import GraphIndex

# Limits on the edges visited: for one search, and for all searches in a graph. Beyond them a path is
# assumed; matches are local, so that searches are short.
_MAX_AT_ONCE = 50_000
_LEAST_IN_ALL = 2_000_000  # edges that searches for returning paths visit, in small graphs
_IN_ALL_PER_NODE = 100  # the same for large graphs: time stays linear


@dataclass(eq=False)
class ContractionOrder:
    """The nodes of a graph in topological order; joined nodes share a position.

    `position` and `group_of` change with each `join`. Constant nodes are left out.
    """

    index: GraphIndex
    group_of: dict[int, Collection[int]] = field(default_factory=dict)
    """For each joined node, all nodes of its group."""
    _positions_differ: bool = False
    _visited_edges: int = 0

    @cached_property
    def position(self) -> list[int]:
        """The position of each node: at first the length of the longest path to it.

        Node numbers would do, but a branch that is written far away would then lie between all nodes of
        another.
        """
        index = self.index
        length = [0] * len(index.nodes)
        find_maker = index.producers.get
        for number, names in enumerate(index.reads):
            makers = map(find_maker, names)
            before = [length[maker] for maker in makers if maker is not None]
            if before:
                length[number] = 1 + max(before)
        return length

    @cached_property
    def _reader_cache(self) -> dict[int, Sequence[int]]:
        return {}

    @cached_property
    def _maker_cache(self) -> dict[int, Sequence[int]]:
        return {}

    def find_returning_node(self, nodes: Collection[int]) -> int | None:
        """Return a node on a path that leaves some nodes and returns to them, None if there is none.

        If the search reaches its limit, a visited node counts as one on such a path.
        """
        return self._search(self._with_joined(nodes), both=False)[0]

    def join(self, nodes: Collection[int]) -> int | None:
        """Join some nodes. If a path leaves and returns to them, only return a node on it."""
        inside = self._with_joined(nodes)
        found, after, before = self._search(inside, both=True)
        if found is None and after and before and not self._positions_differ:
            self._separate_positions()
            found, after, before = self._search(inside, both=True)
        if found is not None:
            return found
        positions = [self.position[node] for node in inside]
        if not after:
            self._set_position(inside, max(positions))
        elif not before:
            self._set_position(inside, min(positions))
        else:
            earlier, later = self._groups(before), self._groups(after)
            free = sorted({*positions, *(self.position[group[0]] for group in (*earlier, *later))})
            for group, position in zip([*earlier, inside], free, strict=False):
                self._set_position(group, position)
            for group, position in zip(reversed(later), reversed(free), strict=False):
                self._set_position(group, position)
        self.group_of.update(dict.fromkeys(inside, inside))
        return None

    def _separate_positions(self) -> None:
        """Give each group of joined nodes a position of its own."""
        position = 0
        for number in sorted(range(len(self.position)), key=self.position.__getitem__):
            group = self.group_of.get(number, (number,))
            if number == min(group):
                self._set_position(group, position)
                position += 1
        self._positions_differ = True

    def _set_position(self, nodes: Collection[int], position: int) -> None:
        for node in nodes:
            self.position[node] = position

    def _groups(self, nodes: Collection[int]) -> list[tuple[int, ...]]:
        """Return the groups of some nodes, in order of position."""
        groups = {self.position[node]: tuple(self.group_of.get(node, (node,))) for node in nodes}
        return [groups[position] for position in sorted(groups)]

    def _with_joined(self, nodes: Collection[int]) -> frozenset[int]:
        return frozenset(other for node in nodes for other in self.group_of.get(node, (node,)))

    def _search(self, inside: frozenset[int], *, both: bool) -> tuple[int | None, set[int], set[int]]:
        """Return a node on a returning path, and the nodes found after and before, between the given.

        The two directions take turns. There is no path as soon as one has ended; with `both`, the other
        goes on to its end, unless the first found nothing.
        """
        ties = int(both)  # to stand apart, nodes must not share a position
        after = _DirectedSearch(self, inside, self._readers_of, ties)
        before = _DirectedSearch(self, inside, self._makers_of, ties)
        limit = max(_LEAST_IN_ALL, _IN_ALL_PER_NODE * len(self.index.nodes)) - self._visited_edges
        limit = min(limit, _MAX_AT_ONCE)
        number = None
        while number is None:
            pending = [side for side in (after, before) if side.pending]
            ended = [side for side in (after, before) if not side.pending]
            if not pending or (ended and not (both and all(side.found for side in ended))):
                break
            side = min(pending, key=lambda side: side.visited_edges)
            number = side.step((before if side is after else after).found)
            if number is None and after.visited_edges + before.visited_edges > limit:
                number = side.last
        self._visited_edges += after.visited_edges + before.visited_edges
        return number, after.found, before.found

    def _readers_of(self, number: int) -> Sequence[int]:
        """Return the readers of a node, by position as long as nothing is joined."""
        if number not in self._reader_cache:
            consumers = self.index.consumers
            names = (name for name in self.index.nodes[number].output if name)
            found = {user for name in names for user in consumers.get(name, ())}
            self._reader_cache[number] = sorted(found, key=self._rank)
        return self._reader_cache[number]

    def _rank(self, number: int) -> tuple[int, int]:
        """Return the key by which positions are separated: nodes that share one are in rising order."""
        return self.position[number], number

    def _makers_of(self, number: int) -> Sequence[int]:
        """Return the makers of a node's inputs, the last first as long as nothing is joined."""
        if number not in self._maker_cache:
            index = self.index
            found = {index.producers[name] for name in index.reads[number] if name in index.producers}
            self._maker_cache[number] = sorted(
                found - index.constant_nodes, key=self._rank, reverse=True
            )
        return self._maker_cache[number]


@dataclass(eq=False)
class _DirectedSearch:
    """A search from some nodes in one direction, among the nodes between them."""

    order: ContractionOrder
    inside: frozenset[int]
    neighbours: Callable[[int], Sequence[int]]
    ties: int
    found: set[int] = field(default_factory=set)
    visited_edges: int = 0
    last: int = field(init=False)
    """The node of the last step."""

    def __post_init__(self) -> None:
        position = self.order.position
        self.low = min(position[node] for node in self.inside) - self.ties
        self.high = max(position[node] for node in self.inside) + self.ties
        self.pending: list[int] = []
        for number in self.inside:
            self._visit(number, at_start=True)

    def step(self, other_side: Collection[int]) -> int | None:
        """Visit the neighbours of one node; return it if it is on a returning path."""
        self.last = number = self.pending.pop()
        if number in other_side:
            return number
        for same in self.order.group_of.get(number, (number,)):
            if self._visit(same, at_start=False):
                return number
        return None

    def _visit(self, number: int, *, at_start: bool) -> bool:
        """Add the neighbours of a node to the search; return whether one is where the search began."""
        position, is_sorted = self.order.position, not self.order.group_of
        for other in self.neighbours(number):
            self.visited_edges += 1
            if other in self.inside:
                if not at_start:
                    return True
                continue
            if not self.low < position[other] < self.high:
                if is_sorted:  # all neighbours that follow are beyond, too
                    break
                continue
            if other not in self.found:
                self.found.update(self.order.group_of.get(other, (other,)))
                self.pending.append(other)
        return False
