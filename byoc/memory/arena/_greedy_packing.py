"""Greedy placement, one after another: of anything with distances, and of compounds."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from byoc.memory.arena._compounds import Compound, CompoundPart

# The seconds that placing takes for each pair of compounds that are live together.
_SECONDS_OF_PAIR = 4e-7

Conflicts = Sequence[Sequence[tuple[int, int, int]]]
"""For each item (other, low, high): its offset minus the other's is outside (low, high)."""


class DistancePacking:
    """Items with sizes, and the distances that some of them have to keep."""

    def __init__(self, sizes: Sequence[int], conflicts: Conflicts) -> None:
        """Take the sizes in bytes, and for each item its conflicts."""
        self.sizes, self.conflicts = sizes, conflicts

    def place(self, sequence: Iterable[int], best_fit: bool = False) -> list[int]:
        """Return offsets, with the items of `sequence` placed in that order, as low as possible.

        With `best_fit` each goes into the gap that leaves the least room above it.
        """
        return self.place_below(sequence, best_fit, inf)[0]

    def place_below(
        self, sequence: Iterable[int], best_fit: bool, goal: float
    ) -> tuple[list[int], int | None]:
        """Place items as `place` does, and stop at the first that ends above `goal` bytes.

        Returns the offsets (0 for items that are not placed) and that item, None if all fit.
        """
        offsets: list[int | None] = [None] * len(self.sizes)
        above = None
        for number in sequence:
            offset = self._find_gap(number, offsets, best_fit)
            offsets[number] = offset
            if offset + self.sizes[number] > goal:
                above = number
                break
        return [at or 0 for at in offsets], above

    def place_under(self, sequence: Iterable[int], ceilings: Sequence[int]) -> list[int | None]:
        """Place items as low as possible, and leave out (None) those that end above their ceiling."""
        offsets: list[int | None] = [None] * len(self.sizes)
        for number in sequence:
            offset = self._find_gap(number, offsets)
            if offset + self.sizes[number] <= ceilings[number]:
                offsets[number] = offset
        return offsets

    def _find_gap(self, number: int, offsets: Sequence[int | None], best_fit: bool = False) -> int:
        taken = sorted(
            (at + low, at + high)
            for other, low, high in self.conflicts[number]
            if (at := offsets[other]) is not None
        )
        return _tightest_gap(taken) if best_fit else _lowest_gap(taken)

    def height(self, offsets: Sequence[int]) -> int:
        """Return the size of the arena for these offsets."""
        return max((at + size for at, size in zip(offsets, self.sizes, strict=True)), default=0)


class GreedyPacking(DistancePacking):
    """Compounds, which keep their distance where they are live together."""

    def __init__(self, compounds: Sequence[Compound]) -> None:
        """Number the compounds in the given order."""
        self.compounds = tuple(compounds)
        conflicts: list[list[tuple[int, int, int]]] = [[] for _ in self.compounds]
        super().__init__([compound.size for compound in self.compounds], conflicts)
        owned = [(part, number) for number, c in enumerate(self.compounds) for part in c.parts]
        owned.sort(key=lambda own: own[0].first)
        there: list[tuple[CompoundPart, int]] = []
        for part, number in owned:
            there = [(p, n) for p, n in there if p.last >= part.first]
            for other, owner in there:
                if owner != number and other.size and part.size:
                    conflicts[number].append((owner, *_forbidden_distances(part, other)))
                    conflicts[owner].append((number, *_forbidden_distances(other, part)))
            there.append((part, number))

    @cached_property
    def seconds(self) -> float:
        """The seconds that placing all compounds takes on an ordinary computer (see `SearchBudget`)."""
        return _SECONDS_OF_PAIR * sum(4 + len(others) for others in self.conflicts)

    @property
    def peak(self) -> int:
        """The most bytes in use at any step, a lower bound on any packing."""
        parts = [part for compound in self.compounds for part in compound.parts]
        used = (sum(b.size for b in parts if b.first <= a.first <= b.last) for a in parts)
        return max(used, default=0)

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


def find_lowest_gap(spans: Iterable[tuple[int, int]], size: int) -> int:
    """Return the lowest offset of `size` bytes that does not overlap the spans (begin, end)."""
    return _lowest_gap(sorted((begin - size, end) for begin, end in spans if begin < end))


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
