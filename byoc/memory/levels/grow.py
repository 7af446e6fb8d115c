"""A choice made better step by step: what can still be kept is kept, the most saved a byte first."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from byoc.memory.levels.choice import Choice, Keep, bytes_of, nothing_kept, occupied
from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer

# Beyond so many accesses of a buffer only neighbouring ones are tried, and all of them.
_MOST_ACCESSES = 10


def smallest(schedule: Schedule) -> list[Keep]:
    """Return the choice that takes the fewest bytes of the scratchpad: what is smaller than its staging
    is resident, as is what has to be, and nothing is kept.
    """
    choice = nothing_kept(schedule)
    for buffer, events in enumerate(schedule.events):
        small = [e.access.pinned or e.access.staging > schedule.sizes[buffer] for e in events]
        choice[buffer] = Keep(tuple(small), choice[buffer].kept)
    return choice


def grown(
    schedule: Schedule, size: int, choice: Choice, fits: Callable[[Choice], bool] | None = None
) -> list[Keep]:
    """Return a choice that moves no more bytes than `choice` and needs at most `size` in each turn.

    `fits` is asked about each change that saves bytes, once it is known to fit by its sum.
    """
    best = list(choice)
    used = occupied(schedule, best)
    changes = [(b, keep) for b in range(len(best)) for keep in _keeps(best[b])]
    changes.sort(key=lambda change: -_worth(schedule, best, *change))
    for buffer, wanted in changes:
        keep = _joined(best[buffer], wanted)
        if bytes_of(schedule, buffer, keep) >= bytes_of(schedule, buffer, best[buffer]):
            continue
        more = _held(schedule, buffer, keep) - _held(schedule, buffer, best[buffer])
        if (used + more)[more > 0].max(initial=0) > size:
            continue
        tried = [*best[:buffer], keep, *best[buffer + 1 :]]
        if fits is None or fits(tried):
            best, used = tried, occupied(schedule, tried)
    return best


def _keeps(keep: Keep) -> Iterator[Keep]:
    """Yield what could be kept: from one access to a later one, and all of it; or just made resident."""
    count = len(keep.resident)
    pairs = combinations(range(count), 2) if count <= _MOST_ACCESSES else _neighbours(count)
    for first, last in [*pairs, *((n, n) for n in range(count))]:
        resident = tuple(first <= n <= last for n in range(count))
        yield Keep(resident, tuple(first <= n < last for n in range(count - 1)))


def _neighbours(count: int) -> Sequence[tuple[int, int]]:
    return [(0, count - 1), *((n, n + 1) for n in range(count - 1))]


def _joined(one: Keep, other: Keep) -> Keep:
    resident = tuple(a or b for a, b in zip(one.resident, other.resident, strict=True))
    return Keep(resident, tuple(a or b for a, b in zip(one.kept, other.kept, strict=True)))


def _worth(schedule: Schedule, choice: Choice, buffer: Buffer, wanted: Keep) -> float:
    """Bytes saved a byte of the scratchpad and turn."""
    keep = _joined(choice[buffer], wanted)
    saved = bytes_of(schedule, buffer, choice[buffer]) - bytes_of(schedule, buffer, keep)
    more = _held(schedule, buffer, keep) - _held(schedule, buffer, choice[buffer])
    return saved / max(1, int(more.sum()))


def _held(schedule: Schedule, buffer: Buffer, keep: Keep) -> NDArray[np.int64]:
    """For each turn the bytes that a buffer takes, staging included."""
    held = np.zeros(len(schedule.turns), dtype=np.int64)
    events = schedule.events[buffer]
    for event, here in zip(events, keep.resident, strict=True):
        held[event.turn] += 0 if here else event.access.staging
    for first, last in keep.stays():
        held[events[first].turn : events[last].turn + 1] += schedule.sizes[buffer]
    return held
