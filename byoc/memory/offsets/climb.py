"""Better offsets by trying other sequences: a hill climb, the same for the same problem."""

from collections.abc import Sequence
from math import inf
from random import Random
from time import monotonic

from byoc.memory.offsets.few import FEW, lowest
from byoc.memory.offsets.packing import Packing

_MOST_PLACED = 8_000


def quick(packing: Packing, goal: int) -> list[int]:
    """Return the best offsets of a few sequences, the first ones that need no more than `goal` bytes."""
    best = None
    for sequence in _sequences(packing):
        for best_fit in (True, False):
            offsets = packing.placed(sequence, best_fit)
            if best is None or packing.height(offsets) < packing.height(best):
                best = offsets
            if packing.height(best) <= goal:
                return best
    return best or []


def climbed(packing: Packing, goal: int, deadline: float = inf) -> list[int]:
    """Return offsets that need no more than `goal` bytes where such are found, else the best found.

    Compounds that reach the top are placed earlier, as long as that does not make the arena larger. The
    deadline is a time of `time.monotonic`.
    """
    best = quick(packing, goal)
    tries = _MOST_PLACED // (len(packing.compounds) + 1)
    for sequence in _sequences(packing):
        if packing.height(best) <= goal:
            break
        found = _climb(packing, sequence, goal, (tries, deadline))
        best = min(best, found, key=packing.height)
    if packing.height(best) > goal and len(packing.compounds) <= FEW:
        return lowest(packing)
    return best


def _sequences(packing: Packing) -> tuple[list[int], ...]:
    return packing.by_size(), packing.by_area(), packing.by_start(), packing.by_duration()


def _climb(packing: Packing, sequence: Sequence[int], goal: int, limits: tuple[int, float]) -> list[int]:
    random = Random(0)
    current = list(sequence)
    best = packing.placed(current)
    height = packing.height(best)
    for _ in range(limits[0]):
        if height <= goal or monotonic() > limits[1]:
            break
        top = [n for n, c in enumerate(packing.compounds) if best[n] + c.size == height]
        moved = random.choice(top)
        if random.random() < 0.5 and packing.conflicts[moved]:
            moved = random.choice(packing.conflicts[moved])[0]
        tried = [n for n in current if n != moved]
        tried.insert(random.randrange(len(current)), moved)
        offsets = packing.placed(tried)
        reached = packing.height(offsets)
        if reached <= height:
            current, best, height = tried, offsets, reached
    return best
