"""Search for low offsets: compounds that end too high are placed earlier."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random

from byoc.memory.arena._greedy_packing import GreedyPacking
from byoc.numerics import SearchBudget

_MAX_PLACED = 100_000
_MAX_PLACED_AT_RANDOM = 8_000
_MAX_TRIES = 500


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
