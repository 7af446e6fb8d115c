"""Offsets of blocks that live from turn to turn, below a ceiling that each turn has: first fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# How often a block that found no place is put before all others, for each order to begin with.
_TRIES = 24


@dataclass(frozen=True)
class Block:
    """Bytes that are in use from turn `first` to turn `last`, both included."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Packing:
    """Offsets of blocks, or None and the block that found no place."""

    offsets: tuple[int, ...] | None
    failed: int = -1


def packed(blocks: Sequence[Block], ceilings: Sequence[int]) -> Packing:
    """Return offsets at which every block ends below the ceilings of its turns, where some are found.

    Several orders are tried, and in each a block that finds no place goes to the front of the next try.
    """
    return _Packer(blocks, ceilings).packed()


def lowest(blocks: Sequence[Block], turns: int) -> tuple[int, ...]:
    """Return offsets that take few bytes: what lives at once at the least, where they are found."""
    packer = _Packer(blocks, [sum(block.size for block in blocks)] * turns)
    best: tuple[int, ...] = ()
    for order in packer.orders():
        offsets = packer.tried(order).offsets or ()
        if not best or _height(blocks, offsets) < _height(blocks, best):
            best = offsets
    high, low = _height(blocks, best), peak(blocks)
    while low < high:  # a ceiling at which it works, by halving
        middle = (low + high) // 2
        found = _Packer(blocks, [middle] * turns).packed().offsets
        if found is None:
            low = middle + 1
        else:
            best, high = found, min(middle, _height(blocks, found))
    return best


def peak(blocks: Sequence[Block]) -> int:
    """Return the most bytes in use at any turn, below which no offsets can be."""
    return max((sum(b.size for b in blocks if b.first <= a.first <= b.last) for a in blocks), default=0)


def _height(blocks: Sequence[Block], offsets: Sequence[int]) -> int:
    return max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0)


class _Packer:
    def __init__(self, blocks: Sequence[Block], ceilings: Sequence[int]) -> None:
        self.blocks = blocks
        self.ceilings = [min(ceilings[b.first : b.last + 1]) for b in blocks]
        self.beside = [
            [n for n, b in enumerate(blocks) if n != m and b.first <= a.last and a.first <= b.last]
            for m, a in enumerate(blocks)
        ]

    def orders(self) -> Iterator[list[int]]:
        """Yield the orders to begin with: by size, by room left, by bytes x turns, by time."""
        blocks, numbers = self.blocks, range(len(self.blocks))
        yield sorted(numbers, key=lambda n: (-blocks[n].size, blocks[n].first, n))
        yield sorted(numbers, key=lambda n: (self.ceilings[n] - blocks[n].size, -blocks[n].size, n))
        yield sorted(numbers, key=lambda n: (-blocks[n].size * (blocks[n].last - blocks[n].first + 1), n))
        yield sorted(numbers, key=lambda n: (blocks[n].first, -blocks[n].last, n))

    def packed(self) -> Packing:
        failed = -1
        for order in self.orders():
            seen = set()
            for _ in range(_TRIES):
                packing = self.tried(order)
                if packing.offsets is not None:
                    return packing
                failed = packing.failed if failed < 0 else failed
                order = [packing.failed, *(n for n in order if n != packing.failed)]
                if tuple(order) in seen:
                    break
                seen.add(tuple(order))
        return Packing(None, failed)

    def tried(self, order: Sequence[int]) -> Packing:
        """Give each block, in that order, the lowest offset that is free in all of its turns."""
        offsets: list[int | None] = [None] * len(self.blocks)
        for number in order:
            offset, size = 0, self.blocks[number].size
            placed = sorted((o, n) for n in self.beside[number] if (o := offsets[n]) is not None)
            for other, n in placed:
                if offset + size <= other:
                    break
                offset = max(offset, other + self.blocks[n].size)
            if offset + size > self.ceilings[number]:
                return Packing(None, number)
            offsets[number] = offset
        return Packing(tuple(o for o in offsets if o is not None))
