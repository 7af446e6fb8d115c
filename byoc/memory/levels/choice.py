"""What is resident when, and what that moves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer


@dataclass(frozen=True)
class Keep:
    """A buffer's part of a choice.

    `resident` says for each access whether the buffer is in the scratchpad while that turn runs,
    `kept` for each pair of consecutive accesses whether it stays there in between (both are resident
    then).
    """

    resident: tuple[bool, ...]
    kept: tuple[bool, ...]

    def without(self, event: int) -> "Keep":
        """The same with that access streamed, and nothing kept before and after it."""
        resident = tuple(here and n != event for n, here in enumerate(self.resident))
        kept = tuple(here and n not in (event - 1, event) for n, here in enumerate(self.kept))
        return Keep(resident, kept)

    def dropped(self, gap: int) -> "Keep":
        """The same with nothing kept between access `gap` and the next one."""
        return replace(self, kept=tuple(here and n != gap for n, here in enumerate(self.kept)))

    def stays(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last access of each time that the buffer is resident."""
        first = None
        for event, here in enumerate(self.resident):
            if not here:
                continue
            first = event if first is None else first
            if event == len(self.kept) or not self.kept[event]:
                yield first, event
                first = None


Choice = Sequence[Keep]
"""One `Keep` for each buffer of a schedule."""


@dataclass(frozen=True)
class Traffic:
    """What a buffer moves: accesses before which it is loaded and after which it is stored; bytes."""

    loads: tuple[int, ...]
    stores: tuple[int, ...]
    streamed: int


def nothing_kept(schedule: Schedule) -> list[Keep]:
    """Return the choice in which a buffer is resident only where it has to be, and kept nowhere."""
    return [
        Keep(tuple(e.access.pinned for e in events), (False,) * max(len(events) - 1, 0))
        for events in schedule.events
    ]


def traffic(schedule: Schedule, buffer: Buffer, keep: Keep) -> Traffic:
    """Return what a buffer moves under a choice.

    A buffer is stored once after it was written while resident, and only where its content is asked for
    in system memory later: when it has been dropped and is used again, or at the end, for an output.
    """
    loads, stores, streamed = [], [], 0
    written: int | None = None  # the access that wrote what only the scratchpad holds
    for number, event in enumerate(schedule.events[buffer]):
        stayed = number > 0 and keep.kept[number - 1]
        if schedule.has_content(buffer, number) and not stayed:
            if written is not None:
                stores.append(written)
                written = None
            if keep.resident[number]:
                loads.append(number)
        if not keep.resident[number]:
            streamed += event.streamed
        elif event.access.writes:
            written = number
    if written is not None and buffer in schedule.outputs:
        stores.append(written)
    return Traffic(tuple(loads), tuple(stores), streamed)


def bytes_of(schedule: Schedule, buffer: Buffer, keep: Keep) -> int:
    """Return the bytes that a buffer moves under a choice."""
    moves = traffic(schedule, buffer, keep)
    return schedule.sizes[buffer] * (len(moves.loads) + len(moves.stores)) + moves.streamed


def moved(schedule: Schedule, choice: Choice) -> int:
    """Return the bytes that a choice moves."""
    return sum(bytes_of(schedule, buffer, keep) for buffer, keep in enumerate(choice))


def taken_over(schedule: Schedule, choice: Choice) -> dict[Buffer, Buffer]:
    """Return the resident buffers that are written over others, with these, each at most once."""
    over: dict[Buffer, Buffer] = {}
    for _, written, read in schedule.takeovers:
        free = written not in over and read not in over.values()
        if free and choice[written].resident[0] and choice[read].resident[-1]:
            over[written] = read
    return over


def staging(schedule: Schedule, choice: Choice) -> list[int]:
    """Return for each turn the bytes of the scratchpad that it streams through."""
    needs = [turn.staging for turn in schedule.turns]
    for events, keep in zip(schedule.events, choice, strict=True):
        for event, here in zip(events, keep.resident, strict=True):
            needs[event.turn] += 0 if here else event.access.staging
    return needs


def occupied(schedule: Schedule, choice: Choice) -> NDArray[np.int64]:
    """Return for each turn the bytes of the scratchpad in use: those of buffers and of staging."""
    used = np.array(staging(schedule, choice), dtype=np.int64)
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        for first, last in keep.stays():
            used[events[first].turn : events[last].turn + 1] += schedule.sizes[buffer]
    for written in taken_over(schedule, choice):
        used[schedule.events[written][0].turn] -= schedule.sizes[written]
    return used


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
