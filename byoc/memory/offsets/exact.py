"""Offsets with the least height, by omnimalloc's branch and bound over several sequences at once.

https://pypi.org/project/omnimalloc (Apache-2.0). It knows buffers that lie alone; compounds of several
parts are not for it.
"""

from collections.abc import Sequence
from math import gcd

from omnimalloc import Allocation
from omnimalloc.allocators import SupermallocAllocator

from byoc.memory.offsets.compounds import Compound

# Below 12 it never begins with the lower bound, which most problems of models reach (omnimalloc 1.0:
# three sequences, and the bound is tried from the second group of threads on).
_THREADS = 12


def is_plain(compounds: Sequence[Compound]) -> bool:
    """Tell whether each compound is the same bytes all the time."""
    return all(len(compound.parts) == 1 for compound in compounds)


def exact(compounds: Sequence[Compound], seconds: float) -> tuple[list[int], bool]:
    """Return offsets of plain compounds, and whether it is proven that no arena can be smaller."""
    parts = [compound.parts[0] for compound in compounds]
    unit = gcd(*(part.size for part in parts)) or 1
    allocations = tuple(
        Allocation(number, part.size // unit, part.first + 1, part.last + 2)
        for number, part in enumerate(parts)
        if part.size
    )
    solver = SupermallocAllocator(timeout=max(seconds, 0.001), num_threads=_THREADS)
    result = solver.solve(allocations)
    offsets = [0] * len(parts)
    for placed in result.allocations:
        offsets[int(placed.id)] = (placed.offset or 0) * unit
    return offsets, result.proved_optimal
