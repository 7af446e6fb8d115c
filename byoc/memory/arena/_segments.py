"""Segments of a problem, executed one after the other, and the least bytes of each step.

A step that every other step either precedes or follows is a gate: in any order, the same steps run
before it. Segments between gates are independent, smaller problems.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from byoc._dataclasses import dataclass
from byoc.memory.arena._arena_problem import ArenaProblem, Buffer, LiveRanges
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut


@dataclass(frozen=True)
class SegmentItem:
    """A buffer in a segment, with masks of the steps that write and read it there.

    `maker_mask` is 0 for a buffer that exists before the segment. `outlives` tells whether it outlives
    it.
    """

    size: int
    maker_mask: int
    reader_mask: int
    outlives: bool


@dataclass(frozen=True)
class Segment:
    """Steps `[start, start + count)` of a problem; step `start + i` is bit `i` of all masks.

    `bytes_before` are the live bytes before the first step, `bytes_after` those after the last one.
    `predecessors` are direct predecessors. `reads` and `makes` are the items of each step,
    `may_overwrite` those among its reads that its first result may overwrite.
    """

    start: int
    bytes_before: int
    bytes_after: int
    predecessors: tuple[int, ...]
    scratch: tuple[int, ...]
    items: tuple[SegmentItem, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    may_overwrite: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.predecessors)


def split_segments(problem: ArenaProblem) -> Iterator[Segment]:
    """Yield the segments in order."""
    last_read = [
        len(problem.steps) if b in problem.outputs else max(readers, default=-1)
        for b, readers in enumerate(problem.readers)
    ]
    change = Counter[int]()
    for buffer, size in enumerate(problem.sizes):
        made = problem.maker[buffer]
        if last_read[buffer] > made:
            change[made + 1] += size
            if last_read[buffer] < len(problem.steps):
                change[last_read[buffer] + 1] -= size
    base, start = change[0], 0
    for end in _find_segment_ends(problem):
        left = base + sum(change[at] for at in range(start + 1, end + 1))
        yield _build_segment(problem, last_read, start, end, (base, left))
        base, start = left, end


def _find_segment_ends(problem: ArenaProblem) -> list[int]:
    """Return the positions at which segments end: before and after each gate, and at the end."""
    count = len(problem.steps)
    earliest = [count] * count
    latest = [max(before, default=-1) for before in problem.predecessors]
    for number, before in enumerate(problem.predecessors):
        for other in before:
            earliest[other] = min(earliest[other], number)
    follows, lowest = [False] * count, count
    for number in reversed(range(count)):  # whether all later steps follow this one
        follows[number] = lowest >= number
        lowest = min(lowest, latest[number])
    ends, highest = set(), -1
    for number in range(count):  # and whether all earlier ones precede it
        if follows[number] and highest <= number:
            ends |= {number, number + 1}
        highest = max(highest, earliest[number])
    return sorted((ends | {count}) - {0})


def _build_segment(
    problem: ArenaProblem, last_read: Sequence[int], start: int, end: int, live: tuple[int, int]
) -> Segment:
    def mask(numbers: Sequence[int] | frozenset[int]) -> int:
        return sum(1 << (number - start) for number in numbers if start <= number < end)

    steps = problem.steps[start:end]
    local: dict[Buffer, int] = {}
    items: list[SegmentItem] = []
    for buffer in dict.fromkeys(b for step in steps for b in (*step.reads, *step.writes)):
        made = problem.maker[buffer]
        local[buffer] = len(items)
        items.append(
            SegmentItem(
                problem.sizes[buffer],
                1 << (made - start) if made >= start else 0,
                mask(problem.readers[buffer]),
                last_read[buffer] >= end,
            )
        )

    def ours(buffers: Sequence[Buffer]) -> tuple[int, ...]:
        return tuple(local[buffer] for buffer in dict.fromkeys(buffers))

    return Segment(
        start,
        *live,
        predecessors=tuple(mask(before) for before in problem.predecessors[start:end]),
        scratch=tuple(step.scratch for step in steps),
        items=tuple(items),
        reads=tuple(ours(step.reads) for step in steps),
        makes=tuple(ours(step.writes) for step in steps),
        may_overwrite=tuple(ours(step.may_overwrite) for step in steps),
    )


State = int


class Direction(Protocol):
    """A direction through a segment, as the search sees it.

    A state is the set of executed steps, one bit each. Live bytes are submodular in the set, and the
    additional bytes of a step (`extra`) shrink as the set grows; the search relies on both.
    """

    start: int
    """Live bytes where nothing has been walked."""
    needs: list[int]
    """For each step those that have to be walked before it, as a mask."""
    frees: list[list[int]]
    """For each step those that need it."""

    def extra(self, step: int, state: State) -> int:
        """Return the bytes that the step needs in addition to the live bytes."""

    def change(self, step: int, state: State) -> int:
        """Return the increase of live bytes by the step."""


class Forward:
    """The direction of execution."""

    def __init__(self, segment: Segment) -> None:
        """Precompute the sums that the search needs again and again."""
        self.start = segment.bytes_before
        self.needs = list(segment.predecessors)
        self.frees = _invert_masks(self.needs)
        items = segment.items
        self._makes = [
            sum(items[i].size for i in makes) + scratch
            for makes, scratch in zip(segment.makes, segment.scratch, strict=True)
        ]
        self._grows = [
            sum(items[i].size for i in makes if items[i].reader_mask or items[i].outlives)
            for makes in segment.makes
        ]
        self._dies = [
            [
                (items[i].size, items[i].reader_mask & ~(1 << step))
                for i in reads
                if not items[i].outlives
            ]
            for step, reads in enumerate(segment.reads)
        ]
        self._over = [
            [items[i].reader_mask & ~(1 << step) for i in over if makes and not items[i].outlives]
            for step, (over, makes) in enumerate(zip(segment.may_overwrite, segment.makes, strict=True))
        ]
        self._first = [items[makes[0]].size if makes else 0 for makes in segment.makes]

    def extra(self, step: int, state: State) -> int:
        """Return the bytes of results and scratch, minus those of an overwritten operand."""
        for others in self._over[step]:
            if not others & ~state:
                return self._makes[step] - self._first[step]
        return self._makes[step]

    def change(self, step: int, state: State) -> int:
        """Return the bytes of live results minus those of operands read for the last time."""
        grown = self._grows[step]
        for size, others in self._dies[step]:
            if not others & ~state:
                grown -= size
        return grown


class Backward:
    """The reverse direction: a buffer appears with its last reader and disappears with its maker."""

    def __init__(self, segment: Segment) -> None:
        """Precompute the sums that the search needs again and again."""
        self.start = segment.bytes_after
        self.frees = [_list_bits(before) for before in segment.predecessors]
        self.needs = [
            sum(1 << other for other in each) for each in _invert_masks(list(segment.predecessors))
        ]
        items = segment.items
        self._unread = [
            scratch
            + sum(items[i].size for i in makes if not items[i].reader_mask and not items[i].outlives)
            for makes, scratch in zip(segment.makes, segment.scratch, strict=True)
        ]
        self._goes = [
            sum(items[i].size for i in makes if items[i].reader_mask or items[i].outlives)
            for makes in segment.makes
        ]
        self._comes = [
            [(items[i].size, items[i].reader_mask) for i in reads if not items[i].outlives]
            for reads in segment.reads
        ]
        self._over = [
            [items[i].reader_mask for i in over if makes and not items[i].outlives]
            for over, makes in zip(segment.may_overwrite, segment.makes, strict=True)
        ]
        self._first = [items[makes[0]].size if makes else 0 for makes in segment.makes]

    def extra(self, step: int, state: State) -> int:
        """Return the bytes that appear with the step and its scratch, minus those it overwrites."""
        extra = self._unread[step] + self._coming(step, state)
        for readers in self._over[step]:
            if not readers & state:
                return extra - self._first[step]
        return extra

    def change(self, step: int, state: State) -> int:
        """Return the bytes of operands that appear with the step minus those of its results."""
        return self._coming(step, state) - self._goes[step]

    def _coming(self, step: int, state: State) -> int:
        return sum(size for size, readers in self._comes[step] if not readers & state)


def _invert_masks(needs: list[int]) -> list[list[int]]:
    frees: list[list[int]] = [[] for _ in needs]
    for step, mask in enumerate(needs):
        for other in _list_bits(mask):
            frees[other].append(step)
    return frees


def _list_bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


# Lower bound on an arena: the fewest bytes that can be live while one step runs, by a minimum cut.
#
# While a step runs, the steps executed so far form a down-set with all its ancestors and none of
# its descendants. A buffer is live if its maker is in the set and one of its readers is not. The
# set with the fewest live bytes is a minimum cut (Picard, Management Science 22, 1976): the source
# side has run, the sink side has not. The maximum over all steps is a lower bound for every order.

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
