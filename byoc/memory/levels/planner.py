"""Planning of a scratchpad beside system memory."""

from collections.abc import Iterable
from time import monotonic

from byoc.errors import InputError
from byoc.memory.levels.actions import actions, homes
from byoc.memory.levels.choice import Choice, grown, moved, nothing_kept, occupied, smallest, traffic
from byoc.memory.levels.fit import Fit, fitted
from byoc.memory.levels.levels import Levels
from byoc.memory.levels.places import residencies
from byoc.memory.levels.program import Solution, fewest_bytes
from byoc.memory.levels.schedule import Schedule

# The part of the time that is for what is to be kept; the rest is for places.
_OF_CHOICE = 0.6
# Parts of the scratchpad that are left out at first when what would fill it finds no places.
_LESS = (32, 12, 6)


def plan_levels(
    schedule: Schedule,
    size: int,
    *,
    prefetch: int = 1,
    counted: bool = True,
    seconds: float = 5.0,
) -> Levels:
    """Return the plan for a scratchpad of `size` bytes that moves the fewest bytes found.

    A buffer is loaded up to `prefetch` turns before it is needed, as early as its address is free. With
    `counted`, inputs and outputs are stored in the arena of system memory. Searches end after `seconds`,
    followed by quick heuristics; `Levels.bound` tells what is proven. Raises InputError, naming the
    turn, if a turn needs more than the scratchpad has.
    """
    room = size - size % schedule.alignment
    until = monotonic() + seconds
    solution = fewest_bytes(schedule, room, seconds * _OF_CHOICE)
    fit = _fitted(schedule, room, solution, until)
    if solution.is_impossible or fit is None:
        raise InputError(_too_small(schedule, size))
    choice = fit.choice
    stays, areas = residencies(schedule, room, choice, (fit.depths, fit.areas), prefetch)
    done = actions(schedule, choice, stays, areas)
    places, arena = homes(schedule, done, counted)
    moves = [traffic(schedule, buffer, each) for buffer, each in enumerate(choice)]
    sizes = schedule.sizes
    return Levels(
        schedule=schedule,
        size=size,
        actions=tuple(done),
        residencies=stays,
        homes=places,
        arena=arena,
        counted=counted,
        loaded=sum(size * len(m.loads) for size, m in zip(sizes, moves, strict=True)),
        stored=sum(size * len(m.stores) for size, m in zip(sizes, moves, strict=True)),
        streamed=sum(m.streamed for m in moves),
        bound=solution.bound,
        is_exact=solution.is_exact,
        unkept=moved(schedule, nothing_kept(schedule)),
        unlimited=_unlimited(schedule),
    )


def _fitted(schedule: Schedule, room: int, first: Solution, until: float) -> Fit | None:
    """Return the best choice found that has addresses.

    If the optimal choice has no addresses, choices for less room are tried as well: they leave room to
    place buffers, and the rest of it is filled.
    """
    best = _better(
        None, [fitted(schedule, room, choice, until) for choice in _choices(schedule, room, first)]
    )
    if best is None or not first.is_exact:
        return best
    for part in _LESS:
        left = until - monotonic()
        if best is None or moved(schedule, best.choice) <= first.bound or left <= 0:
            break
        solution = fewest_bytes(schedule, room - room // part, left)
        if solution.choice is not None:
            best = _better(best, [fitted(schedule, room, solution.choice, until, fill=True)])
    return best


def _choices(schedule: Schedule, room: int, solution: Solution) -> list[Choice]:
    """Return the choices to begin with: the optimal one, or a greedy one if the solver was stopped."""
    if solution.choice is not None and solution.is_exact:
        return [solution.choice]
    found = [grown(schedule, room, smallest(schedule))]
    if solution.choice is not None:
        found.append(grown(schedule, room, solution.choice))
    return [min(found, key=lambda choice: moved(schedule, choice))]


def _better(best: Fit | None, others: Iterable[Fit | None]) -> Fit | None:
    fits = [fit for fit in (best, *others) if fit is not None]
    return min(fits, key=lambda fit: moved(fit.schedule, fit.choice), default=None)


def _unlimited(schedule: Schedule) -> int:
    """Return the bytes that move if everything fits."""
    everything = sum(schedule.sizes) + max(
        (_most(schedule, n) for n in range(len(schedule.turns))), default=0
    )
    return fewest_bytes(schedule, everything, 1.0).bound


def _most(schedule: Schedule, turn: int) -> int:
    """Return the staging of a turn at most."""
    return schedule.turns[turn].staging + sum(a.staging for a in schedule.turns[turn].accesses)


def _too_small(schedule: Schedule, size: int) -> str:
    used = occupied(schedule, smallest(schedule))
    turn = int(used.argmax())
    name = schedule.turns[turn].name
    return f"scratchpad: {size} bytes are too few, {name} (step {turn}) needs {used[turn]}"
