"""Slots of the scratchpad: with two places for a kind of tile, the next load can run ahead."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count

from .cycles import LINE
from .operand import DType, Operand

ALIGNMENT = LINE
"""Alignment of places in the scratchpad, in bytes, so that no two tiles share a line."""


def aligned(size: int) -> int:
    """Return a size rounded up to whole lines of the scratchpad."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class Slot:
    """Places of one size for tiles of one kind; a new tile takes the place taken longest ago."""

    addresses: tuple[int, ...]
    held: dict[Hashable, Operand] = field(default_factory=dict)
    _next: int = 0

    def find(self, key: Hashable) -> Operand | None:
        """Return the tile with a key if it is still there, else None."""
        return self.held.get(key)

    def take(self, key: Hashable, make: Callable[[int], Operand]) -> Operand:
        """Create a tile at the next address, replacing the one there, and remember it under a key."""
        address = self.addresses[self._next]
        self._next = (self._next + 1) % len(self.addresses)
        self.held = {k: tile for k, tile in self.held.items() if tile.address != address}
        self.held[key] = make(address)
        return self.held[key]


@dataclass(frozen=True)
class Need:
    """Bytes of the largest tile of one kind; `twice` allows a second place for it."""

    size: int
    twice: bool = True


class Scratchpad:
    """The slots of one layer; each tile of a program has a number of its own, from `numbers`."""

    def __init__(
        self, needs: Mapping[str, Need], numbers: "count[int]", doubled: bool, start: int = 0
    ) -> None:
        """Lay out the slots one after another, from byte `start` of the scratchpad."""
        self._numbers = numbers
        self.doubled = doubled
        self.slots: dict[str, Slot] = {}
        for name, need in needs.items():
            times = 2 if doubled and need.twice else 1
            step = aligned(need.size)
            self.slots[name] = Slot(tuple(start + step * i for i in range(times)))
            start += step * times

    def tile(self, slot: str, key: Hashable, extents: tuple[int, int, int], dtype: DType) -> Operand:
        """Return a new dense tile of rows, columns and channels in a slot."""
        return self.slots[slot].take(key, lambda at: dense(next(self._numbers), at, extents, dtype))


def bytes_needed(needs: Mapping[str, Need], doubled: bool) -> int:
    """Return the bytes of the scratchpad that slots for `needs` take."""
    return sum(aligned(n.size) * (2 if doubled and n.twice else 1) for n in needs.values())


def dense(tensor: int, address: int, extents: tuple[int, int, int], dtype: DType) -> Operand:
    """Return an operand of rows, columns and channels without gaps."""
    rows, cols, channels = extents
    pixel = channels * dtype.size
    return Operand(
        tensor, address, 0, rows, rows, cols, channels, cols * pixel, pixel, dtype.size, dtype
    )
