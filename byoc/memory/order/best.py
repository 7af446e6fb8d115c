"""The order with the least peak, segment by segment, and bytes that no order's peak is below."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from byoc.memory.bound.cut import least_at
from byoc.memory.live import Live, live
from byoc.memory.order.search import search
from byoc.memory.order.segments import Backward, Forward, Segment, segments
from byoc.memory.problem import Problem

_MOST_STATES = 20_000
_MOST_DOUBTS = 4


@dataclass(frozen=True)
class Ordered:
    """An order, and the bytes that no order's peak is below; where both are one, it is proven best."""

    order: tuple[int, ...]
    peak: int
    bound: int


def best_order(problem: Problem, most_states: int = _MOST_STATES, deadline: float = inf) -> Ordered:
    """Return an order of the steps with the least peak.

    States of the search are limited in each segment and for each budget to `most_states`; beyond, the
    order may not be the best, and `bound` is what is proven. So it is at the deadline, a time of
    `time.monotonic`.
    """
    floor = sum(problem.sizes[buffer] for buffer in problem.inputs)
    order: list[int] = []
    bound = floor
    for segment in segments(problem):
        within = max([bound, *_alone(segment)])
        walked, proven = _walked(segment, within, most_states, deadline)
        bound = max(bound, proven)
        order += [segment.start + step for step in walked]
    return Ordered(tuple(order), live(problem, order).peak, bound)


def _alone(segment: Segment) -> Iterator[int]:
    """Yield for each step the bytes that are there while it runs, whatever the order."""
    items = segment.items
    for reads, makes, over, scratch in zip(
        segment.reads, segment.makes, segment.over, segment.scratch, strict=True
    ):
        shared = items[makes[0]].size if over and makes else 0
        yield scratch - shared + sum(items[i].size for i in (*reads, *makes))


def _walked(
    segment: Segment, proven: int, most_states: int, deadline: float
) -> tuple[tuple[int, ...], int]:
    """Return the steps in an order, and the proven bytes below which none is."""
    forward, backward = Forward(segment), Backward(segment)
    best = tuple(range(segment.count))
    (high, _), low = _peak(forward, best), proven
    budget, doubts = proven, 0
    while low < high and doubts < _MOST_DOUBTS:
        answer = search(forward, backward, budget, most_states, deadline)
        if answer.walked is not None:
            best = answer.walked
            peak, highest = _peak(forward, best)
            high = max(proven, peak)
            cut = min(high, least_at(segment, highest))
            if cut > low:
                low = proven = budget = cut  # most often no order needs more than that
                continue
        elif answer.next_budget is not None:
            low = proven = int(min(answer.next_budget, high))
        else:
            low, doubts = budget + 1, doubts + 1
        budget = (low + high) // 2
    return best, proven


def _peak(forward: Forward, steps: tuple[int, ...]) -> tuple[int, int]:
    """Return the most bytes that are there at a step, and that step."""
    peak, now, state = (-1, -1), forward.start, 0
    for step in steps:
        peak = max(peak, (now + forward.extra(step, state), step))
        now += forward.change(step, state)
        state |= 1 << step
    return peak


_ROUNDS = 16


def varied(lives: Live, seed: int) -> Live:
    """Return another order whose peak is not higher, by swapping steps that do not wait for each other.

    The same seed gives the same order; it may be the one that went in.
    """
    random = Random(seed)
    for _ in range(_ROUNDS):
        order = list(lives.order)
        for _ in range(max(1, len(order) // 4)):
            if len(order) < 2:
                break
            at = random.randrange(len(order) - 1)
            if order[at] not in lives.problem.before[order[at + 1]]:
                order[at], order[at + 1] = order[at + 1], order[at]
        tried = live(lives.problem, order, last_operand=random.random() < 0.5)
        if tried.peak <= lives.peak:
            lives = tried
    return lives
