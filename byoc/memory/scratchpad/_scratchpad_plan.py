"""The scratchpad problem and its plan: steps, accesses, actions, addresses."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.memory.arena import Buffer

# The scratchpad problem: steps in a fixed order, and the buffers each one accesses.


@dataclass(frozen=True)
class Access:
    """Access of a turn to a buffer, resident in the scratchpad or streamed to and from system memory.

    `writes` tells whether the turn writes the buffer or a part of it. `streamed` are the bytes that move
    if the buffer is not resident, by default its size (more if it is streamed repeatedly, fewer if only
    a part is accessed); `staging` are the bytes of the scratchpad that streaming needs during the turn.
    A `pinned` buffer cannot be streamed: it has to be resident during the turn.
    """

    buffer: Buffer
    writes: bool = False
    streamed: int | None = None
    staging: int = 0
    pinned: bool = False


@dataclass(frozen=True)
class ScheduledStep:
    """A step at its position in the order, with one access for each buffer.

    `staging` are bytes of the scratchpad needed in any case: weights, accumulators, tiles.
    `may_overwrite` are pairs (written, read) of its buffers, of equal size: the turn may overwrite the
    one it only reads with the one it writes if it is the last to access it.
    """

    name: str
    accesses: tuple[Access, ...]
    staging: int = 0
    may_overwrite: tuple[tuple[Buffer, Buffer], ...] = ()


@dataclass(frozen=True)
class AccessEvent:
    """An access, the turn it belongs to, and its position among the accesses of that turn."""

    turn: int
    position: int
    access: Access
    streamed: int


@dataclass(frozen=True)
class AccessSchedule:
    """Numbered buffers, and turns in order.

    `sizes` and all `staging` are in bytes, already rounded up to `alignment`. `inputs` are in system
    memory before the first turn, `outputs` after the last one; the first access of any other buffer
    writes it. Raises InputError, naming the buffer or turn, if the schedule is inconsistent.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    turns: tuple[ScheduledStep, ...]
    inputs: frozenset[Buffer] = field(default_factory=frozenset)
    outputs: frozenset[Buffer] = field(default_factory=frozenset)
    alignment: int = 1

    def __post_init__(self) -> None:
        """Check the schedule."""
        if complaint := next(_find_complaints(self), None):
            raise InputError(complaint)

    @cached_property
    def events(self) -> Sequence[Sequence[AccessEvent]]:
        """For each buffer its accesses in order."""
        events: list[list[AccessEvent]] = [[] for _ in self.sizes]
        for number, turn in enumerate(self.turns):
            for place, access in enumerate(turn.accesses):
                size = self.sizes[access.buffer]
                streamed = size if access.streamed is None else access.streamed
                events[access.buffer].append(AccessEvent(number, place, access, streamed))
        return events

    @cached_property
    def overwrites(self) -> Sequence[tuple[int, Buffer, Buffer]]:
        """(turn, written, read): buffers that can overwrite another one at its last access."""
        return [
            (number, written, read)
            for number, turn in enumerate(self.turns)
            for written, read in turn.may_overwrite
            if read not in self.outputs
            and self.events[read][-1].turn == number
            and self.events[written][0].turn == number
            and written not in self.inputs
        ]

    def has_content(self, buffer: Buffer, event: int) -> bool:
        """Tell whether the buffer has content before its access of that number."""
        return event > 0 or buffer in self.inputs


def _find_complaints(schedule: AccessSchedule) -> Iterator[str]:
    if len(schedule.names) != len(schedule.sizes):
        yield f"schedule: {len(schedule.names)} names for {len(schedule.sizes)} buffers"
        return
    unknown = [b for b in schedule.inputs | schedule.outputs if not 0 <= b < len(schedule.sizes)]
    if unknown:
        yield f"schedule: there is no buffer {unknown[0]}, which is to be an input or an output"
        return
    made = set(schedule.inputs)
    for turn in schedule.turns:
        yield from _find_turn_complaints(schedule, turn, made)
        made.update(access.buffer for access in turn.accesses if access.writes)
    for buffer in sorted(schedule.outputs - made):
        yield f"schedule: {schedule.names[buffer]} is an output, and no turn writes it"
    for name, size in zip(schedule.names, schedule.sizes, strict=True):
        if size <= 0 or size % schedule.alignment:
            yield f"schedule: {name} is of {size} bytes, no positive multiple of {schedule.alignment}"


def _find_turn_complaints(
    schedule: AccessSchedule, turn: ScheduledStep, made: set[Buffer]
) -> Iterator[str]:
    touched = [access.buffer for access in turn.accesses]
    for buffer in touched:
        if not 0 <= buffer < len(schedule.sizes):
            yield f"turn {turn.name}: there is no buffer {buffer}"
            return
    if len(set(touched)) < len(touched):
        yield f"turn {turn.name}: a buffer has two accesses, one is to say what becomes of it"
    for access in turn.accesses:
        name = schedule.names[access.buffer]
        if not access.writes and access.buffer not in made:
            yield f"turn {turn.name}: {name} is read before a turn has written it"
        if (access.streamed or 0) < 0 or access.staging < 0 or access.staging % schedule.alignment:
            given = f"{access.staging} bytes of staging, {access.streamed} streamed"
            yield f"turn {turn.name}: {name} has {given}"
    if turn.staging < 0 or turn.staging % schedule.alignment:
        yield f"turn {turn.name}: staging of {turn.staging} bytes is no multiple of {schedule.alignment}"
    makes = {access.buffer for access in turn.accesses if access.writes}
    for over, under in turn.may_overwrite:
        if not {over, under} <= set(touched) or schedule.sizes[over] != schedule.sizes[under]:
            yield f"turn {turn.name}: over: two buffers of the turn, of the same size, are needed"
        elif over not in makes or under in makes:
            one, other = schedule.names[over], schedule.names[under]
            yield f"turn {turn.name}: over: {one} is to be written, and {other} only read"


@dataclass(frozen=True)
class LoadAction:
    """Copy of a whole buffer from system memory to an address of the scratchpad, for turn `needed`."""

    buffer: Buffer
    address: int
    needed: int


@dataclass(frozen=True)
class StoreAction:
    """Copy of a whole buffer from an address of the scratchpad to its offset in system memory."""

    buffer: Buffer
    address: int


@dataclass(frozen=True)
class RunAction:
    """Execution of a turn.

    `addresses` are addresses in the scratchpad, one for each access of the turn; None if the buffer is
    streamed to or from system memory through the staging area: `staging` bytes of the scratchpad at
    address `area`, which is 0 unless the residencies need the beginning of the scratchpad.
    """

    turn: int
    addresses: tuple[int | None, ...]
    staging: int
    area: int = 0


Action = LoadAction | StoreAction | RunAction


@dataclass(frozen=True)
class Residency:
    """A buffer at an address of the scratchpad, from turn `first` to turn `last`, both included."""

    buffer: Buffer
    first: int
    last: int
    address: int


@dataclass(frozen=True)
class ScratchpadPlan:
    """A plan of a schedule for a scratchpad of `size` bytes.

    `homes` are offsets in system memory, None for a buffer that never goes there or, unless
    `counts_boundary`, for an input or output, which the caller stores; `arena` bytes hold all of them.
    `loaded` and `stored` are bytes of whole buffers, `streamed` bytes that pass through staging.
    `bound` is a lower bound on the bytes moved by any plan for this order and these accesses;
    `is_exact` tells whether the search for it was finished. For comparison, `unkept` bytes move if
    nothing is kept in the scratchpad, and `unlimited` if it is of unlimited size.
    """

    schedule: AccessSchedule
    size: int
    actions: tuple[Action, ...]
    residencies: tuple[Residency, ...]
    homes: tuple[int | None, ...]
    arena: int
    counts_boundary: bool
    loaded: int
    stored: int
    streamed: int
    bound: int
    is_exact: bool
    unkept: int
    unlimited: int

    @property
    def moved(self) -> int:
        """Bytes that pass between the two memories."""
        return self.loaded + self.stored + self.streamed

    @property
    def loads(self) -> int:
        """The number of whole buffers loaded."""
        return sum(isinstance(action, LoadAction) for action in self.actions)

    @property
    def stores(self) -> int:
        """The number of whole buffers stored."""
        return sum(isinstance(action, StoreAction) for action in self.actions)


# Choices of resident buffers: the bytes they move, the bytes they occupy, and greedy improvement.


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
