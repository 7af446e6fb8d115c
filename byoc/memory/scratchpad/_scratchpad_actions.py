"""Actions of a scratchpad plan in order, and the offsets of buffers in system memory.

Each load is as early as its address is free, each store follows the write at once.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from byoc.memory.arena import Buffer, Compound, GreedyPacking, search_offsets
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._residency_choice import ResidencyChoice, count_staging, find_traffic
from byoc.memory.scratchpad._scratchpad_plan import Action, LoadAction, Residency, RunAction, StoreAction


def build_actions(
    schedule: AccessSchedule,
    choice: ResidencyChoice,
    residencies: Sequence[Residency],
    areas: Sequence[int],
) -> list[Action]:
    """Return the actions: for each turn the loads that begin there, its run, and its stores."""
    loads: list[list[LoadAction]] = [[] for _ in schedule.turns]
    stores: list[list[StoreAction]] = [[] for _ in schedule.turns]
    stays: dict[Buffer, list[Residency]] = defaultdict(list)
    for residency in residencies:
        stays[residency.buffer].append(residency)
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
        moves = find_traffic(schedule, buffer, keep)
        own = stays[buffer]
        for number in moves.loads:
            needed = events[number].turn
            stay = _residency_at(own, needed)
            loads[stay.first].append(LoadAction(buffer, stay.address, needed))
        for number in moves.stores:
            turn = events[number].turn
            stores[turn].append(StoreAction(buffer, _residency_at(own, turn).address))
    runs = _build_runs(schedule, choice, residencies, areas)
    ordered: list[Action] = []
    for load, run, store in zip(loads, runs, stores, strict=True):
        ordered += [*sorted(load, key=lambda each: (each.needed, each.buffer)), run, *store]
    return ordered


def _build_runs(
    schedule: AccessSchedule,
    choice: ResidencyChoice,
    residencies: Sequence[Residency],
    areas: Sequence[int],
) -> Iterator[RunAction]:
    here: dict[tuple[int, int], int] = {}
    for stay in residencies:
        here.update({(turn, stay.buffer): stay.address for turn in range(stay.first, stay.last + 1)})
    streams = {
        (event.turn, buffer)
        for buffer, keep in enumerate(choice)
        for event, resident in zip(schedule.events[buffer], keep.resident, strict=True)
        if not resident
    }
    staged = count_staging(schedule, choice)
    for number, turn in enumerate(schedule.turns):
        places = [
            None if (number, a.buffer) in streams else here[number, a.buffer] for a in turn.accesses
        ]
        yield RunAction(number, tuple(places), staged[number], areas[number])


def _residency_at(stays: Sequence[Residency], turn: int) -> Residency:
    """Return the residency in use at a turn: the last one that has begun."""
    return max((r for r in stays if r.first <= turn <= r.last), key=lambda r: r.first)


_Life = tuple[int, int]


def assign_homes(
    schedule: AccessSchedule, actions: Sequence[Action], counted: bool
) -> tuple[tuple[int | None, ...], int]:
    """Return for each buffer its offset in system memory (None without one), and the bytes of all.

    With `counted`, inputs are stored from the beginning to their last read, and outputs from their write
    to the end; otherwise they belong to the caller and have no offset here. A streamed buffer overwrites
    another one streamed in the same turn if the turn allows it and is the last reader.
    """
    lives = _home_live_ranges(schedule, actions)
    if not counted:
        for buffer in schedule.inputs | schedule.outputs:
            lives.pop(buffer, None)
    rows = _home_chains(schedule, actions, lives)
    packing = GreedyPacking(
        [Compound.of_block(schedule.sizes[row[0]], lives[row[0]][0], lives[row[-1]][1]) for row in rows]
    )
    offsets = search_offsets(packing, packing.peak)
    found: list[int | None] = [None] * len(schedule.sizes)
    for row, offset in zip(rows, offsets, strict=True):
        for buffer in row:
            found[buffer] = offset
    return tuple(found), packing.height(offsets)


def _home_live_ranges(schedule: AccessSchedule, actions: Sequence[Action]) -> dict[Buffer, _Life]:
    """Return for each buffer in system memory its live range in actions, numbered from 1."""
    lives: dict[Buffer, _Life] = dict.fromkeys(schedule.inputs, (0, 0))
    for time, action in enumerate(actions, 1):
        for buffer in _buffers_at_home(schedule, action):
            lives[buffer] = lives.get(buffer, (time, time))[0], time
    for buffer in schedule.outputs & lives.keys():
        lives[buffer] = lives[buffer][0], len(actions) + 1
    return lives


def _buffers_at_home(schedule: AccessSchedule, action: Action) -> list[Buffer]:
    """Return the buffers that an action reads or writes in system memory."""
    if isinstance(action, RunAction):
        accesses = schedule.turns[action.turn].accesses
        return [a.buffer for a, place in zip(accesses, action.addresses, strict=True) if place is None]
    return [action.buffer]


def _home_chains(
    schedule: AccessSchedule, actions: Sequence[Action], lives: dict[Buffer, _Life]
) -> list[list[Buffer]]:
    """Return chains of buffers in system memory, each overwriting the one before."""
    times = {a.turn: time for time, a in enumerate(actions, 1) if isinstance(a, RunAction)}
    behind: dict[Buffer, Buffer] = {}
    for turn, written, read in schedule.overwrites:
        if written not in lives or read not in lives or read in behind or written in behind.values():
            continue
        once = schedule.events[read][-1].streamed <= schedule.sizes[read]
        if once and lives[read][1] == times[turn] == lives[written][0]:
            behind[read] = written
    rows = []
    for buffer in sorted(lives.keys() - set(behind.values())):
        row = [buffer]
        while row[-1] in behind:
            row.append(behind[row[-1]])
        rows.append(row)
    return rows
