"""The actions of a plan in their order: each load as early as its place is free, each store at once."""

from collections.abc import Iterator, Sequence

from byoc.memory.levels.choice import Choice, staging, traffic
from byoc.memory.levels.levels import Action, Load, Residency, Run, Store
from byoc.memory.levels.schedule import Schedule


def actions(
    schedule: Schedule, choice: Choice, residencies: Sequence[Residency], areas: Sequence[int]
) -> list[Action]:
    """Return what is done: before a turn the loads that begin there, then the turn, then its stores."""
    loads: list[list[Load]] = [[] for _ in schedule.turns]
    stores: list[list[Store]] = [[] for _ in schedule.turns]
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        moves = traffic(schedule, buffer, keep)
        own = [r for r in residencies if r.buffer == buffer]
        for number in moves.loads:
            needed = events[number].turn
            stay = _at(own, needed)
            loads[stay.first].append(Load(buffer, stay.address, needed))
        for number in moves.stores:
            turn = events[number].turn
            stores[turn].append(Store(buffer, _at(own, turn).address))
    runs = _runs(schedule, choice, residencies, areas)
    ordered: list[Action] = []
    for load, run, store in zip(loads, runs, stores, strict=True):
        ordered += [*sorted(load, key=lambda each: (each.needed, each.buffer)), run, *store]
    return ordered


def _runs(
    schedule: Schedule, choice: Choice, residencies: Sequence[Residency], areas: Sequence[int]
) -> Iterator[Run]:
    here: dict[tuple[int, int], int] = {}
    for stay in residencies:
        here.update({(turn, stay.buffer): stay.address for turn in range(stay.first, stay.last + 1)})
    streams = {
        (event.turn, buffer)
        for buffer, keep in enumerate(choice)
        for event, resident in zip(schedule.events[buffer], keep.resident, strict=True)
        if not resident
    }
    staged = staging(schedule, choice)
    for number, turn in enumerate(schedule.turns):
        places = [
            None if (number, a.buffer) in streams else here[number, a.buffer] for a in turn.accesses
        ]
        yield Run(number, tuple(places), staged[number], areas[number])


def _at(stays: Sequence[Residency], turn: int) -> Residency:
    """Return the residency in use at a turn: the last one that has begun."""
    return max((r for r in stays if r.first <= turn <= r.last), key=lambda r: r.first)
