"""Offsets for buffers: compounds, greedy placement in an order, and the search for better orders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from math import inf
from random import Random
from typing import Self

from byoc._dataclasses import dataclass
from byoc.memory.arena._arena_problem import Buffer, LiveRanges
from byoc.numerics import SearchBudget

# Compounds: buffers that share one offset because of overwriting, or are adjacent because of links.


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


# Search for low offsets: compounds that end too high are placed earlier.

_MAX_PLACED = 100_000  # compounds, in all tries of one search together
_MAX_PLACED_AT_RANDOM = 8_000  # the same for a search that draws at random
_MAX_TRIES = 500  # of one search, for small problems


def place_quickly(packing: GreedyPacking, goal: int) -> list[int]:
    """Return the lowest offsets of a few fixed sequences, the first that need at most `goal` bytes."""
    best = None
    for sequence in _sequences(packing):
        for best_fit in (True, False):
            offsets = packing.place(sequence, best_fit)
            if best is None or packing.height(offsets) < packing.height(best):
                best = offsets
            if packing.height(best) <= goal:
                return best
    return best or []


def search_offsets(packing: GreedyPacking, goal: int, limit: SearchBudget | None = None) -> list[int]:
    """Return offsets that need at most `goal` bytes if any are found, else the lowest found.

    Compounds are placed again and again; each time, one that ended above the goal is placed earlier
    (squeaky wheel optimization: Joslin and Clements, JAIR 10, 1999). The search ends when its budget
    `limit` is spent.
    """
    limit = limit or SearchBudget()
    best = place_quickly(packing, goal)
    if packing.height(best) > goal and len(packing.compounds) <= MAX_EXHAUSTIVE:
        return find_lowest_offsets(packing)
    for repair in (_move_first_to_front, _move_any_earlier):
        for best_fit, sequence in product((False, True), _sequences(packing)):
            if packing.height(best) <= goal or limit.is_spent:
                return best
            offsets = repair(packing, sequence, best_fit, (goal, limit))
            best = min(best, offsets, key=packing.height)
    return best


def _sequences(packing: GreedyPacking) -> tuple[list[int], ...]:
    return packing.by_size(), packing.by_area(), packing.by_start(), packing.by_duration()


def _tries(packing: GreedyPacking, most_placed: int, limit: SearchBudget) -> Iterator[int]:
    """Count tries that place at most so many compounds together, until the budget is spent."""
    for number in range(min(most_placed // (len(packing.compounds) + 1), _MAX_TRIES)):
        if limit.is_spent:
            return
        limit.spend(packing.seconds)
        yield number


def _move_first_to_front(
    packing: GreedyPacking, sequence: Sequence[int], best_fit: bool, limits: tuple[int, SearchBudget]
) -> list[int]:
    """Move the first compound that ends above the goal to the front, until a sequence occurs again."""
    goal, limit = limits
    order, seen = list(sequence), set[tuple[int, ...]]()
    for _ in _tries(packing, _MAX_PLACED, limit):
        if tuple(order) in seen:
            break
        seen.add(tuple(order))
        offsets, above = packing.place_below(order, best_fit, goal)
        if above is None:
            return offsets
        order.remove(above)
        order.insert(0, above)
    return packing.place(order, best_fit)


def _move_any_earlier(
    packing: GreedyPacking, sequence: Sequence[int], best_fit: bool, limits: tuple[int, SearchBudget]
) -> list[int]:
    """Move any compound that ends above the goal to the first half of what is placed before it."""
    goal, limit = limits
    random, order = Random(0), list(sequence)
    best = offsets = packing.place(order, best_fit)
    for _ in _tries(packing, _MAX_PLACED_AT_RANDOM, limit):
        above = [n for n in order if offsets[n] + packing.sizes[n] > goal]
        if not above:
            break
        position = order.index(random.choice(above))
        order.insert(random.randrange(position // 2 + 1), order.pop(position))
        offsets = packing.place(order, best_fit)
        best = min(best, offsets, key=packing.height)
    return best


# How many compounds are placed below ceilings, for each sequence to begin with.
_MAX_PLACED_UNDER = 4000


def pack_under(
    packing: GreedyPacking, ceilings: Sequence[int], losses: Sequence[float] | None = None
) -> Sequence[int | None]:
    """Return offsets at which every compound ends below the ceilings of its steps, if any are found.

    Otherwise compounds with the smallest losses are left out, None; `losses` are 1 for each compound by
    default. Several sequences are tried; compounds without an offset move to the front of the next one.
    """
    compounds, sizes, losses = packing.compounds, packing.sizes, losses or [1.0] * len(packing.sizes)
    highest = [
        min(min(ceilings[p.first : p.last + 1]) + size - p.offset - p.size for p in compound.parts)
        for compound, size in zip(compounds, sizes, strict=True)
    ]
    by_room = sorted(range(len(sizes)), key=lambda n: (highest[n] - sizes[n], -sizes[n]))
    best: Sequence[int | None] = [None] * len(sizes)
    least = sum(losses)
    for order in (packing.by_size(), by_room, packing.by_area(), packing.by_start()):
        for _ in range(max(3, _MAX_PLACED_UNDER // max(1, len(order)))):
            offsets = packing.place_under(order, highest)
            left = [n for n in order if offsets[n] is None]
            if (loss := sum(losses[n] for n in left)) < least or not left:
                best, least = offsets, loss
            if not left:
                return best
            front = max(left, key=lambda n: (losses[n], -n))
            if front == order[0]:
                break
            order.remove(front)
            order.insert(0, front)
    return best


MAX_EXHAUSTIVE = 4
"""Compounds: so many take at most some thousand tries."""


def find_lowest_offsets(packing: GreedyPacking) -> list[int]:
    """Return offsets of minimum height for a few compounds, by exhaustive search.

    Placing compounds one after another as low as possible is optimal, in some sequence, for compounds of
    one part. A compound of several parts can surround another, so here each is also tried directly above
    any other that it conflicts with: in a solution where nothing can move down, each lies at 0 or
    directly above another.
    """
    best = _extend_offsets(packing, {}, sum(compound.size for compound in packing.compounds) + 1)
    assert best is not None
    return [best[number] for number in range(len(packing.compounds))]


def _extend_offsets(
    packing: GreedyPacking, there: Mapping[int, int], below: int
) -> dict[int, int] | None:
    """Return the lowest offsets that extend `there` within fewer than `below` bytes, None if none do."""
    if max((at + packing.sizes[n] for n, at in there.items()), default=0) >= below:
        return None
    if len(there) == len(packing.compounds):
        return dict(there)
    best = None
    for number in set(range(len(packing.compounds))) - there.keys():
        for at in _candidate_offsets(packing, there, number):
            found = _extend_offsets(packing, {**there, number: at}, below)
            if found is not None:
                best = found
                below = max(at + packing.sizes[n] for n, at in found.items())
    return best


def _candidate_offsets(packing: GreedyPacking, there: Mapping[int, int], number: int) -> Iterator[int]:
    met = [(there[n], low, high) for n, low, high in packing.conflicts[number] if n in there]
    for at in {0, *(other + high for other, _, high in met)}:
        if at >= 0 and not any(low < at - other < high for other, low, high in met):
            yield at
