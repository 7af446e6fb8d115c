"""Finding the smallest thing that shows a fault, by trying parts of it and nothing else.

A try may also tell nothing, since a compiler refuses a part that it would take as a piece of the whole.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class Outcome(Enum):
    """What a try told."""

    RIGHT = "right"
    OFF = "off"
    UNKNOWN = "unknown"


def earliest(count: int, trial: Callable[[int], Outcome]) -> int:
    """Return the length of a prefix that is off, while the next shorter one that tells anything is not.

    `trial` tries a prefix by its length from 1 to `count`, of which the last is known to be off. It is
    called about log2(count) times where no prefix is unknown.
    """
    low, high = 0, count
    unknown: set[int] = set()
    while True:
        left = [length for length in range(low + 1, high) if length not in unknown]
        if not left:
            return high
        middle = left[len(left) // 2]
        match trial(middle):
            case Outcome.OFF:
                high = middle
            case Outcome.RIGHT:
                low = middle
            case _:
                unknown.add(middle)


def shrunk(items: Sequence[T], trial: Callable[[Sequence[T]], Outcome]) -> list[T]:
    """Return items that are off together, in their order, but not known to be without any one of them.

    `items` are known to be off. This is ddmin: A. Zeller, R. Hildebrandt, Simplifying and Isolating
    Failure-Inducing Input, IEEE Transactions on Software Engineering 28 (2), 2002.
    """
    left = list(items)
    parts = 2
    while len(left) > 1:
        smaller = _smaller(left, parts, trial)
        if smaller is not None:
            left, parts = smaller
        elif parts == len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return left


def _smaller(
    items: list[T], parts: int, trial: Callable[[Sequence[T]], Outcome]
) -> tuple[list[T], int] | None:
    """Return a part, or all but a part, that is off, and in how many parts to cut that next."""
    bounds = [len(items) * i // parts for i in range(parts + 1)]
    slices = list(pairwise(bounds))
    for first, last in slices:
        if trial(items[first:last]) is Outcome.OFF:
            return items[first:last], 2
    if parts > 2:  # of two parts, each is all but the other
        for first, last in slices:
            rest = items[:first] + items[last:]
            if trial(rest) is Outcome.OFF:
                return rest, max(parts - 1, 2)
    return None
