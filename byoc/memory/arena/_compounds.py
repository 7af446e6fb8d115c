"""Compounds: buffers that share one offset because of overwriting, or are adjacent because of links."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from byoc.memory.arena._arena_problem import Buffer
from byoc.memory.arena._live_ranges import LiveRanges


@dataclass(frozen=True)
class CompoundPart:
    """Bytes `[at, at + size)` of a compound, live from position `first` to `last` of the order."""

    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Compound:
    """Memory with a single offset: `members` are buffers with their offsets in it.

    If `step` is given, it is the scratch of that step.
    """

    parts: tuple[CompoundPart, ...]
    members: tuple[tuple[Buffer, int], ...] = ()
    step: int | None = None

    @property
    def size(self) -> int:
        """Bytes from the beginning to the end."""
        return max(part.offset + part.size for part in self.parts)

    @classmethod
    def of_block(cls, size: int, first: int, last: int) -> Self:
        """Return a compound of one part: bytes live from position `first` to `last`."""
        return cls((CompoundPart(0, size, first, last),))


@dataclass(frozen=True)
class Compounds:
    """All compounds of a problem, and the overwriting that is compatible with the links."""

    all: tuple[Compound, ...]
    overwrites: tuple[Buffer | None, ...]


def build_compounds(lives: LiveRanges) -> Compounds:
    """Join buffers that have to move together.

    A buffer does not overwrite another if that contradicts a link, so that two live buffers would
    overlap. Raises ValueError if the links of the problem contradict each other.
    """
    problem, over = lives.problem, list(lives.overwrites)
    bodies = _JoinedBuffers(lives)
    for row in problem.links:
        for left, right in pairwise(row):
            if not bodies.join(left, right, problem.sizes[left]):
                raise ValueError(f"the row of {problem.names[right]} contradicts another one")
    for buffer in sorted(range(len(over)), key=lambda b: lives.first[b]):
        under = over[buffer]
        if under is not None and not bodies.join(under, buffer, 0):
            over[buffer] = None
    scratch = (
        Compound((CompoundPart(0, step.scratch, at, at),), step=number)
        for at, number in enumerate(lives.order)
        if (step := problem.steps[number]).scratch
    )
    return Compounds((*bodies.build(over), *scratch), tuple(over))


class _JoinedBuffers:
    """A union-find structure with distances: for each buffer its body and its offset in the body."""

    def __init__(self, lives: LiveRanges) -> None:
        self._lives = lives
        count = len(lives.problem.sizes)
        self._body = list(range(count))
        self._at = [0] * count
        self._members: list[list[Buffer]] = [[buffer] for buffer in range(count)]

    def join(self, left: Buffer, right: Buffer, distance: int) -> bool:
        """Fix `right` at `distance` bytes above `left`, unless live buffers would overlap."""
        shift = self._at[left] + distance - self._at[right]
        keep, lost = self._body[left], self._body[right]
        if keep == lost:
            return shift == 0
        moved = [(buffer, self._at[buffer] + shift) for buffer in self._members[lost]]
        if any(self._clash(a, self._at[a], b, at) for b, at in moved for a in self._members[keep]):
            return False
        for buffer, at in moved:
            self._body[buffer], self._at[buffer] = keep, at
        self._members[keep] += self._members[lost]
        self._members[lost] = []
        return True

    def _clash(self, a: Buffer, at_a: int, b: Buffer, at_b: int) -> bool:
        lives, sizes = self._lives, self._lives.problem.sizes
        if at_a >= at_b + sizes[b] or at_b >= at_a + sizes[a]:
            return False
        if at_a == at_b and (lives.overwrites[a] == b or lives.overwrites[b] == a):
            return False
        return lives.first[a] <= lives.last[b] and lives.first[b] <= lives.last[a]

    def build(self, over: Sequence[Buffer | None]) -> Iterator[Compound]:
        for members in self._members:
            if not members:
                continue
            start = min(self._at[buffer] for buffer in members)
            placed = tuple((buffer, self._at[buffer] - start) for buffer in members)
            parts = tuple(_merge_parts(self._part(buffer, at) for buffer, at in placed))
            yield Compound(parts or (CompoundPart(0, 0, 0, -1),), placed)

    def _part(self, buffer: Buffer, at: int) -> CompoundPart:
        lives = self._lives
        return CompoundPart(at, lives.problem.sizes[buffer], lives.first[buffer], lives.last[buffer])


def _merge_parts(parts: Iterable[CompoundPart]) -> Iterator[CompoundPart]:
    """Merge parts at the same bytes whose live ranges touch."""
    now: CompoundPart | None = None
    for part in sorted(parts, key=lambda p: (p.offset, p.size, p.first)):
        if not part.size:
            continue
        if now and (now.offset, now.size) == (part.offset, part.size) and part.first <= now.last + 1:
            now = CompoundPart(now.offset, now.size, now.first, max(now.last, part.last))
            continue
        if now:
            yield now
        now = part
    if now:
        yield now
