"""Search for the smallest thing that shows a fault, by trials of its parts.

A trial may be inconclusive, since a compiler may refuse a part although it accepts the whole.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class TrialOutcome(Enum):
    """The outcome of a trial."""

    RIGHT = "right"
    WRONG = "off"
    UNKNOWN = "unknown"


def find_shortest_wrong(count: int, trial: Callable[[int], TrialOutcome]) -> int:
    """Find a wrong prefix whose next shorter prefix with a known outcome is right; return its length.

    `trial` tries a prefix of a length from 1 to `count`; the whole is known to be wrong. It is called
    about log2(count) times if no outcome is unknown.
    """
    low, high = 0, count
    unknown: set[int] = set()
    while True:
        untried = [length for length in range(low + 1, high) if length not in unknown]
        if not untried:
            return high
        middle = untried[len(untried) // 2]
        match trial(middle):
            case TrialOutcome.WRONG:
                high = middle
            case TrialOutcome.RIGHT:
                low = middle
            case _:
                unknown.add(middle)


def minimize_wrong(items: Sequence[T], trial: Callable[[Sequence[T]], TrialOutcome]) -> list[T]:
    """Reduce items that are wrong together, in order, until none of them can be left out.

    `items` are known to be wrong. This is ddmin: A. Zeller, R. Hildebrandt, Simplifying and Isolating
    Failure-Inducing Input, IEEE Transactions on Software Engineering 28 (2), 2002.
    """
    reduced = list(items)
    parts = 2
    while len(reduced) > 1:
        smaller = _find_smaller(reduced, parts, trial)
        if smaller is not None:
            reduced, parts = smaller
        elif parts == len(reduced):
            break
        else:
            parts = min(2 * parts, len(reduced))
    return reduced


def _find_smaller(
    items: list[T], parts: int, trial: Callable[[Sequence[T]], TrialOutcome]
) -> tuple[list[T], int] | None:
    """Return a part, or all but a part, that is wrong, and the next number of parts."""
    bounds = [len(items) * i // parts for i in range(parts + 1)]
    slices = list(pairwise(bounds))
    for first, last in slices:
        if trial(items[first:last]) is TrialOutcome.WRONG:
            return items[first:last], 2
    if parts > 2:  # of two parts, each is all but the other
        for first, last in slices:
            rest = items[:first] + items[last:]
            if trial(rest) is TrialOutcome.WRONG:
                return rest, max(parts - 1, 2)
    return None
