"""Sizes of open dimensions moved until the extents that are calculated from them hold elements."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

CountEmpty = Callable[[Mapping[str, int]], int]
"""Returns how many extents have no elements at given sizes."""

# The longest distance that is tried is 2**16.
_MAX_DOUBLINGS = 16


def fill_extents(
    sizes: Mapping[str, int], movable: Sequence[str], last: Collection[str], count_empty: CountEmpty
) -> dict[str, int]:
    """Return sizes at which as few extents as possible have no elements.

    Only sizes of names in `movable` change, by the least distance that helps. Larger sizes are preferred
    to smaller ones, and those in `last` (a batch) are changed only where the others do not help as much.
    What no change helps stays as it is.
    """
    filled = dict(sizes)
    empty = count_empty(filled)
    while empty:
        moves = _list_moves(filled, movable, last, count_empty)
        best = min(moves, key=count_empty, default=None)  # the first of those that help most
        if best is None:
            break
        filled, empty = best, count_empty(best)
    return filled


def _list_moves(
    sizes: Mapping[str, int], movable: Sequence[str], last: Collection[str], count_empty: CountEmpty
) -> Iterator[dict[str, int]]:
    """Yield sizes at which fewer extents are empty, the preferred ones first."""
    usual = [name for name in movable if name not in last]
    groups = [*([name] for name in usual), usual, *([name] for name in movable if name in last), movable]
    for direction in (1, -1):
        for names in groups:
            found = _move(sizes, names, direction, count_empty)
            if found is not None:
                yield found


def _move(
    sizes: Mapping[str, int], names: Collection[str], direction: int, count_empty: CountEmpty
) -> dict[str, int] | None:
    """Return sizes in which names are moved by the least distance that helps, None if none does."""
    empty = count_empty(sizes)

    def move_by(distance: int) -> dict[str, int]:
        return {**sizes, **{name: max(1, sizes[name] + direction * distance) for name in names}}

    def helps(distance: int) -> bool:
        return count_empty(move_by(distance)) < empty

    doubled = (2**power for power in range(_MAX_DOUBLINGS + 1))
    enough = next((distance for distance in doubled if helps(distance)), None)
    if enough is None:
        return None
    between = range(enough // 2 + 1, enough)
    return move_by(enough // 2 + 1 + bisect_left(between, True, key=helps))
