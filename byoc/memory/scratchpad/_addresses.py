"""Addresses of resident buffers; where none are found, the cheapest residency is given up."""

from collections.abc import Iterator, Mapping, Sequence

from byoc._dataclasses import dataclass
from byoc.memory.arena import (
    Buffer,
    Compound,
    GreedyPacking,
    find_lowest_gap,
    pack_under,
    search_offsets,
)
from byoc.memory.scratchpad._scratchpad_plan import (
    AccessSchedule,
    BufferResidency,
    Residency,
    ResidencyChoice,
    count_buffer_traffic,
    count_moved_bytes,
    count_occupied,
    count_staging,
    find_residency_overwrites,
    grow_choice,
)
from byoc.numerics import SearchBudget

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


# Choices with addresses: if no addresses are found, the cheapest residency is given up.

_ResidencyChange = tuple[
    int, Buffer, BufferResidency
]  # bytes lost, and the buffer's part of the choice that loses them
# How long places are searched for, with all that is to be kept: in counted seconds (`SearchBudget`).
_SECONDS = 1.0
# How many ways to give one thing up are tried for their addresses before more is given up at once.
_SINGLE = 8
# Beyond so many residencies that takes too long.
_MAX_UNITS = 200
# One in so many of those that find no place is given up at once.
_PART = 8
# So often places are tried when residencies are given up.
_TRIES_OF_PACKING = 20
# More than all that a plan can move.
_NEVER = 1 << 60
# How often everything is gone through for what could be kept after all.
_PASSES = 3


@dataclass(frozen=True)
class AddressedChoice:
    """A choice with addresses for its residencies."""

    schedule: AccessSchedule
    choice: ResidencyChoice
    depths: ChainDepths
    areas: StagingAreas


def fit_addresses(
    schedule: AccessSchedule, size: int, choice: ResidencyChoice, limit: SearchBudget, fill: bool = False
) -> AddressedChoice | None:
    """Return a choice with addresses, `choice` itself if they are found.

    None if a turn needs more than the scratchpad has, whatever is given up. With `fill`, remaining room
    is used as well. The longer searches end when the budget `limit` is spent.
    """
    fit = _pack_directly(schedule, size, choice)
    if fit is None:
        fit = _search_addresses(schedule, size, choice, limit)
    if fit is not None:
        return _grow_again(size, fit) if fill else fit
    best = _give_up_one(schedule, size, choice, limit)
    more = _give_up_several(schedule, size, choice, limit)
    for each in (more, best and _grow_again(size, best)):
        if each is not None and (
            best is None
            or count_moved_bytes(schedule, each.choice) < count_moved_bytes(schedule, best.choice)
        ):
            best = each
    return best


def _pack_directly(
    schedule: AccessSchedule, size: int, choice: ResidencyChoice
) -> AddressedChoice | None:
    if _most_crowded_turn(schedule, size, choice) is not None:
        return None
    all_units = build_chains(schedule, choice)
    packing = GreedyPacking([u.to_block(u.first) for u in all_units])
    offsets = pack_under(packing, _free_ceilings(schedule, size, choice))
    depths = {u.stays: o for u, o in zip(all_units, offsets, strict=True) if o is not None}
    areas = (0,) * len(schedule.turns)
    return AddressedChoice(schedule, choice, depths, areas) if len(depths) == len(all_units) else None


def _search_addresses(
    schedule: AccessSchedule, size: int, choice: ResidencyChoice, limit: SearchBudget
) -> AddressedChoice | None:
    """Search for addresses, with the staging of each turn anywhere."""
    if limit.is_spent or _most_crowded_turn(schedule, size, choice) is not None:
        return None
    all_units, staged = build_chains(schedule, choice), count_staging(schedule, choice)
    blocks = [u.to_block(u.first) for u in all_units]
    blocks += [Compound.of_block(bytes_, turn, turn) for turn, bytes_ in enumerate(staged)]
    packing = GreedyPacking(blocks)
    offsets = search_offsets(packing, size, limit.limit(_SECONDS))
    if packing.height(offsets) > size:
        return None
    depths = {u.stays: offset for u, offset in zip(all_units, offsets, strict=False)}
    areas = [
        size - offset - bytes_ if bytes_ else 0
        for offset, bytes_ in zip(offsets[len(all_units) :], staged, strict=True)
    ]
    return AddressedChoice(schedule, choice, depths, tuple(areas))


def _give_up_one(
    schedule: AccessSchedule, size: int, choice: ResidencyChoice, limit: SearchBudget
) -> AddressedChoice | None:
    """Give up one residency, if that is enough."""
    if len(build_chains(schedule, choice)) > _MAX_UNITS:
        return None
    ways = sorted(_possible_changes(schedule, choice, 0, len(schedule.turns)), key=lambda way: way[0])
    choices = [_apply_change(choice, way) for way in ways[:_SINGLE]]
    for each in choices:
        if fit := _pack_directly(schedule, size, each):
            return fit
    searched = (_search_addresses(schedule, size, each, limit) for each in choices)
    return next((fit for fit in searched if fit is not None), None)


def _give_up_several(
    schedule: AccessSchedule, size: int, choice: ResidencyChoice, limit: SearchBudget
) -> AddressedChoice | None:
    """Give up residencies without an address until the rest fits, and keep again what can be."""
    while (turn := _most_crowded_turn(schedule, size, choice)) is not None:
        if (way := _cheapest_change(schedule, choice, turn, turn)) is None:
            return None
        choice = _apply_change(choice, way)
    while True:
        all_units = build_chains(schedule, choice)
        losses = [_estimate_loss(schedule, choice, unit) for unit in all_units]
        packing = GreedyPacking([u.to_block(u.first) for u in all_units])
        limit.spend(_TRIES_OF_PACKING * packing.seconds)
        offsets = pack_under(packing, _free_ceilings(schedule, size, choice), losses)
        left = [unit for unit, offset in zip(all_units, offsets, strict=True) if offset is None]
        if not left:
            depths = {u.stays: o for u, o in zip(all_units, offsets, strict=True) if o is not None}
            return _grow_again(
                size, AddressedChoice(schedule, choice, depths, (0,) * len(schedule.turns))
            )
        left.sort(key=lambda unit: losses[all_units.index(unit)] / unit.size)
        for unit in left[: 1 + len(left) // _PART] if not limit.is_spent else left:
            buffers = tuple(buffer for buffer, _, _ in unit.stays)
            way = _cheapest_change(schedule, choice, unit.first, unit.last, buffers)
            # Where it has to be there, something beside it has to go.
            if (way := way or _cheapest_change(schedule, choice, unit.first, unit.last)) is None:
                return None
            choice = _apply_change(choice, way)


def _cheapest_change(
    schedule: AccessSchedule,
    choice: ResidencyChoice,
    first: int,
    last: int,
    buffers: Sequence[Buffer] | None = None,
) -> _ResidencyChange | None:
    """Return the change that loses the fewest bytes for its size."""
    ways = _possible_changes(schedule, choice, first, last, buffers)
    return min(ways, key=lambda way: way[0] / schedule.sizes[way[1]], default=None)


def _grow_again(size: int, fit: AddressedChoice) -> AddressedChoice:
    schedule = fit.schedule
    anchored = _FitTest(schedule, size, fit)
    choice = fit.choice
    for _ in range(_PASSES):
        better = grow_choice(schedule, size, choice, anchored)
        if count_moved_bytes(schedule, better) == count_moved_bytes(schedule, choice):
            break
        choice = better
    return AddressedChoice(schedule, choice, anchored.depths, fit.areas)


class _FitTest:
    """A test of whether a choice fits while every residency with an address keeps it."""

    def __init__(self, schedule: AccessSchedule, size: int, fit: AddressedChoice) -> None:
        self.schedule = schedule
        self.size = size
        self.depths = dict(fit.depths)
        self.areas = fit.areas

    def __call__(self, choice: ResidencyChoice) -> bool:
        staged = find_staging_spans(self.size, count_staging(self.schedule, choice), self.areas)
        all_units = build_chains(self.schedule, choice)
        depths = {unit.stays: self.depths[unit.stays] for unit in all_units if unit.stays in self.depths}
        there = [unit for unit in all_units if unit.stays in depths]
        for unit in sorted(all_units, key=lambda u: (-u.size, u.first)):
            if unit.stays in depths:
                continue
            beside = [u for u in there if u.first <= unit.last and unit.first <= u.last]
            spans = [(depths[u.stays], depths[u.stays] + u.size) for u in beside]
            depth = find_lowest_gap([*spans, *staged[unit.first : unit.last + 1]], unit.size)
            if depth + unit.size > self.size:
                return False
            depths[unit.stays] = depth
            there.append(unit)
        self.depths = depths
        return True


def _free_ceilings(schedule: AccessSchedule, size: int, choice: ResidencyChoice) -> list[int]:
    return [size - staged for staged in count_staging(schedule, choice)]


def _most_crowded_turn(schedule: AccessSchedule, size: int, choice: ResidencyChoice) -> int | None:
    """Return the turn that needs the most bytes if these are more than the scratchpad has."""
    used = count_occupied(schedule, choice)
    return int(used.argmax()) if used.max(initial=0) > size else None


def _apply_change(choice: ResidencyChoice, way: _ResidencyChange) -> ResidencyChoice:
    _, buffer, keep = way
    return [*choice[:buffer], keep, *choice[buffer + 1 :]]


def _estimate_loss(schedule: AccessSchedule, choice: ResidencyChoice, unit: ResidencyChain) -> float:
    """Return about the bytes lost by giving up a unit; very many if it cannot be given up."""
    ways = _possible_changes(
        schedule, choice, unit.first, unit.last, tuple(buffer for buffer, _, _ in unit.stays)
    )
    return 1.0 + max((way[0] for way in ways), default=_NEVER)


def _possible_changes(
    schedule: AccessSchedule,
    choice: ResidencyChoice,
    first: int,
    last: int,
    buffers: Sequence[Buffer] | None = None,
) -> Iterator[_ResidencyChange]:
    """Yield all residencies that can be given up between two turns."""
    for buffer in range(len(choice)) if buffers is None else buffers:
        keep, events = choice[buffer], schedule.events[buffer]
        before = count_buffer_traffic(schedule, buffer, keep)
        ways = [
            keep.drop_between(gap)
            for gap, here in enumerate(keep.kept)
            if here and events[gap].turn <= last and first <= events[gap + 1].turn
        ] + [
            keep.stream_at(number)
            for number, here in enumerate(keep.resident)
            if here
            and first <= events[number].turn <= last
            and not events[number].access.pinned
            and events[number].access.staging <= schedule.sizes[buffer]
        ]
        for way in ways:
            yield count_buffer_traffic(schedule, buffer, way) - before, buffer, way
