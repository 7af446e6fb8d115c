"""Addresses of resident buffers: from the end of the scratchpad downwards, above the staging."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byoc.memory.arena import Buffer, Compound, GreedyPacking, pack_under
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._residency_choice import (
    ResidencyChoice,
    count_occupied,
    count_staging,
    find_residency_overwrites,
)
from byoc.memory.scratchpad._scratchpad_plan import Residency

Stay = tuple[Buffer, int, int]
"""A buffer is resident from one turn to another, both included."""


@dataclass(frozen=True)
class ResidencyChain:
    """Residencies that share an address, each buffer overwriting the one before it.

    `earliest` is the first turn before which the first buffer can be loaded; its own turn if it is made
    there.
    """

    stays: tuple[Stay, ...]
    size: int
    earliest: int

    @property
    def first(self) -> int:
        """The first turn of the first residency."""
        return self.stays[0][1]

    @property
    def last(self) -> int:
        """The last turn of the last residency."""
        return self.stays[-1][2]

    def to_block(self, first: int) -> Compound:
        """Return the block of bytes if the unit is resident from that turn on."""
        return Compound.of_block(self.size, first, self.last)


def build_chains(
    schedule: AccessSchedule, choice: ResidencyChoice, prefetch: int = 0
) -> Sequence[ResidencyChain]:
    """Return the residencies of a choice, joined if one buffer overwrites another.

    A loaded buffer can be resident up to `prefetch` turns earlier, after the turn of its previous
    access.
    """
    chains: dict[tuple[Buffer, int], list[Stay]] = {}
    earliest: dict[tuple[Buffer, int], int] = {}
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        for first, last in keep.list_stays():
            start = events[first].turn
            chains[buffer, first] = [(buffer, start, events[last].turn)]
            before = events[first - 1].turn + 1 if first else 0
            loaded = schedule.has_content(buffer, first)
            earliest[buffer, first] = max(before, start - prefetch) if loaded else start
    over = find_residency_overwrites(schedule, choice)
    for written in sorted(over, key=lambda b: -schedule.events[b][0].turn):  # the last ones first
        read = over[written]
        *_, (first, _) = choice[read].list_stays()
        chains[read, first] += chains.pop((written, 0))
    return [
        ResidencyChain(tuple(chain), schedule.sizes[key[0]], earliest[key])
        for key, chain in chains.items()
    ]


ChainDepths = Mapping[tuple[Stay, ...], int]
"""For the residencies of a unit how many bytes lie above it, up to the end of the scratchpad."""

StagingAreas = tuple[int, ...]
"""For each turn the address at which its staging begins."""


def assign_addresses(
    schedule: AccessSchedule,
    size: int,
    choice: ResidencyChoice,
    known: tuple[ChainDepths, StagingAreas],
    prefetch: int,
) -> tuple[tuple[Residency, ...], StagingAreas]:
    """Return an address for each residency in a scratchpad of `size` bytes, and the staging areas.

    `known` are addresses that fit. A loaded buffer is resident up to `prefetch` turns earlier if its
    address is free then; addresses that allow all prefetching that fits by bytes are preferred.
    """
    all_units = build_chains(schedule, choice, prefetch)
    staged = count_staging(schedule, choice)
    areas: StagingAreas = (0,) * len(staged)
    firsts = _earliest_turns(
        all_units, [int(bytes_) for bytes_ in count_occupied(schedule, choice)], size
    )
    blocks = [unit.to_block(first) for unit, first in zip(all_units, firsts, strict=True)]
    packed = pack_under(GreedyPacking(blocks), [size - bytes_ for bytes_ in staged])
    offsets = [offset for offset in packed if offset is not None]
    if len(offsets) < len(all_units):
        firsts = [unit.first for unit in all_units]
        offsets, areas = [known[0][unit.stays] for unit in all_units], known[1]
    firsts = _load_earlier(all_units, firsts, offsets, find_staging_spans(size, staged, areas))
    found = []
    for unit, first, offset in zip(all_units, firsts, offsets, strict=True):
        address = size - offset - unit.size
        for number, (buffer, start, last) in enumerate(unit.stays):
            found.append(Residency(buffer, start if number else first, last, address))
    return tuple(sorted(found, key=lambda r: (r.first, r.address, r.last))), areas


def find_staging_spans(size: int, staged: Sequence[int], areas: StagingAreas) -> list[tuple[int, int]]:
    """Return for each turn the span of its staging, counted from the end of the scratchpad."""
    return [(size - a - bytes_, size - a) for a, bytes_ in zip(areas, staged, strict=True)]


def _earliest_turns(all_units: Sequence[ResidencyChain], used: list[int], size: int) -> list[int]:
    """Return for each unit the turn to load it before, as early as the sums of bytes allow."""
    firsts = []
    for unit in all_units:
        first = unit.first
        while first > unit.earliest and used[first - 1] + unit.size <= size:
            first -= 1
            used[first] += unit.size
        firsts.append(first)
    return firsts


def _load_earlier(
    all_units: Sequence[ResidencyChain],
    firsts: Sequence[int],
    offsets: Sequence[int],
    staged: Sequence[tuple[int, int]],
) -> list[int]:
    """Return earlier turns for units whose address is free before."""
    firsts = list(firsts)
    taken: list[list[tuple[int, int]]] = [[span] for span in staged]  # bytes in use at each turn
    for unit, first, offset in zip(all_units, firsts, offsets, strict=True):
        for turn in range(first, unit.last + 1):
            taken[turn].append((offset, offset + unit.size))
    for number, (unit, offset) in enumerate(zip(all_units, offsets, strict=True)):
        end = offset + unit.size
        while firsts[number] > unit.earliest:
            turn = firsts[number] - 1
            if any(max(begin, offset) < min(stop, end) for begin, stop in taken[turn]):
                break
            firsts[number] = turn
            taken[turn].append((offset, end))
    return firsts
