"""Search for the order with the least peak, segment by segment, with a lower bound on all peaks."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from byoc.memory.arena._arena_problem import ArenaProblem
from byoc.memory.arena._cut_bound import find_least_bytes_at
from byoc.memory.arena._live_ranges import LiveRanges, find_live_ranges
from byoc.memory.arena._order_search import search_order
from byoc.memory.arena._segments import Backward, Forward, Segment, split_segments
from byoc.numerics import SearchBudget

_MAX_STATES = 20_000
_MAX_DOUBTS = 4


@dataclass(frozen=True)
class OrderResult:
    """An order, its peak, and a lower bound on the peak of any order, in bytes."""

    order: tuple[int, ...]
    peak: int
    bound: int


def find_best_order(
    problem: ArenaProblem, most_states: int = _MAX_STATES, limit: SearchBudget | None = None
) -> OrderResult:
    """Return an order of the steps with the least peak found.

    The search visits at most `most_states` states for each segment and size, and ends when its budget
    `limit` is spent; then the order may not be optimal, and `bound` is what is proven.
    """
    limit = limit or SearchBudget()
    floor = sum(problem.sizes[buffer] for buffer in problem.inputs)
    order: list[int] = []
    bound = floor
    for segment in split_segments(problem):
        within = max([bound, *_own_bytes(segment)])
        walked, proven = _order_segment(segment, within, most_states, limit)
        bound = max(bound, proven)
        order += [segment.start + step for step in walked]
    return OrderResult(tuple(order), find_live_ranges(problem, order).peak, bound)


def _own_bytes(segment: Segment) -> Iterator[int]:
    """Yield for each step the bytes that its own operands and results need, in any order."""
    items = segment.items
    for reads, makes, over, scratch in zip(
        segment.reads, segment.makes, segment.may_overwrite, segment.scratch, strict=True
    ):
        shared = items[makes[0]].size if over and makes else 0
        yield scratch - shared + sum(items[i].size for i in (*reads, *makes))


def _order_segment(
    segment: Segment, proven: int, most_states: int, limit: SearchBudget
) -> tuple[tuple[int, ...], int]:
    """Return the steps of a segment in order, and a proven lower bound on their peak."""
    forward, backward = Forward(segment), Backward(segment)
    best = tuple(range(segment.count))
    (high, _), low = _find_peak(forward, best), proven
    budget, doubts = proven, 0
    while low < high and doubts < _MAX_DOUBTS:
        answer = search_order(forward, backward, budget, most_states, limit)
        if answer.steps is not None:
            best = answer.steps
            peak, highest = _find_peak(forward, best)
            high = max(proven, peak)
            cut = min(high, find_least_bytes_at(segment, highest))
            if cut > low:
                low = proven = budget = cut  # most often no order needs more than that
                continue
        elif answer.next_budget is not None:
            low = proven = int(min(answer.next_budget, high))
        else:
            low, doubts = budget + 1, doubts + 1
        budget = (low + high) // 2
    return best, proven


def _find_peak(forward: Forward, steps: tuple[int, ...]) -> tuple[int, int]:
    """Return the peak of a sequence of steps and the step at which it occurs."""
    peak, now, state = (-1, -1), forward.start, 0
    for step in steps:
        peak = max(peak, (now + forward.extra(step, state), step))
        now += forward.change(step, state)
        state |= 1 << step
    return peak


_ROUNDS = 16


def vary_order(lives: LiveRanges, seed: int) -> LiveRanges:
    """Return another order without a higher peak, by swapping independent neighbouring steps.

    The same seed gives the same order; it may be the given one.
    """
    random = Random(seed)
    for _ in range(_ROUNDS):
        order = list(lives.order)
        for _ in range(max(1, len(order) // 4)):
            if len(order) < 2:
                break
            at = random.randrange(len(order) - 1)
            if order[at] not in lives.problem.predecessors[order[at + 1]]:
                order[at], order[at + 1] = order[at + 1], order[at]
        tried = find_live_ranges(lives.problem, order, last_operand=random.random() < 0.5)
        if tried.peak <= lives.peak:
            lives = tried
    return lives
