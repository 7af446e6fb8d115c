"""A scratchpad and a system memory: what is where, and what moves when."""

from byoc.errors import InputError
from byoc.memory.levels.actions import actions
from byoc.memory.levels.choice import Choice, Keep, moved, nothing_kept, occupied, traffic
from byoc.memory.levels.fit import fitted
from byoc.memory.levels.grow import grown, smallest
from byoc.memory.levels.homes import homes
from byoc.memory.levels.levels import Levels
from byoc.memory.levels.places import residencies
from byoc.memory.levels.program import Solution, fewest_bytes
from byoc.memory.levels.schedule import Schedule


def plan_levels(
    schedule: Schedule,
    size: int,
    *,
    prefetch: int = 1,
    counted: bool = True,
    seconds: float = 5.0,
    keep: bool = True,
) -> Levels:
    """Return the plan of a schedule for a scratchpad of `size` bytes that moves the fewest bytes found.

    A buffer is loaded up to `prefetch` turns before it is needed, as early as its place is free. With
    `counted`, inputs and outputs have a place in the arena of system memory. The search for what to keep
    stops after so many `seconds`; `Levels.bound` says then what is proven. Without `keep`, nothing
    stays in the scratchpad from one turn to the next. Raises InputError, which names the turn, where
    a turn needs more than the scratchpad has.
    """
    room = size - size % schedule.alignment
    solution = fewest_bytes(schedule, room, seconds)
    choice = _chosen(schedule, room, solution) if keep else smallest(schedule)
    fit = fitted(schedule, room, choice) if not solution.is_impossible else None
    if fit is None:
        raise InputError(_too_small(schedule, size))
    choice = fit.choice
    stays = residencies(schedule, room, choice, fit.depths, prefetch)
    done = actions(schedule, choice, stays)
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


def _chosen(schedule: Schedule, room: int, solution: Solution) -> Choice:
    """Return the best choice known: the program's, and where it did not end, the one that grows."""
    if solution.choice is not None and solution.is_exact:
        return solution.choice
    start = smallest(schedule)
    choices: list[list[Keep]] = [grown(schedule, room, start)]
    if solution.choice is not None:
        choices.append(grown(schedule, room, solution.choice))
    return min(choices, key=lambda choice: moved(schedule, choice))


def _unlimited(schedule: Schedule) -> int:
    """Return the bytes that move when everything fits."""
    everything = sum(schedule.sizes) + max((_most(schedule, n) for n in range(len(schedule.turns))), default=0)
    return fewest_bytes(schedule, everything, 1.0).bound


def _most(schedule: Schedule, turn: int) -> int:
    return schedule.turns[turn].staging + sum(a.staging for a in schedule.turns[turn].accesses)


def _too_small(schedule: Schedule, size: int) -> str:
    used = occupied(schedule, smallest(schedule))
    turn = int(used.argmax())
    name = schedule.turns[turn].name
    return f"scratchpad: {size} bytes are too few, {name} (step {turn}) needs {used[turn]}"
