"""Scratchpad residency: which buffers stay in a scratchpad, and what is loaded, stored and streamed.

`plan_scratchpad(schedule, size)` decides what stays in a scratchpad of the given size beside system
memory so that the fewest bytes move, with a lower bound for every plan in that order, and returns all
actions with their addresses. Only numbers, no ONNX.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.memory.arena import Buffer, Compound, GreedyPacking, search_offsets
from byoc.memory.scratchpad._addresses import AddressedChoice, assign_addresses, fit_addresses
from byoc.memory.scratchpad._scratchpad_plan import (
    Access,
    AccessSchedule,
    Action,
    BufferResidency,
    LoadAction,
    Residency,
    ResidencyChoice,
    RunAction,
    ScheduledStep,
    ScratchpadPlan,
    StoreAction,
    count_moved_bytes,
    count_occupied,
    count_staging,
    find_smallest_choice,
    find_traffic,
    grow_choice,
    keep_nothing,
)
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder

__all__ = [
    "Access",
    "AccessSchedule",
    "LoadAction",
    "RunAction",
    "ScheduledStep",
    "ScratchpadPlan",
    "StoreAction",
    "plan_scratchpad",
]

# Optimal scratchpad residency as a 0-1 program, solved by HiGHS, with its lower bound.
#
# Variables: r[e], the buffer is resident at an access; k[g], it is kept between two consecutive
# accesses; w[e], a result written while resident is stored; s[p], a buffer overwrites one that
# dies. An access loads if r[e] - k[e-1] = 1. One row for each turn says that buffers and staging
# fit together.

# What the solver's tolerances may hide of a bound, in parts of the greatest common divisor of all costs.
_HIDDEN = 1e-4
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ResidencySolution:
    """The best choice, None if none was found, and a lower bound on the bytes moved."""

    choice: ResidencyChoice | None
    bound: int
    is_exact: bool
    is_impossible: bool = False


@dataclass(frozen=True)
class _BufferColumns:
    """The columns of a buffer: r for each access, k for each pair of consecutive ones."""

    resident: Ints
    kept: Ints


def minimize_traffic(schedule: AccessSchedule, size: int, nodes: int) -> ResidencySolution:
    """Return the choice that moves the fewest bytes with a scratchpad of `size` bytes, and the bound.

    Stops after so many branch-and-bound `nodes` with the best choice found. The bound holds for every
    choice, whatever the addresses: it is the solver's dual bound, rounded up to a possible number of
    bytes.
    """
    rows = MilpBuilder()
    constant = sum(e.streamed for events in schedule.events for e in events)
    columns = [_add_buffer(schedule, buffer, size, rows) for buffer in range(len(schedule.sizes))]
    shares = _add_overwrites(schedule, columns, rows)
    _add_capacity(schedule, size, columns, shares, rows)
    costs = (int(cost) for part in rows.cost for cost in part)
    unit = reduce(gcd, costs, constant) or 1
    found = rows.solve(0.0, nodes=nodes)
    if found.solved and found.values is None:
        return ResidencySolution(None, 0, True, is_impossible=True)
    bound = unit * ceil(found.bound / unit - _HIDDEN) + constant if np.isfinite(found.bound) else 0
    if found.values is None:
        return ResidencySolution(None, max(bound, 0), False)
    values = found.values > 0.5
    choice = [
        BufferResidency(tuple(values[each.resident].tolist()), tuple(values[each.kept].tolist()))
        for each in columns
    ]
    return ResidencySolution(choice, max(bound, 0), found.solved)


def _add_buffer(
    schedule: AccessSchedule, buffer: Buffer, size: int, rows: MilpBuilder
) -> _BufferColumns:
    """Add the columns of a buffer and the rows between them."""
    events, bytes_ = schedule.events[buffer], schedule.sizes[buffer]
    most = int(bytes_ <= size)
    costs = [
        (bytes_ if schedule.has_content(buffer, number) else 0) - event.streamed
        for number, event in enumerate(events)
    ]
    resident = rows.add_columns(costs, most, True, [event.access.pinned for event in events])
    kept = rows.add_columns([-bytes_] * (len(events) - 1), most, True)
    for gap, column in enumerate(kept):
        rows.add_row(0, [column, resident[gap]], [1, -1])
        rows.add_row(0, [column, resident[gap + 1]], [1, -1])
    written = None
    for number, event in enumerate(events):
        if written is not None:
            store, writer = written  # asked for in system memory when it was not kept up to here
            rows.add_row(0, [resident[writer], kept[number - 1], store], [1, -1, -1])
        if event.access.writes:
            written = int(rows.add_columns(bytes_, 1, True)), number
    if written is not None and buffer in schedule.outputs:
        rows.add_row(0, [resident[written[1]], written[0]], [1, -1])
    return _BufferColumns(resident, kept)


def _add_overwrites(
    schedule: AccessSchedule, columns: Sequence[_BufferColumns], rows: MilpBuilder
) -> list[tuple[int, Buffer, int]]:
    """Add a column for each pair of buffers that can overwrite; return (turn, buffer, column)."""
    shares, same = [], dict[tuple[str, Buffer], list[int]]()
    for turn, written, read in schedule.overwrites:
        share = int(rows.add_columns(0, 1, True))
        rows.add_row(0, [share, columns[written].resident[0]], [1, -1])
        rows.add_row(0, [share, columns[read].resident[-1]], [1, -1])
        same.setdefault(("written", written), []).append(share)
        same.setdefault(("read", read), []).append(share)
        shares.append((turn, written, share))
    for group in same.values():
        if len(group) > 1:
            rows.add_row(1, group, 1)
    return shares


def _add_capacity(
    schedule: AccessSchedule,
    size: int,
    columns: Sequence[_BufferColumns],
    shares: Sequence[tuple[int, Buffer, int]],
    rows: MilpBuilder,
) -> None:
    """Add a row for each turn in which not everything fits anyway."""
    needs: list[list[tuple[int, int]]] = [[] for _ in schedule.turns]
    fixed = [turn.staging for turn in schedule.turns]
    for buffer, events in enumerate(schedule.events):
        bytes_, own = schedule.sizes[buffer], columns[buffer]
        for number, event in enumerate(events):
            fixed[event.turn] += event.access.staging
            needs[event.turn].append((own.resident[number], bytes_ - event.access.staging))
            if number:
                for turn in range(events[number - 1].turn + 1, event.turn):
                    needs[turn].append((own.kept[number - 1], bytes_))
    for turn, written, share in shares:
        needs[turn].append((share, -schedule.sizes[written]))
    high = np.concatenate([*rows.high, np.zeros(0)])
    for need, known in zip(needs, fixed, strict=True):
        most = sum(factor for column, factor in need if factor > 0 and high[column])
        if known + most <= size:
            continue
        unit = reduce(gcd, (factor for _, factor in need), 0) or 1
        entries = [(column, factor // unit) for column, factor in need if factor]
        rows.add_row((size - known) // unit, *np.array(entries, np.int64).reshape(-1, 2).T)


# Planning of a scratchpad beside system memory.

# The branch-and-bound nodes of each program for each second of the search.
_NODES_PER_SECOND = 200
# Parts of the scratchpad that are left out at first when what would fill it finds no places.
_LESS = (32, 12, 6)


def plan_scratchpad(
    schedule: AccessSchedule,
    size: int,
    *,
    prefetch: int = 1,
    counts_boundary: bool = True,
    seconds: float = 5.0,
) -> ScratchpadPlan:
    """Return the plan for a scratchpad of `size` bytes that moves the fewest bytes found.

    A buffer is loaded up to `prefetch` turns before it is needed, as early as its address is free. With
    `counts_boundary`, inputs and outputs are stored in the arena of system memory. Searches end
    after `seconds` of an ordinary computer, counted by their steps (`SearchBudget`) so that the plan
    depends on no machine, followed by quick heuristics; `ScratchpadPlan.bound` is what is proven. Raises
    InputError, naming the turn, if a turn needs more than the scratchpad has.
    """
    room = size - size % schedule.alignment
    nodes = int(seconds * _NODES_PER_SECOND)
    solution = minimize_traffic(schedule, room, nodes)
    fit = _find_addressed_choice(schedule, room, solution, (SearchBudget(seconds), nodes))
    if solution.is_impossible or fit is None:
        raise InputError(_explain_too_small(schedule, size))
    choice = fit.choice
    stays, areas = assign_addresses(schedule, room, choice, (fit.depths, fit.areas), prefetch)
    done = build_actions(schedule, choice, stays, areas)
    places, arena = assign_homes(schedule, done, counts_boundary)
    moves = [find_traffic(schedule, buffer, each) for buffer, each in enumerate(choice)]
    sizes = schedule.sizes
    return ScratchpadPlan(
        schedule=schedule,
        size=size,
        actions=tuple(done),
        residencies=stays,
        homes=places,
        arena=arena,
        counts_boundary=counts_boundary,
        loaded=sum(size * len(m.loads) for size, m in zip(sizes, moves, strict=True)),
        stored=sum(size * len(m.stores) for size, m in zip(sizes, moves, strict=True)),
        streamed=sum(m.streamed for m in moves),
        bound=solution.bound,
        is_exact=solution.is_exact,
        unkept=count_moved_bytes(schedule, keep_nothing(schedule)),
        unlimited=_bytes_without_limit(schedule),
    )


def _find_addressed_choice(
    schedule: AccessSchedule, room: int, first: ResidencySolution, limits: tuple[SearchBudget, int]
) -> AddressedChoice | None:
    """Return the best choice found that has addresses.

    If the optimal choice has no addresses, choices for less room are tried as well: they leave room to
    place buffers, and the rest of it is filled.
    """
    limit, nodes = limits
    best = _pick_best(
        None,
        [
            fit_addresses(schedule, room, choice, limit)
            for choice in _initial_choices(schedule, room, first)
        ],
    )
    if best is None or not first.is_exact:
        return best
    for part in _LESS:
        if best is None or count_moved_bytes(schedule, best.choice) <= first.bound or limit.is_spent:
            break
        solution = minimize_traffic(schedule, room - room // part, nodes)
        if solution.choice is not None:
            best = _pick_best(best, [fit_addresses(schedule, room, solution.choice, limit, fill=True)])
    return best


def _initial_choices(
    schedule: AccessSchedule, room: int, solution: ResidencySolution
) -> list[ResidencyChoice]:
    """Return the choices to begin with: the optimal one, or a greedy one if the solver was stopped."""
    if solution.choice is not None and solution.is_exact:
        return [solution.choice]
    found = [grow_choice(schedule, room, find_smallest_choice(schedule))]
    if solution.choice is not None:
        found.append(grow_choice(schedule, room, solution.choice))
    return [min(found, key=lambda choice: count_moved_bytes(schedule, choice))]


def _pick_best(
    best: AddressedChoice | None, others: Iterable[AddressedChoice | None]
) -> AddressedChoice | None:
    fits = [fit for fit in (best, *others) if fit is not None]
    return min(fits, key=lambda fit: count_moved_bytes(fit.schedule, fit.choice), default=None)


def _bytes_without_limit(schedule: AccessSchedule) -> int:
    """Return the bytes that move if everything fits."""
    staging = (turn.staging + sum(a.staging for a in turn.accesses) for turn in schedule.turns)
    return minimize_traffic(
        schedule, sum(schedule.sizes) + max(staging, default=0), _NODES_PER_SECOND
    ).bound


def _explain_too_small(schedule: AccessSchedule, size: int) -> str:
    used = count_occupied(schedule, find_smallest_choice(schedule))
    turn = int(used.argmax())
    name = schedule.turns[turn].name
    return f"scratchpad: {size} bytes are too few, {name} (step {turn}) needs {used[turn]}"


# Actions of a scratchpad plan in order, and the offsets of buffers in system memory.
#
# Each load is as early as its address is free, each store follows the write at once.


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
