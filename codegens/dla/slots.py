"""Slots of the scratchpad: with two places for a kind of tile, the next load can run ahead."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count

from .cycles import LINE
from .operand import DType, Operand

ALIGNMENT = LINE
"""Alignment of places in the scratchpad, in bytes, so that no two tiles share a line."""


def align_size(size: int) -> int:
    """Return a size rounded up to whole lines of the scratchpad."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class TileSlot:
    """Places of one size for tiles of one kind; a new tile takes the place taken longest ago."""

    addresses: tuple[int, ...]
    tiles: dict[Hashable, Operand] = field(default_factory=dict)
    _next: int = 0

    def find(self, key: Hashable) -> Operand | None:
        """Return the tile with a key if it is still there, else None."""
        return self.tiles.get(key)

    def add_tile(self, key: Hashable, make: Callable[[int], Operand]) -> Operand:
        """Create a tile at the next address, replacing the one there, and remember it under a key."""
        address = self.addresses[self._next]
        self._next = (self._next + 1) % len(self.addresses)
        self.tiles = {k: tile for k, tile in self.tiles.items() if tile.address != address}
        self.tiles[key] = make(address)
        return self.tiles[key]


@dataclass(frozen=True)
class SlotNeed:
    """Bytes of the largest tile of one kind; `twice` allows a second place for it."""

    size: int
    twice: bool = True


class LayerSlots:
    """The slots of one layer; each tile of a program has a number of its own, from `numbers`."""

    def __init__(
        self, needs: Mapping[str, SlotNeed], numbers: "count[int]", doubled: bool, start: int = 0
    ) -> None:
        """Lay out the slots one after another, from byte `start` of the scratchpad."""
        self._numbers = numbers
        self.doubled = doubled
        self.slots: dict[str, TileSlot] = {}
        for name, need in needs.items():
            times = 2 if doubled and need.twice else 1
            step = align_size(need.size)
            self.slots[name] = TileSlot(tuple(start + step * i for i in range(times)))
            start += step * times

    def new_tile(self, slot: str, key: Hashable, extents: tuple[int, int, int], dtype: DType) -> Operand:
        """Return a new dense tile of rows, columns and channels in a slot."""
        return self.slots[slot].add_tile(key, lambda at: dense_operand(next(self._numbers), at, extents, dtype))


def count_slot_bytes(needs: Mapping[str, SlotNeed], doubled: bool) -> int:
    """Return the bytes of the scratchpad that slots for `needs` take."""
    return sum(align_size(n.size) * (2 if doubled and n.twice else 1) for n in needs.values())


def dense_operand(tensor: int, address: int, extents: tuple[int, int, int], dtype: DType) -> Operand:
    """Return an operand of rows, columns and channels without gaps."""
    rows, cols, channels = extents
    pixel = channels * dtype.size
    return Operand(
        tensor, address, 0, rows, rows, cols, channels, cols * pixel, pixel, dtype.size, dtype
    )
