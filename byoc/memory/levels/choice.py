"""What is resident when, and what that moves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
