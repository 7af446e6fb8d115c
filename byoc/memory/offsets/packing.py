"""Placing compounds one after another, each where it still fits."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from byoc.memory.offsets.compounds import Compound, Part


class Packing:
    """Compounds, and which of them may not lie where."""

    def __init__(self, compounds: Sequence[Compound]) -> None:
        """Take the compounds, numbered as they come."""
        self.compounds = tuple(compounds)
        self.sizes = [compound.size for compound in self.compounds]

    @cached_property
    def conflicts(self) -> list[list[tuple[int, int, int]]]:
        """For each compound (other, low, high): its offset less the other's is not between the two."""
        owned = [(part, number) for number, c in enumerate(self.compounds) for part in c.parts]
        owned.sort(key=lambda own: own[0].first)
        conflicts: list[list[tuple[int, int, int]]] = [[] for _ in self.compounds]
        there: list[tuple[Part, int]] = []
        for part, number in owned:
            there = [(p, n) for p, n in there if p.last >= part.first]
            for other, owner in there:
                if owner != number and other.size and part.size:
                    conflicts[number].append((owner, *_apart(part, other)))
                    conflicts[owner].append((number, *_apart(other, part)))
            there.append((part, number))
        return conflicts

    def placed(self, sequence: Iterable[int], best_fit: bool = False) -> list[int]:
        """Return offsets, the compounds of `sequence` placed in that order, each as low as it fits.

        With `best_fit` each goes where the least room is left above it.
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
            offset = _tightest(taken) if best_fit else _lowest(taken)
            offsets[number] = offset
            if offset + self.sizes[number] > goal:
                above = number
                break
        return [at or 0 for at in offsets], above

    def height(self, offsets: Sequence[int]) -> int:
        """Return the bytes that an arena needs for these offsets."""
        return max((at + size for at, size in zip(offsets, self.sizes, strict=True)), default=0)

    def by_start(self) -> list[int]:
        """Return the compounds in the order in which they are first needed, larger ones first."""
        return sorted(range(len(self.compounds)), key=lambda n: (self._first(n), -self.sizes[n]))

    def by_size(self) -> list[int]:
        """Return the compounds from the largest to the smallest, what is there longer first."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self.sizes[n], -self._duration(n)))

    def by_area(self) -> list[int]:
        """Return the compounds by bytes times steps, most first."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self._area(n), -self.sizes[n]))

    def by_duration(self) -> list[int]:
        """Return the compounds by the steps for which they are there, most first."""
        return sorted(range(len(self.compounds)), key=lambda n: (-self._duration(n), -self.sizes[n]))

    def _first(self, number: int) -> int:
        return min(part.first for part in self.compounds[number].parts)

    def _duration(self, number: int) -> int:
        return max(part.last for part in self.compounds[number].parts) - self._first(number) + 1

    def _area(self, number: int) -> int:
        return sum(part.size * (part.last - part.first + 1) for part in self.compounds[number].parts)


def _apart(mine: Part, other: Part) -> tuple[int, int]:
    return other.at - mine.at - mine.size, other.at + other.size - mine.at


def _lowest(taken: Iterable[tuple[int, int]]) -> int:
    at = 0
    for low, high in taken:
        if at <= low:
            break
        at = max(at, high)
    return at


def _tightest(taken: Iterable[tuple[int, int]]) -> int:
    at, found = 0, None
    for low, high in taken:
        if at <= low and (found is None or low - at < found[0]):
            found = (low - at, at)
        at = max(at, high)
    return at if found is None else found[1]
