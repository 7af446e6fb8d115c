"""Where resident buffers lie in the scratchpad: from its high end down, staging at its low end."""

from collections.abc import Mapping, Sequence

from byoc.memory.levels.choice import Choice, occupied, staging
from byoc.memory.levels.levels import Residency
from byoc.memory.levels.pack import packed
from byoc.memory.levels.schedule import Schedule
from byoc.memory.levels.units import Stay, Unit, units

Depths = Mapping[tuple[Stay, ...], int]
"""For the residencies of a unit how many bytes lie above it, up to the end of the scratchpad."""

Areas = tuple[int, ...]
"""For each turn the address at which its staging begins."""


def residencies(
    schedule: Schedule, size: int, choice: Choice, known: tuple[Depths, Areas], prefetch: int
) -> tuple[tuple[Residency, ...], Areas]:
    """Return an address for each residency of a choice, in a scratchpad of `size` bytes, and areas.

    `known` are places that fit. A buffer that is loaded is there up to `prefetch` turns earlier,
    where its place is free then; places that allow all that the bytes allow are preferred.
    """
    all_units = units(schedule, choice, prefetch)
    staged = staging(schedule, choice)
    areas: Areas = (0,) * len(staged)
    ceilings = [size - bytes_ for bytes_ in staged]
    firsts = _wished(all_units, [int(bytes_) for bytes_ in occupied(schedule, choice)], size)
    offsets = [offset for offset in _packed(all_units, firsts, ceilings) if offset is not None]
    if len(offsets) < len(all_units):
        firsts = [unit.first for unit in all_units]
        offsets, areas = [known[0][unit.stays] for unit in all_units], known[1]
    firsts = _earlier(all_units, firsts, offsets, staged_at(size, staged, areas))
    found = []
    for unit, first, offset in zip(all_units, firsts, offsets, strict=True):
        address = size - offset - unit.size
        for number, (buffer, start, last) in enumerate(unit.stays):
            found.append(Residency(buffer, start if number else first, last, address))
    return tuple(sorted(found, key=lambda r: (r.first, r.address, r.last))), areas


def staged_at(size: int, staged: Sequence[int], areas: Areas) -> list[tuple[int, int]]:
    """Return for each turn where its staging lies, counted from the end of the scratchpad."""
    return [(size - a - bytes_, size - a) for a, bytes_ in zip(areas, staged, strict=True)]


def _packed(
    all_units: Sequence[Unit], firsts: Sequence[int], ceilings: Sequence[int]
) -> Sequence[int | None]:
    return packed([u.block(first) for u, first in zip(all_units, firsts, strict=True)], ceilings)


def _wished(all_units: Sequence[Unit], used: list[int], size: int) -> list[int]:
    """Return the turn before which each unit is to be loaded, as early as the sums of bytes allow."""
    firsts = []
    for unit in all_units:
        first = unit.first
        while first > unit.earliest and used[first - 1] + unit.size <= size:
            first -= 1
            used[first] += unit.size
        firsts.append(first)
    return firsts


def _earlier(
    all_units: Sequence[Unit],
    firsts: Sequence[int],
    offsets: Sequence[int],
    staged: Sequence[tuple[int, int]],
) -> list[int]:
    """Return earlier turns, where a unit's place is free before it is taken."""
    firsts = list(firsts)
    for number, (unit, offset) in enumerate(zip(all_units, offsets, strict=True)):
        beside = [
            n
            for n, other in enumerate(all_units)
            if n != number and offsets[n] < offset + unit.size and offset < offsets[n] + other.size
        ]
        while firsts[number] > unit.earliest:
            turn = firsts[number] - 1
            taken = any(firsts[n] <= turn <= all_units[n].last for n in beside)
            begin, end = staged[turn]
            if taken or (offset < end and begin < offset + unit.size and begin < end):
                break
            firsts[number] = turn
    return firsts
