"""Lower bound on an arena: the fewest bytes that can be live while one step runs, by a minimum cut.

While a step runs, the steps executed so far form a down-set with all its ancestors and none of its
descendants. A buffer is live if its maker is in the set and one of its readers is not. The set with the
fewest live bytes is a minimum cut (Picard, Management Science 22, 1976): the source side has run, the
sink side has not. The maximum over all steps is a lower bound for every order.
"""

from collections.abc import Iterator
from math import inf

from byoc.memory.arena._live_ranges import LiveRanges
from byoc.memory.arena._segments import Segment, split_segments
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut

# The seconds that a flow takes for each pair of a segment's steps.
_SECONDS_OF_PAIR = 2e-7


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
    lives: LiveRanges, at_least: int = 0, limit: SearchBudget | None = None
) -> tuple[int, int | None]:
    """Return the largest cut over all steps, in bytes, and its step.

    Only cuts above `at_least` are searched; without one the step is None. A step never needs more than
    in the given order, which saves most flow computations. When the budget `limit` is spent, the largest
    cut so far is returned.
    """
    limit = limit or SearchBudget()
    found: tuple[int, int | None] = (at_least, None)
    for segment in split_segments(lives.problem):
        for step, here in _highest_first(lives, segment, at_least + 1):
            if here <= found[0] or limit.is_spent:
                break
            limit.spend(_SECONDS_OF_PAIR * segment.count**2)
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
    free = [s for s in range(segment.count) if not (ran | never) >> s & 1]
    nodes = {step: number for number, step in enumerate(free, 2)}
    size = 2 + len(free)
    arcs: list[tuple[int, int, float]] = [
        (nodes[step], nodes[other], inf)
        for step in free
        for other in free
        if segment.predecessors[step] >> other & 1
    ]
    sure = segment.bytes_before - sum(item.size for item in segment.items if not item.maker_mask)
    for item in segment.items:
        if item.maker_mask & never:
            continue
        is_there = not item.maker_mask & ~ran
        maker = SOURCE if is_there else nodes[item.maker_mask.bit_length() - 1]
        if item.outlives or item.reader_mask & never:
            if is_there:
                sure += item.size
            else:
                arcs.append((maker, SINK, item.size))
        elif item.reader_mask & ~ran:
            readers = [node for step, node in nodes.items() if item.reader_mask >> step & 1]
            if len(readers) > 1:
                arcs += [(size, reader, inf) for reader in readers]
                readers, size = [size], size + 1
            arcs.append((maker, readers[0], item.size))
    return sure + (int(find_minimum_cut(size, list(zip(*arcs, strict=True)))[0]) if arcs else 0)
