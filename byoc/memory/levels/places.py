"""Where resident buffers lie in the scratchpad: from its high end down, staging from its low end up."""

from collections.abc import Mapping, Sequence

from byoc.memory.levels.choice import Choice, occupied, staging
from byoc.memory.levels.levels import Residency
from byoc.memory.levels.pack import packed
from byoc.memory.levels.schedule import Schedule
from byoc.memory.levels.units import Stay, Unit, units

Depths = Mapping[tuple[Stay, ...], int]
"""For the residencies of a unit how many bytes lie above it, up to the end of the scratchpad."""


def residencies(
    schedule: Schedule, size: int, choice: Choice, depths: Depths, prefetch: int
) -> tuple[Residency, ...]:
    """Return an address for each residency of a choice, in a scratchpad of `size` bytes.

    `depths` are places that fit. A buffer that is loaded is there up to `prefetch` turns earlier, where its
    place is free then; places that allow all that the bytes allow are preferred.
    """
    all_units = units(schedule, choice, prefetch)
    ceilings = [size - staged for staged in staging(schedule, choice)]
    firsts = _wished(all_units, [int(bytes_) for bytes_ in occupied(schedule, choice)], size)
    offsets = [offset for offset in _packed(all_units, firsts, ceilings) if offset is not None]
    if len(offsets) < len(all_units):
        firsts = [unit.first for unit in all_units]
        offsets = [depths[unit.stays] for unit in all_units]
    firsts = _earlier(all_units, firsts, offsets, ceilings)
    found = []
    for unit, first, offset in zip(all_units, firsts, offsets, strict=True):
        address = size - offset - unit.size
        for number, (buffer, start, last) in enumerate(unit.stays):
            found.append(Residency(buffer, start if number else first, last, address))
    return tuple(sorted(found, key=lambda r: (r.first, r.address, r.last)))


def _packed(all_units: Sequence[Unit], firsts: Sequence[int], ceilings: Sequence[int]) -> Sequence[int | None]:
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
    all_units: Sequence[Unit], firsts: Sequence[int], offsets: Sequence[int], ceilings: Sequence[int]
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
            if taken or offset + unit.size > ceilings[turn]:
                break
            firsts[number] = turn
    return firsts
