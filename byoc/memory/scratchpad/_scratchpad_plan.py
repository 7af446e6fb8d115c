"""The plan of a scratchpad: actions in order, and all addresses."""

from dataclasses import dataclass

from byoc.memory.arena import Buffer
from byoc.memory.scratchpad._access_schedule import AccessSchedule


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
