"""The scratchpad problem and its plan: steps, accesses, actions, addresses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
