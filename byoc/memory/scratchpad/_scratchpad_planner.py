"""Planning of a scratchpad beside system memory."""

from collections.abc import Iterable

from byoc.errors import InputError
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._address_fitting import AddressedChoice, fit_addresses
from byoc.memory.scratchpad._addresses import assign_addresses
from byoc.memory.scratchpad._residency_choice import (
    ResidencyChoice,
    count_moved_bytes,
    count_occupied,
    find_smallest_choice,
    find_traffic,
    grow_choice,
    keep_nothing,
)
from byoc.memory.scratchpad._residency_program import ResidencySolution, minimize_traffic
from byoc.memory.scratchpad._scratchpad_actions import assign_homes, build_actions
from byoc.memory.scratchpad._scratchpad_plan import ScratchpadPlan
from byoc.numerics import SearchBudget

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
