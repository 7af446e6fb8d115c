"""Which nodes can be one without a circle: paths that leave some nodes and come back to them.

Each node has a place, later than those of all that it reads, so that only what lies between the first
and the last of some nodes can be on such a path. Where nodes become one, places change as little as they
have to (Pearce and Kelly, A dynamic topological sort algorithm for directed acyclic graphs, JEA 2006).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from byoc.graph.index import GraphIndex

# What is looked at, in edges: for some nodes, and for a graph, which is at least the second and grows
# with the graph. Matches are local; beyond this there counts as a path.
_MOST_AT_ONCE = 50_000
_LEAST_IN_ALL = 2_000_000
_IN_ALL_PER_NODE = 100


@dataclass(frozen=True, eq=False)
class Order:
    """The nodes of a graph in an order, those that were joined in one place.

    `place` and `one` change with each `join`; constants take no part.
    """

    index: GraphIndex
    one: dict[int, Collection[int]] = field(default_factory=dict)
    """The nodes that a node was joined with."""
    _apart: list[bool] = field(default_factory=list)
    _looked: list[int] = field(default_factory=lambda: [0])

    @cached_property
    def place(self) -> list[int]:
        """The place of each node: the length of the longest path to it, as long as that will do.

        By its number, a branch that is written far away would lie between all nodes of another.
        """
        index = self.index
        length = [0] * len(index.nodes)
        for number, names in enumerate(index.reads):
            makers = (index.producer[name] for name in names if name in index.producer)
            length[number] = max((length[maker] + 1 for maker in makers), default=0)
        return length

    @cached_property
    def _readers(self) -> dict[int, Sequence[int]]:
        return {}

    @cached_property
    def _makers(self) -> dict[int, Sequence[int]]:
        return {}

    @property
    def _most(self) -> int:
        left = max(_LEAST_IN_ALL, _IN_ALL_PER_NODE * len(self.index.nodes)) - self._looked[0]
        return min(left, _MOST_AT_ONCE)

    def returns(self, nodes: Collection[int]) -> int | None:
        """Return a node outside on a path that leaves some nodes and comes back, None without one.

        Where there is too much to look through, a node that was reached counts as one on such a path.
        """
        return self._search(self._whole(nodes), both=False)[0]

    def join(self, nodes: Collection[int]) -> int | None:
        """Make one of some nodes; where a path leaves and comes back, return a node on it instead."""
        inside = self._whole(nodes)
        found, after, before = self._search(inside, both=True)
        if found is None and after and before and not self._apart:
            self._set_apart()
            found, after, before = self._search(inside, both=True)
        if found is not None:
            return found
        places = [self.place[node] for node in inside]
        if not after:
            self._put(inside, max(places))
        elif not before:
            self._put(inside, min(places))
        else:
            earlier, later = self._units(before), self._units(after)
            free = sorted({*places, *(self.place[unit[0]] for unit in (*earlier, *later))})
            ordered = [*earlier, inside]
            for unit, place in zip(ordered, free, strict=False):
                self._put(unit, place)
            for unit, place in zip(reversed(later), reversed(free), strict=False):
                self._put(unit, place)
        self.one.update(dict.fromkeys(inside, inside))
        return None

    def _set_apart(self) -> None:
        """Give each node a place that no other has, but those that are one."""
        ordered = sorted(range(len(self.place)), key=self.place.__getitem__)
        position = 0
        for number in ordered:
            whole = self.one.get(number, (number,))
            if number == min(whole):
                self._put(whole, position)
                position += 1
        self._apart.append(True)

    def _put(self, nodes: Collection[int], place: int) -> None:
        for node in nodes:
            self.place[node] = place

    def _units(self, nodes: Collection[int]) -> list[tuple[int, ...]]:
        """Return nodes with those that they are one with, in their order."""
        found = {self.place[node]: tuple(self.one.get(node, (node,))) for node in nodes}
        return [found[place] for place in sorted(found)]

    def _whole(self, nodes: Collection[int]) -> frozenset[int]:
        return frozenset(other for node in nodes for other in self.one.get(node, (node,)))

    def _search(self, inside: frozenset[int], *, both: bool) -> tuple[int | None, set[int], set[int]]:
        """Return a node on a path back, and what lies behind and before some nodes, between them.

        Both directions go on in turn until one has come to its end, which says that there is no path;
        with `both`, until the other has as well, unless the first found nothing.
        """
        ties = int(both)  # beside each other is too near for what is to stand behind
        after = _Side(self, inside, self._after, ties)
        before = _Side(self, inside, self._before, ties)
        sides, most = (after, before), self._most
        while True:
            pending = [side for side in sides if side.pending]
            ended = [side for side in sides if not side.pending]
            number = None
            if not pending or (ended and not (both and all(side.found for side in ended))):
                break
            side = min(pending, key=lambda side: side.looked)
            number = side.step((before if side is after else after).found)
            if number is None and after.looked + before.looked > most:
                number = side.last
            if number is not None:
                break
        self._looked[0] += after.looked + before.looked
        return number, after.found, before.found

    def _after(self, number: int) -> Sequence[int]:
        """Return the readers of a node; in the order of their places where nothing was joined yet."""
        if number not in self._readers:
            consumers = self.index.consumers
            names = (name for name in self.index.nodes[number].output if name)
            found = {user for name in names for user in consumers.get(name, ())}
            self._readers[number] = sorted(found, key=self.place.__getitem__)
        return self._readers[number]

    def _before(self, number: int) -> Sequence[int]:
        """Return the makers of what a node reads, the last first where nothing was joined yet."""
        if number not in self._makers:
            index = self.index
            found = {index.producer[name] for name in index.reads[number] if name in index.producer}
            ordered = sorted(found - index.constant_nodes, key=self.place.__getitem__, reverse=True)
            self._makers[number] = ordered
        return self._makers[number]


@dataclass(eq=False)
class _Side:
    """A search from some nodes in one direction, among the places between them."""

    order: Order
    inside: frozenset[int]
    neighbours: Callable[[int], Sequence[int]]
    ties: int
    found: set[int] = field(default_factory=set)
    looked: int = 0
    last: int = -1

    def __post_init__(self) -> None:
        place = self.order.place
        self.low = min(place[node] for node in self.inside) - self.ties
        self.high = max(place[node] for node in self.inside) + self.ties
        self.pending: list[int] = []
        for number in self.inside:
            self._look(number, frozenset())

    def step(self, met: Collection[int]) -> int | None:
        """Look around one node; return one on a path back, if the other side was there before."""
        number = self.pending.pop()
        if number in met:
            return number
        for same in self.order.one.get(number, (number,)):
            if self._look(same, self.inside):
                return number
        return None

    def _look(self, number: int, ends: Collection[int]) -> bool:
        place, fixed = self.order.place, not self.order.one
        for other in self.neighbours(number):
            self.looked += 1
            if other in self.inside:
                if ends:
                    return True
                continue
            if not self.low < place[other] < self.high:
                if fixed:
                    break
                continue
            if other not in self.found:
                whole = self.order.one.get(other, (other,))
                self.found.update(whole)
                self.pending.append(other)
                self.last = other
        return False
