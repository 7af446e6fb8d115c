"""Where resident buffers lie in the scratchpad: from its high end down, staging from its low end up."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.memory.levels.choice import Choice, occupied, staging, taken_over
from byoc.memory.levels.levels import Residency
from byoc.memory.levels.pack import Block, packed
from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer


@dataclass(frozen=True)
class Places:
    """Residencies, or, where they do not fit, None and the turns in which something is to give way."""

    residencies: tuple[Residency, ...] | None
    crowded: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Unit:
    """Residencies that share an address, each written over the one before it; (buffer, first, last).

    `earliest` is the first turn before which the first of them can be loaded, its own where it is not.
    """

    stays: tuple[tuple[Buffer, int, int], ...]
    size: int
    earliest: int

    @property
    def first(self) -> int:
        return self.stays[0][1]

    @property
    def last(self) -> int:
        return self.stays[-1][2]

    def block(self, first: int) -> Block:
        return Block(first, self.last, self.size)


def placed(schedule: Schedule, size: int, choice: Choice, prefetch: int = 0) -> Places:
    """Return an address for each residency of a choice, in a scratchpad of `size` bytes.

    A buffer that is loaded has its place up to `prefetch` turns earlier, where it is free then: loads that
    are early lie beside what is computed meanwhile.
    """
    used = occupied(schedule, choice)
    full = int(used.argmax()) if len(used) else 0
    if len(used) and used[full] > size:
        return Places(None, (full, full))
    units = _units(schedule, choice, prefetch)
    ceilings = [size - staged for staged in staging(schedule, choice)]
    firsts = _wished(units, [int(bytes_) for bytes_ in used], size)
    packing = packed([u.block(first) for u, first in zip(units, firsts, strict=True)], ceilings)
    if packing.offsets is None:
        firsts = [unit.first for unit in units]
        packing = packed([unit.block(unit.first) for unit in units], ceilings)
    if packing.offsets is None:
        failed = units[packing.failed]
        return Places(None, (failed.first, failed.last))
    firsts = _earlier(units, firsts, packing.offsets, ceilings)
    found = []
    for unit, first, offset in zip(units, firsts, packing.offsets, strict=True):
        address = size - offset - unit.size
        for number, (buffer, start, last) in enumerate(unit.stays):
            found.append(Residency(buffer, first if number == 0 else start, last, address))
    return Places(tuple(sorted(found, key=lambda r: (r.first, r.address, r.last))))


def _units(schedule: Schedule, choice: Choice, prefetch: int) -> list[_Unit]:
    """Return the residencies of a choice, joined where one is written over another."""
    chains: dict[tuple[Buffer, int], list[tuple[Buffer, int, int]]] = {}
    earliest: dict[tuple[Buffer, int], int] = {}
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        for first, last in keep.stays():
            start = events[first].turn
            chains[buffer, first] = [(buffer, start, events[last].turn)]
            before = events[first - 1].turn + 1 if first else 0
            loaded = schedule.has_content(buffer, first)
            earliest[buffer, first] = max(before, start - prefetch) if loaded else start
    over = taken_over(schedule, choice)
    for written in sorted(over, key=lambda b: -schedule.events[b][0].turn):  # the last ones first
        read = over[written]
        *_, (first, _) = choice[read].stays()
        chains[read, first] += chains.pop((written, 0))
    return [_Unit(tuple(chain), schedule.sizes[key[0]], earliest[key]) for key, chain in chains.items()]


def _wished(units: Sequence[_Unit], used: list[int], size: int) -> list[int]:
    """Return the turn before which each unit is to be loaded, as early as the sums of bytes allow."""
    firsts = []
    for unit in units:
        first = unit.first
        while first > unit.earliest and used[first - 1] + unit.size <= size:
            first -= 1
            used[first] += unit.size
        firsts.append(first)
    return firsts


def _earlier(
    units: Sequence[_Unit], firsts: Sequence[int], offsets: Sequence[int], ceilings: Sequence[int]
) -> list[int]:
    """Return earlier turns, where a unit's place is free before it is taken."""
    firsts = list(firsts)
    for number, (unit, offset) in enumerate(zip(units, offsets, strict=True)):
        beside = [
            n
            for n, other in enumerate(units)
            if n != number and offsets[n] < offset + unit.size and offset < offsets[n] + other.size
        ]
        while firsts[number] > unit.earliest:
            turn = firsts[number] - 1
            taken = any(firsts[n] <= turn <= units[n].last for n in beside)
            if taken or offset + unit.size > ceilings[turn]:
                break
            firsts[number] = turn
    return firsts
