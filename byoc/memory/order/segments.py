"""A problem in segments that every order runs one after the other.

A step that each other step either precedes or follows is a gate: whatever the order, the same steps
stand in front of it. Between gates each segment is a problem of its own, and small.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byoc.memory.problem import Buffer, Problem


@dataclass(frozen=True)
class Item:
    """A buffer inside a segment: the steps there that make it and read it, as masks.

    `made` is 0 for one that is there from the beginning. `stays` says that it outlives the segment.
    """

    size: int
    made: int
    read: int
    stays: bool


@dataclass(frozen=True)
class Segment:
    """Steps `[start, start + count)` of a problem; step `start + i` is bit `i` of all masks.

    `base` are the bytes live before the first of them, `left` after the last, `before` direct
    predecessors. `reads` and `makes` are items of each step, `over` those among its reads that the
    first of its makes can be written over.
    """

    start: int
    base: int
    left: int
    before: tuple[int, ...]
    scratch: tuple[int, ...]
    items: tuple[Item, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    over: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """How many steps there are."""
        return len(self.before)


def segments(problem: Problem) -> Iterator[Segment]:
    """Yield the segments in their order."""
    last_read = [
        len(problem.steps) if b in problem.outputs else max(readers, default=-1)
        for b, readers in enumerate(problem.readers)
    ]
    change = [0] * (len(problem.steps) + 1)
    for buffer, size in enumerate(problem.sizes):
        made = problem.maker[buffer]
        if last_read[buffer] > made:
            change[made + 1] += size
            if last_read[buffer] < len(problem.steps):
                change[last_read[buffer] + 1] -= size
    base, start = change[0], 0
    for end in _ends(problem):
        left = base + sum(change[start + 1 : end + 1])
        yield _segment(problem, last_read, start, end, (base, left))
        base, start = left, end


def _ends(problem: Problem) -> list[int]:
    """Return where segments end: behind and in front of each gate, and behind the last step."""
    count = len(problem.steps)
    earliest = [count] * count
    latest = [max(before, default=-1) for before in problem.before]
    for number, before in enumerate(problem.before):
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


def _segment(
    problem: Problem, last_read: Sequence[int], start: int, end: int, live: tuple[int, int]
) -> Segment:
    def mask(numbers: Sequence[int] | frozenset[int]) -> int:
        return sum(1 << (number - start) for number in numbers if start <= number < end)

    steps = problem.steps[start:end]
    local: dict[Buffer, int] = {}
    items: list[Item] = []
    for buffer in dict.fromkeys(b for step in steps for b in (*step.reads, *step.makes)):
        made = problem.maker[buffer]
        local[buffer] = len(items)
        items.append(
            Item(
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
        before=tuple(mask(before) for before in problem.before[start:end]),
        scratch=tuple(step.scratch for step in steps),
        items=tuple(items),
        reads=tuple(ours(step.reads) for step in steps),
        makes=tuple(ours(step.makes) for step in steps),
        over=tuple(ours(step.over) for step in steps),
    )
