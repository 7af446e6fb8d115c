"""Greedy placement of compounds, one after another."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from byoc.memory.arena._compounds import Compound, CompoundPart


class GreedyPacking:
    """Compounds with their conflicts."""

    def __init__(self, compounds: Sequence[Compound]) -> None:
        """Number the compounds in the given order."""
        self.compounds = tuple(compounds)
        self.sizes = [compound.size for compound in self.compounds]

    @cached_property
    def conflicts(self) -> list[list[tuple[int, int, int]]]:
        """For each compound (other, low, high): its offset minus the other's is outside (low, high)."""
        owned = [(part, number) for number, c in enumerate(self.compounds) for part in c.parts]
        owned.sort(key=lambda own: own[0].first)
        conflicts: list[list[tuple[int, int, int]]] = [[] for _ in self.compounds]
        there: list[tuple[CompoundPart, int]] = []
        for part, number in owned:
            there = [(p, n) for p, n in there if p.last >= part.first]
            for other, owner in there:
                if owner != number and other.size and part.size:
                    conflicts[number].append((owner, *_forbidden_distances(part, other)))
                    conflicts[owner].append((number, *_forbidden_distances(other, part)))
            there.append((part, number))
        return conflicts

    def place(self, sequence: Iterable[int], best_fit: bool = False) -> list[int]:
        """Return offsets, with the compounds of `sequence` placed in that order, as low as possible.

        With `best_fit` each goes into the gap that leaves the least room above it.
        """
        return self.place_below(sequence, best_fit, inf)[0]

    def place_below(
        self, sequence: Iterable[int], best_fit: bool, goal: float
    ) -> tuple[list[int], int | None]:
        """Place compounds as `placed` does, and stop at the first that ends above `goal` bytes.

        Returns the offsets (0 for compounds that are not placed) and that compound, None if all fit.
        """
        offsets: list[int | None] = [None] * len(self.compounds)
        above = None
        for number in sequence:
            taken = sorted(
                (at + low, at + high)
                for other, low, high in self.conflicts[number]
                if (at := offsets[other]) is not None
            )
            offset = _tightest_gap(taken) if best_fit else _lowest_gap(taken)
            offsets[number] = offset
            if offset + self.sizes[number] > goal:
                above = number
                break
        return [at or 0 for at in offsets], above

    def height(self, offsets: Sequence[int]) -> int:
        """Return the size of the arena for these offsets."""
        return max((at + size for at, size in zip(offsets, self.sizes, strict=True)), default=0)

    def by_start(self) -> list[int]:
        """Sort the compounds by the first position at which they are live, larger ones first."""
        return sorted(range(len(self.compounds)), key=lambda n: (self._first(n), -self.sizes[n]))

    def by_size(self) -> list[int]:
        """Sort the compounds by size, largest first, then by duration."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self.sizes[n], -self._duration(n)))

    def by_area(self) -> list[int]:
        """Sort the compounds by bytes times steps, largest first."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self._area(n), -self.sizes[n]))

    def by_duration(self) -> list[int]:
        """Sort the compounds by the number of steps for which they are live, longest first."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self._duration(n), -self.sizes[n]))

    def _first(self, number: int) -> int:
        return min(part.first for part in self.compounds[number].parts)

    def _duration(self, number: int) -> int:
        return max(part.last for part in self.compounds[number].parts) - self._first(number) + 1

    def _area(self, number: int) -> int:
        return sum(part.size * (part.last - part.first + 1) for part in self.compounds[number].parts)


def _forbidden_distances(mine: CompoundPart, other: CompoundPart) -> tuple[int, int]:
    return other.offset - mine.offset - mine.size, other.offset + other.size - mine.offset


def _lowest_gap(taken: Iterable[tuple[int, int]]) -> int:
    at = 0
    for low, high in taken:
        if at <= low:
            break
        at = max(at, high)
    return at


def _tightest_gap(taken: Iterable[tuple[int, int]]) -> int:
    at, found = 0, None
    for low, high in taken:
        if at <= low and (found is None or low - at < found[0]):
            found = (low - at, at)
        at = max(at, high)
    return at if found is None else found[1]
