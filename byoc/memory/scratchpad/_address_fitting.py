"""Choices with addresses: if no addresses are found, the cheapest residency is given up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byoc.memory.arena import (
    Buffer,
    Compound,
    GreedyPacking,
    find_lowest_gap,
    pack_under,
    search_offsets,
)
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._addresses import (
    ChainDepths,
    ResidencyChain,
    StagingAreas,
    build_chains,
    find_staging_spans,
)
from byoc.memory.scratchpad._residency_choice import (
    BufferResidency,
    ResidencyChoice,
    count_buffer_traffic,
    count_moved_bytes,
    count_occupied,
    count_staging,
    grow_choice,
)
from byoc.numerics import SearchBudget

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
