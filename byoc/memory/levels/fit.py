"""Choices with addresses: if no addresses are found, the cheapest residency is given up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from byoc.memory.levels.choice import Choice, Keep, bytes_of, grown, moved, occupied, staging
from byoc.memory.levels.pack import Block, lowest_free, packed
from byoc.memory.levels.places import Areas, Depths, Unit, staged_at, units
from byoc.memory.levels.schedule import Schedule
from byoc.memory.offsets.climb import climbed
from byoc.memory.offsets.compounds import Compound, Part
from byoc.memory.offsets.packing import Packing
from byoc.memory.problem import Buffer

_Way = tuple[int, Buffer, Keep]  # bytes lost, and the buffer's part of the choice that loses them
# How long places are searched for, with all that is to be kept.
_SECONDS = 1.0
# How many ways to give one thing up are tried for their addresses before more is given up at once.
_SINGLE = 8
# Beyond so many residencies that takes too long.
_MOST_UNITS = 200
# One in so many of those that find no place is given up at once.
_PART = 8
# More than all that a plan can move.
_NEVER = 1 << 60
# How often everything is gone through for what could be kept after all.
_PASSES = 3


@dataclass(frozen=True)
class Fit:
    """A choice with addresses for its residencies."""

    schedule: Schedule
    choice: Choice
    depths: Depths
    areas: Areas


def fitted(
    schedule: Schedule, size: int, choice: Choice, until: float, fill: bool = False
) -> Fit | None:
    """Return a choice with addresses, `choice` itself if they are found.

    None if a turn needs more than the scratchpad has, whatever is given up. With `fill`, remaining room
    is used as well. The longer searches end at the time `until`, of `time.monotonic`.
    """
    fit = _packed(schedule, size, choice)
    if fit is None:
        fit = _searched(schedule, size, choice, until)
    if fit is not None:
        return _regrown(size, fit) if fill else fit
    best = _single(schedule, size, choice, until)
    more = _several(schedule, size, choice, until)
    for each in (more, best and _regrown(size, best)):
        if each is not None and (
            best is None or moved(schedule, each.choice) < moved(schedule, best.choice)
        ):
            best = each
    return best


def _packed(schedule: Schedule, size: int, choice: Choice) -> Fit | None:
    if _crowded(schedule, size, choice) is not None:
        return None
    all_units = units(schedule, choice)
    offsets = packed([u.block(u.first) for u in all_units], _ceilings(schedule, size, choice))
    depths = {u.stays: o for u, o in zip(all_units, offsets, strict=True) if o is not None}
    areas = (0,) * len(schedule.turns)
    return Fit(schedule, choice, depths, areas) if len(depths) == len(all_units) else None


def _searched(schedule: Schedule, size: int, choice: Choice, until: float) -> Fit | None:
    """Search for addresses, with the staging of each turn anywhere."""
    seconds = min(_SECONDS, until - monotonic())
    if seconds <= 0 or _crowded(schedule, size, choice) is not None:
        return None
    all_units, staged = units(schedule, choice), staging(schedule, choice)
    blocks = [u.block(u.first) for u in all_units]
    blocks += [Block(turn, turn, bytes_) for turn, bytes_ in enumerate(staged)]
    parts = [Compound((Part(0, b.size, b.first, b.last),)) for b in blocks]
    offsets = climbed(Packing(parts), size, monotonic() + seconds)
    if any(offset + block.size > size for offset, block in zip(offsets, blocks, strict=True)):
        return None
    depths = {u.stays: offset for u, offset in zip(all_units, offsets, strict=False)}
    areas = [
        size - offset - bytes_ if bytes_ else 0
        for offset, bytes_ in zip(offsets[len(all_units) :], staged, strict=True)
    ]
    return Fit(schedule, choice, depths, tuple(areas))


def _single(schedule: Schedule, size: int, choice: Choice, until: float) -> Fit | None:
    """Give up one residency, if that is enough."""
    if len(units(schedule, choice)) > _MOST_UNITS:
        return None
    ways = sorted(_ways(schedule, choice, 0, len(schedule.turns)), key=lambda way: way[0])
    choices = [_with(choice, way) for way in ways[:_SINGLE]]
    for each in choices:
        if fit := _packed(schedule, size, each):
            return fit
    searched = (_searched(schedule, size, each, until) for each in choices)
    return next((fit for fit in searched if fit is not None), None)


def _several(schedule: Schedule, size: int, choice: Choice, until: float) -> Fit | None:
    """Give up residencies without an address until the rest fits, and keep again what can be."""
    while (turn := _crowded(schedule, size, choice)) is not None:
        if (way := _cheapest(schedule, choice, turn, turn)) is None:
            return None
        choice = _with(choice, way)
    while True:
        all_units = units(schedule, choice)
        losses = [_loss(schedule, choice, unit) for unit in all_units]
        blocks = [u.block(u.first) for u in all_units]
        offsets = packed(blocks, _ceilings(schedule, size, choice), losses)
        left = [unit for unit, offset in zip(all_units, offsets, strict=True) if offset is None]
        if not left:
            depths = {u.stays: o for u, o in zip(all_units, offsets, strict=True) if o is not None}
            return _regrown(size, Fit(schedule, choice, depths, (0,) * len(schedule.turns)))
        left.sort(key=lambda unit: losses[all_units.index(unit)] / unit.size)
        for unit in left[: 1 + len(left) // _PART] if monotonic() < until else left:
            buffers = tuple(buffer for buffer, _, _ in unit.stays)
            way = _cheapest(schedule, choice, unit.first, unit.last, buffers)
            # Where it has to be there, something beside it has to go.
            if (way := way or _cheapest(schedule, choice, unit.first, unit.last)) is None:
                return None
            choice = _with(choice, way)


def _cheapest(
    schedule: Schedule, choice: Choice, first: int, last: int, buffers: Sequence[Buffer] | None = None
) -> _Way | None:
    """Return the change that loses the fewest bytes for its size."""
    ways = _ways(schedule, choice, first, last, buffers)
    return min(ways, key=lambda way: way[0] / schedule.sizes[way[1]], default=None)


def _regrown(size: int, fit: Fit) -> Fit:
    schedule = fit.schedule
    anchored = _Anchored(schedule, size, fit)
    choice = fit.choice
    for _ in range(_PASSES):
        better = grown(schedule, size, choice, anchored)
        if moved(schedule, better) == moved(schedule, choice):
            break
        choice = better
    return Fit(schedule, choice, anchored.depths, fit.areas)


class _Anchored:
    """A test of whether a choice fits while every residency with an address keeps it."""

    def __init__(self, schedule: Schedule, size: int, fit: Fit) -> None:
        self.schedule = schedule
        self.size = size
        self.depths = dict(fit.depths)
        self.areas = fit.areas

    def __call__(self, choice: Choice) -> bool:
        staged = staged_at(self.size, staging(self.schedule, choice), self.areas)
        all_units = units(self.schedule, choice)
        depths = {unit.stays: self.depths[unit.stays] for unit in all_units if unit.stays in self.depths}
        there = [unit for unit in all_units if unit.stays in depths]
        for unit in sorted(all_units, key=lambda u: (-u.size, u.first)):
            if unit.stays in depths:
                continue
            beside = [u for u in there if u.first <= unit.last and unit.first <= u.last]
            spans = [(depths[u.stays], depths[u.stays] + u.size) for u in beside]
            depth = lowest_free([*spans, *staged[unit.first : unit.last + 1]], unit.size)
            if depth + unit.size > self.size:
                return False
            depths[unit.stays] = depth
            there.append(unit)
        self.depths = depths
        return True


def _ceilings(schedule: Schedule, size: int, choice: Choice) -> list[int]:
    return [size - staged for staged in staging(schedule, choice)]


def _crowded(schedule: Schedule, size: int, choice: Choice) -> int | None:
    """Return the turn that needs the most bytes if these are more than the scratchpad has."""
    used = occupied(schedule, choice)
    return int(used.argmax()) if used.max(initial=0) > size else None


def _with(choice: Choice, way: _Way) -> Choice:
    _, buffer, keep = way
    return [*choice[:buffer], keep, *choice[buffer + 1 :]]


def _loss(schedule: Schedule, choice: Choice, unit: Unit) -> float:
    """Return about the bytes lost by giving up a unit; very many if it cannot be given up."""
    ways = _ways(schedule, choice, unit.first, unit.last, tuple(buffer for buffer, _, _ in unit.stays))
    return 1.0 + max((way[0] for way in ways), default=_NEVER)


def _ways(
    schedule: Schedule, choice: Choice, first: int, last: int, buffers: Sequence[Buffer] | None = None
) -> Iterator[_Way]:
    """Yield all residencies that can be given up between two turns."""
    for buffer in range(len(choice)) if buffers is None else buffers:
        keep, events = choice[buffer], schedule.events[buffer]
        before = bytes_of(schedule, buffer, keep)
        ways = [
            keep.dropped(gap)
            for gap, here in enumerate(keep.kept)
            if here and events[gap].turn <= last and first <= events[gap + 1].turn
        ] + [
            keep.without(number)
            for number, here in enumerate(keep.resident)
            if here
            and first <= events[number].turn <= last
            and not events[number].access.pinned
            and events[number].access.staging <= schedule.sizes[buffer]
        ]
        for way in ways:
            yield bytes_of(schedule, buffer, way) - before, buffer, way
