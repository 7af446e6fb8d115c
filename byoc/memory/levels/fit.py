"""A choice that fits by its addresses, too: where sums fit and blocks do not, the least is given up."""

from collections.abc import Iterator

from byoc.memory.levels.choice import Choice, Keep, bytes_of
from byoc.memory.levels.grow import grown
from byoc.memory.levels.places import placed
from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer

# How many ways to give something up are tried for their addresses, each time something has to give way.
_TRIES = 40


def fitted(schedule: Schedule, size: int, choice: Choice) -> Choice | None:
    """Return a choice whose residencies have addresses, `choice` itself where it has them.

    None where nothing is left to be given up, and a turn needs more than the scratchpad has.
    """
    fits = choice
    while (places := placed(schedule, size, fits)).residencies is None:
        ways = sorted(_ways(schedule, fits, *places.crowded), key=lambda way: way[0])
        if not ways:
            return None
        tried = ([*fits[:b], keep, *fits[b + 1 :]] for _, b, keep in ways[:_TRIES])
        good = (each for each in tried if placed(schedule, size, each).residencies is not None)
        _, buffer, keep = min(ways, key=lambda way: way[0] / schedule.sizes[way[1]])
        fits = next(good, [*fits[:buffer], keep, *fits[buffer + 1 :]])
    if fits is choice:
        return choice
    return grown(schedule, size, fits, lambda each: placed(schedule, size, each).residencies is not None)


def _ways(schedule: Schedule, choice: Choice, first: int, last: int) -> Iterator[tuple[int, Buffer, Keep]]:
    """Yield (bytes lost, buffer, keep) for all that can be given up between two turns."""
    for buffer, keep in enumerate(choice):
        events = schedule.events[buffer]
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
