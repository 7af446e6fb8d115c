"""Offsets of blocks below a ceiling for each turn, by first fit."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# How many blocks are placed in search of offsets, for each order to begin with.
_WORK = 4000


@dataclass(frozen=True)
class LiveBlock:
    """Bytes in use from turn `first` to turn `last`, both included."""

    first: int
    last: int
    size: int


BlockOffsets = Sequence[int | None]
"""An offset for each block, None for one that finds no place."""


def pack_blocks(
    blocks: Sequence[LiveBlock], ceilings: Sequence[int], losses: Sequence[float] | None = None
) -> BlockOffsets:
    """Return offsets at which every block ends below the ceilings of its turns, if any are found.

    Otherwise blocks with the smallest losses are left out; `losses` are 1 for each block by default.
    Several sequences are tried; blocks without an offset move to the front of the next one.
    """
    return _BlockPacker(blocks, ceilings).pack(losses or [1.0] * len(blocks))


def find_lowest_gap(spans: Iterable[tuple[int, int]], size: int) -> int:
    """Return the lowest offset of `size` bytes that does not overlap the spans (begin, end)."""
    offset = 0
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if offset + size <= begin:
            break
        offset = max(offset, end)
    return offset


def find_peak(blocks: Sequence[LiveBlock]) -> int:
    """Return the most bytes in use at any turn, a lower bound on any packing."""
    return max((sum(b.size for b in blocks if b.first <= a.first <= b.last) for a in blocks), default=0)


class _BlockPacker:
    """First fit of blocks below their ceilings, in several sequences."""

    def __init__(self, blocks: Sequence[LiveBlock], ceilings: Sequence[int]) -> None:
        self.blocks = blocks
        self.ceilings = [min(ceilings[b.first : b.last + 1]) for b in blocks]
        self.beside = [
            [n for n, b in enumerate(blocks) if n != m and b.first <= a.last and a.first <= b.last]
            for m, a in enumerate(blocks)
        ]

    def orders(self) -> Iterator[list[int]]:
        """Yield the initial sequences: by size, by remaining room, by bytes x turns, by time."""
        blocks, numbers = self.blocks, range(len(self.blocks))
        yield sorted(numbers, key=lambda n: (-blocks[n].size, blocks[n].first, n))
        yield sorted(numbers, key=lambda n: (self.ceilings[n] - blocks[n].size, -blocks[n].size, n))
        yield sorted(
            numbers, key=lambda n: (-blocks[n].size * (blocks[n].last - blocks[n].first + 1), n)
        )
        yield sorted(numbers, key=lambda n: (blocks[n].first, -blocks[n].last, n))

    def pack(self, losses: Sequence[float]) -> BlockOffsets:
        best: BlockOffsets = [None] * len(self.blocks)
        least = sum(losses)
        for order in self.orders():
            for _ in range(max(3, _WORK // max(1, len(order)))):
                offsets = self.place(order)
                left = [n for n in order if offsets[n] is None]
                if (loss := sum(losses[n] for n in left)) < least or not left:
                    best, least = offsets, loss
                if not left:
                    return best
                front = max(left, key=lambda n: (losses[n], -n))
                if front == order[0]:
                    break
                order = [front, *(n for n in order if n != front)]  # noqa: PLW2901 - the next try
        return best

    def place(self, order: Sequence[int]) -> BlockOffsets:
        """Return offsets, with each block in sequence at the lowest one free in all its turns."""
        offsets: list[int | None] = [None] * len(self.blocks)
        for number in order:
            beside = (
                (o, o + self.blocks[n].size)
                for n in self.beside[number]
                if (o := offsets[n]) is not None
            )
            offset = find_lowest_gap(beside, self.blocks[number].size)
            if offset + self.blocks[number].size <= self.ceilings[number]:
                offsets[number] = offset
        return offsets
