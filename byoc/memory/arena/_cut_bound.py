"""Lower bound on an arena: the fewest bytes that can be live while one step runs, by a minimum cut.

While a step runs, the steps executed so far form a down-set with all its ancestors and none of its
descendants. A buffer is live if its maker is in the set and one of its readers is not. The set with the
fewest live bytes is a minimum cut (Picard, Management Science 22, 1976): the source side has run, the
sink side has not. The maximum over all steps is a lower bound for every order.
"""

from collections import deque
from collections.abc import Iterator
from math import inf
from time import monotonic

from byoc.memory.arena._arena_problem import ArenaProblem
from byoc.memory.arena._live_ranges import LiveRanges
from byoc.memory.arena._segments import Segment, SegmentItem, split_segments

UNLIMITED = 1 << 100
"""A capacity that no cut may hold; sums of bytes stay far below it."""


class LiveBytesNetwork:
    """A flow network: node 0 is the source, node 1 the sink, and arcs have integer capacities.

    Maximum flow by Dinic (Soviet Mathematics Doklady 11, 1970), in integers of any size.
    """

    def __init__(self) -> None:
        """Start with no arcs."""
        self._arcs: list[list[int]] = [[], []]
        self._head: list[int] = []
        self._left: list[int] = []

    def add_node(self) -> int:
        """Add a node and return it."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def add_arc(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._arcs[start].append(len(self._head))
            self._head.append(end)
            self._left.append(room)

    def maximum_flow(self) -> int:
        """Return the maximum flow from source to sink, equal to the capacity of a minimum cut."""
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
        """Push flow along one shortest path; `used` counts the exhausted arcs of each node."""
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


_SOURCE, _SINK = 0, 1


def find_cut_at(problem: ArenaProblem, step: int) -> int:
    """Return the fewest bytes that can be live while the step runs, in any order."""
    segment = next(s for s in split_segments(problem) if step < s.start + s.count)
    return find_least_bytes_at(segment, step - segment.start)


def find_witness(lives: LiveRanges, at_least: int) -> int | None:
    """Return a step at which every order needs at least `at_least` bytes, None if no cut proves it.

    Only steps that need as much in the given order are candidates.
    """
    for segment in split_segments(lives.problem):
        for step, _ in _highest_first(lives, segment, at_least):
            if find_least_bytes_at(segment, step) >= at_least:
                return segment.start + step
    return None


def find_cut_bound(
    lives: LiveRanges, at_least: int = 0, deadline: float = inf
) -> tuple[int, int | None]:
    """Return the largest cut over all steps, in bytes, and its step.

    Only cuts above `at_least` are searched; without one the step is None. A step never needs more than
    in the given order, which saves most flow computations. At the deadline, a time of `time.monotonic`,
    the largest cut so far is returned.
    """
    found: tuple[int, int | None] = (at_least, None)
    for segment in split_segments(lives.problem):
        for step, here in _highest_first(lives, segment, at_least + 1):
            if here <= found[0] or monotonic() > deadline:
                break
            needed = find_least_bytes_at(segment, step)
            if needed > found[0]:
                found = (needed, segment.start + step)
    return found


def _highest_first(lives: LiveRanges, segment: Segment, at_least: int) -> Iterator[tuple[int, int]]:
    """Yield steps of a segment that need at least `at_least` bytes in the given order, largest first."""
    # Every order runs the steps of a segment at the positions of that segment.
    positions = range(segment.start, segment.start + segment.count)
    for at in sorted(positions, key=lambda at: -lives.bytes_at[at]):
        if lives.bytes_at[at] < at_least:
            return
        yield lives.order[at] - segment.start, lives.bytes_at[at]


def find_least_bytes_at(segment: Segment, step: int) -> int:
    """Return the fewest bytes that can be live while a step of the segment runs."""
    ancestors, descendants = _find_relatives(segment, step)
    never = descendants | 1 << step
    makes = [segment.items[i] for i in segment.makes[step]]
    more = segment.scratch[step] + sum(item.size for item in makes)
    least = more + _find_fewest_live_bytes(segment, ancestors, never)
    for item in (segment.items[i] for i in segment.may_overwrite[step]):
        # The other readers have to have run where the step writes over the operand.
        others = item.reader_mask & ~(1 << step)
        if makes and not item.outlives and not others & never:
            ran = _with_ancestors(segment, ancestors | others)
            least = min(least, more - item.size + _find_fewest_live_bytes(segment, ran, never))
    return least


def _find_relatives(segment: Segment, step: int) -> tuple[int, int]:
    descendants = 0
    for other, before in enumerate(segment.predecessors):
        if before & (descendants | 1 << step):
            descendants |= 1 << other
    return _with_ancestors(segment, segment.predecessors[step]), descendants


def _with_ancestors(segment: Segment, steps: int) -> int:
    """Return a set of steps with all their ancestors."""
    for step in reversed(range(segment.count)):
        if steps >> step & 1:
            steps |= segment.predecessors[step]
    return steps


def _find_fewest_live_bytes(segment: Segment, ran: int, never: int) -> int:
    """Return the fewest bytes live if all of `ran` and none of `never` have run."""
    network = LiveBytesNetwork()
    free = [s for s in range(segment.count) if not (ran | never) >> s & 1]
    nodes = {step: network.add_node() for step in free}
    for step in free:
        for other in free:
            if segment.predecessors[step] >> other & 1:
                network.add_arc(nodes[step], nodes[other], UNLIMITED)
    sure = segment.bytes_before - sum(item.size for item in segment.items if not item.maker_mask)
    for item in segment.items:
        if item.maker_mask & never:
            continue
        is_there = not item.maker_mask & ~ran
        if item.outlives or item.reader_mask & never:
            if is_there:
                sure += item.size
            else:
                network.add_arc(nodes[item.maker_mask.bit_length() - 1], _SINK, item.size)
        elif item.reader_mask & ~ran:
            maker = _SOURCE if is_there else nodes[item.maker_mask.bit_length() - 1]
            _add_lifetime_arcs(network, nodes, maker, item)
    return sure + network.maximum_flow()


def _add_lifetime_arcs(
    network: LiveBytesNetwork, nodes: dict[int, int], maker: int, item: SegmentItem
) -> None:
    readers = [node for step, node in nodes.items() if item.reader_mask >> step & 1]
    if len(readers) == 1:
        network.add_arc(maker, readers[0], item.size)
        return
    hub = network.add_node()
    network.add_arc(maker, hub, item.size)
    for reader in readers:
        network.add_arc(hub, reader, UNLIMITED)
