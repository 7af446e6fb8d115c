"""Choices of resident buffers: the bytes they move, the bytes they occupy, and greedy improvement."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from byoc.memory.arena import Buffer
from byoc.memory.scratchpad._scratchpad_plan import AccessSchedule


@dataclass(frozen=True)
class BufferResidency:
    """The residency of one buffer.

    `resident` tells for each access whether the buffer is in the scratchpad during that turn; `kept` for
    each pair of consecutive accesses whether it stays there in between (then it is resident at both).
    """

    resident: tuple[bool, ...]
    kept: tuple[bool, ...]

    def stream_at(self, event: int) -> "BufferResidency":
        """Return the same with that access streamed, and nothing kept before and after it."""
        resident = tuple(here and n != event for n, here in enumerate(self.resident))
        kept = tuple(here and n not in (event - 1, event) for n, here in enumerate(self.kept))
        return BufferResidency(resident, kept)

    def drop_between(self, gap: int) -> "BufferResidency":
        """Return the same with nothing kept between access `gap` and the next one."""
        return replace(self, kept=tuple(here and n != gap for n, here in enumerate(self.kept)))

    def list_stays(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last access of each period of residency."""
        first = None
        for event, here in enumerate(self.resident):
            if not here:
                continue
            first = event if first is None else first
            if event == len(self.kept) or not self.kept[event]:
                yield first, event
                first = None


ResidencyChoice = Sequence[BufferResidency]
"""One `BufferResidency` for each buffer of a schedule."""


@dataclass(frozen=True)
class BufferTraffic:
    """Transfers of a buffer: the accesses it is loaded before and stored after, and bytes streamed."""

    loads: tuple[int, ...]
    stores: tuple[int, ...]
    streamed: int


def keep_nothing(schedule: AccessSchedule) -> list[BufferResidency]:
    """Return the choice in which a buffer is resident only where it must be, and never kept."""
    return [
        BufferResidency(tuple(e.access.pinned for e in events), (False,) * max(len(events) - 1, 0))
        for events in schedule.events
    ]


def find_traffic(schedule: AccessSchedule, buffer: Buffer, keep: BufferResidency) -> BufferTraffic:
    """Return the transfers of a buffer under a choice.

    A buffer written while resident is stored once, and only if its content is needed in system memory
    later: when it was dropped and is used again, or at the end, for an output.
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
    return BufferTraffic(tuple(loads), tuple(stores), streamed)


def count_buffer_traffic(schedule: AccessSchedule, buffer: Buffer, keep: BufferResidency) -> int:
    """Return the bytes that a buffer moves under a choice."""
    moves = find_traffic(schedule, buffer, keep)
    return schedule.sizes[buffer] * (len(moves.loads) + len(moves.stores)) + moves.streamed


def count_moved_bytes(schedule: AccessSchedule, choice: ResidencyChoice) -> int:
    """Return the bytes that a choice moves."""
    return sum(count_buffer_traffic(schedule, buffer, keep) for buffer, keep in enumerate(choice))


def find_residency_overwrites(schedule: AccessSchedule, choice: ResidencyChoice) -> dict[Buffer, Buffer]:
    """Return the resident buffers that overwrite others, with these, each at most once."""
    over: dict[Buffer, Buffer] = {}
    for _, written, read in schedule.overwrites:
        free = written not in over and read not in over.values()
        if free and choice[written].resident[0] and choice[read].resident[-1]:
            over[written] = read
    return over


def count_staging(schedule: AccessSchedule, choice: ResidencyChoice) -> list[int]:
    """Return for each turn the bytes of the scratchpad used for streaming."""
    needs = [turn.staging for turn in schedule.turns]
    for events, keep in zip(schedule.events, choice, strict=True):
        for event, here in zip(events, keep.resident, strict=True):
            needs[event.turn] += 0 if here else event.access.staging
    return needs


def count_occupied(schedule: AccessSchedule, choice: ResidencyChoice) -> NDArray[np.int64]:
    """Return for each turn the bytes of the scratchpad in use, by buffers and staging."""
    used = np.array(count_staging(schedule, choice), dtype=np.int64)
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        for first, last in keep.list_stays():
            used[events[first].turn : events[last].turn + 1] += schedule.sizes[buffer]
    for written in find_residency_overwrites(schedule, choice):
        used[schedule.events[written][0].turn] -= schedule.sizes[written]
    return used


# Beyond so many accesses of a buffer only neighbouring ones are tried, and all of them.
_MAX_ACCESSES = 10


def find_smallest_choice(schedule: AccessSchedule) -> list[BufferResidency]:
    """Return the choice that occupies the fewest bytes of the scratchpad.

    Buffers smaller than their staging are resident, as are pinned ones, and nothing is kept.
    """
    choice = keep_nothing(schedule)
    for buffer, events in enumerate(schedule.events):
        small = [e.access.pinned or e.access.staging > schedule.sizes[buffer] for e in events]
        choice[buffer] = BufferResidency(tuple(small), choice[buffer].kept)
    return choice


def grow_choice(
    schedule: AccessSchedule,
    size: int,
    choice: ResidencyChoice,
    fits: Callable[[ResidencyChoice], bool] | None = None,
) -> list[BufferResidency]:
    """Return a choice that moves no more bytes than `choice`, in at most `size` bytes in each turn.

    Changes are made greedily, the most bytes saved for each byte occupied first. `fits` is asked about
    each change that saves bytes and fits by its sum.
    """
    best = list(choice)
    used = count_occupied(schedule, best)
    changes = [(b, keep) for b in range(len(best)) for keep in _possible_residencies(best[b])]
    changes.sort(key=lambda change: -_savings_per_byte(schedule, best, *change))
    for buffer, wanted in changes:
        keep = _join_residencies(best[buffer], wanted)
        if count_buffer_traffic(schedule, buffer, keep) >= count_buffer_traffic(
            schedule, buffer, best[buffer]
        ):
            continue
        more = _count_held(schedule, buffer, keep) - _count_held(schedule, buffer, best[buffer])
        if (used + more)[more > 0].max(initial=0) > size:
            continue
        tried = [*best[:buffer], keep, *best[buffer + 1 :]]
        if fits is None or fits(tried):
            best, used = tried, count_occupied(schedule, tried)
    return best


def _possible_residencies(keep: BufferResidency) -> Iterator[BufferResidency]:
    """Yield the possible periods of residency: from one access to a later one, or a single access."""
    count = len(keep.resident)
    pairs = [(0, count - 1), *((n, n + 1) for n in range(count - 1))]
    if count <= _MAX_ACCESSES:
        pairs = list(combinations(range(count), 2))
    for first, last in [*pairs, *((n, n) for n in range(count))]:
        resident = tuple(first <= n <= last for n in range(count))
        yield BufferResidency(resident, tuple(first <= n < last for n in range(count - 1)))


def _join_residencies(one: BufferResidency, other: BufferResidency) -> BufferResidency:
    resident = tuple(a or b for a, b in zip(one.resident, other.resident, strict=True))
    return BufferResidency(resident, tuple(a or b for a, b in zip(one.kept, other.kept, strict=True)))


def _savings_per_byte(
    schedule: AccessSchedule, choice: ResidencyChoice, buffer: Buffer, wanted: BufferResidency
) -> float:
    """Return the bytes saved for each byte of the scratchpad and turn."""
    keep = _join_residencies(choice[buffer], wanted)
    saved = count_buffer_traffic(schedule, buffer, choice[buffer]) - count_buffer_traffic(
        schedule, buffer, keep
    )
    more = _count_held(schedule, buffer, keep) - _count_held(schedule, buffer, choice[buffer])
    return saved / max(1, int(more.sum()))


def _count_held(schedule: AccessSchedule, buffer: Buffer, keep: BufferResidency) -> NDArray[np.int64]:
    """Return for each turn the bytes that a buffer occupies, staging included."""
    held = np.zeros(len(schedule.turns), dtype=np.int64)
    events = schedule.events[buffer]
    for event, here in zip(events, keep.resident, strict=True):
        held[event.turn] += 0 if here else event.access.staging
    for first, last in keep.list_stays():
        held[events[first].turn : events[last].turn + 1] += schedule.sizes[buffer]
    return held
