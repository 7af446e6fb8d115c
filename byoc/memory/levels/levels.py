"""The plan of two memories: the actions in their order, and where everything lies."""

from dataclasses import dataclass

from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer


@dataclass(frozen=True)
class Load:
    """Copies a whole buffer from system memory to an address of the scratchpad, for turn `needed`."""

    buffer: Buffer
    address: int
    needed: int


@dataclass(frozen=True)
class Store:
    """Copies a whole buffer from an address of the scratchpad to its home in system memory."""

    buffer: Buffer
    address: int


@dataclass(frozen=True)
class Run:
    """Executes a turn.

    `places` are addresses in the scratchpad, one an access of the turn; None where the buffer is
    streamed to or from its home through the staging area: `staging` bytes of the scratchpad at address
    `area`, which is 0 wherever all finds its place like that.
    """

    turn: int
    places: tuple[int | None, ...]
    staging: int
    area: int = 0


Action = Load | Store | Run


@dataclass(frozen=True)
class Residency:
    """A buffer lies at an address of the scratchpad, from turn `first` to turn `last`, both included."""

    buffer: Buffer
    first: int
    last: int
    address: int


@dataclass(frozen=True)
class Levels:
    """A plan of a schedule for a scratchpad of `size` bytes.

    `homes` are offsets in system memory, None for a buffer that never goes there, or, where `counted`
    is false, for an input or output, whose place is the caller's; `arena` bytes hold all homes.
    `loaded` and `stored` are bytes of whole buffers, `streamed` those that pass through staging. No
    plan for this order and these accesses moves fewer than `bound` bytes; `is_exact` says that the
    search for it ended. For people: `unkept` bytes move when nothing is kept in the scratchpad,
    `unlimited` when it has no end.
    """

    schedule: Schedule
    size: int
    actions: tuple[Action, ...]
    residencies: tuple[Residency, ...]
    homes: tuple[int | None, ...]
    arena: int
    counted: bool
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
        """How many whole buffers are loaded."""
        return sum(isinstance(action, Load) for action in self.actions)

    @property
    def stores(self) -> int:
        """How many whole buffers are stored."""
        return sum(isinstance(action, Store) for action in self.actions)

    @property
    def gap(self) -> float:
        """What is moved above the bound, as a part of what is moved; 0 where the plan is proven."""
        return (self.moved - self.bound) / self.moved if self.moved else 0.0
