"""Where buffers lie in system memory, those that ever go there: from first write to last read."""

from collections.abc import Sequence

from byoc.memory.levels.levels import Action, Run
from byoc.memory.levels.pack import Block, lowest
from byoc.memory.levels.schedule import Schedule
from byoc.memory.problem import Buffer

_Life = tuple[int, int]


def homes(
    schedule: Schedule, actions: Sequence[Action], counted: bool
) -> tuple[tuple[int | None, ...], int]:
    """Return for each buffer its offset in system memory, None where it has none, and the bytes in all.

    With `counted`, inputs have a place from the beginning until they are last read, and outputs one
    from when they are written to the end; otherwise these are the caller's and have none here. A buffer
    that is streamed takes over the place of one of the same turn, where that one is streamed, too, and
    its last reader says so.
    """
    lives = _lives(schedule, actions)
    if not counted:
        for buffer in schedule.inputs | schedule.outputs:
            lives.pop(buffer, None)
    rows = _rows(schedule, actions, lives)
    blocks = [Block(lives[row[0]][0], lives[row[-1]][1], schedule.sizes[row[0]]) for row in rows]
    offsets = lowest(blocks, len(actions) + 2)
    found: list[int | None] = [None] * len(schedule.sizes)
    for row, offset in zip(rows, offsets, strict=True):
        for buffer in row:
            found[buffer] = offset
    return tuple(found), max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0)


def _lives(schedule: Schedule, actions: Sequence[Action]) -> dict[Buffer, _Life]:
    """For each buffer with a home its life there, counted in actions, the first of which is number 1."""
    lives: dict[Buffer, _Life] = dict.fromkeys(schedule.inputs, (0, 0))
    for time, action in enumerate(actions, 1):
        for buffer in _touched(schedule, action):
            lives[buffer] = lives.get(buffer, (time, time))[0], time
    for buffer in schedule.outputs & lives.keys():
        lives[buffer] = lives[buffer][0], len(actions) + 1
    return lives


def _touched(schedule: Schedule, action: Action) -> list[Buffer]:
    """The buffers whose home an action reads or writes."""
    if isinstance(action, Run):
        accesses = schedule.turns[action.turn].accesses
        return [a.buffer for a, place in zip(accesses, action.places, strict=True) if place is None]
    return [action.buffer]


def _rows(
    schedule: Schedule, actions: Sequence[Action], lives: dict[Buffer, _Life]
) -> list[list[Buffer]]:
    """Buffers with a home, each behind the one whose place it takes over."""
    times = {a.turn: time for time, a in enumerate(actions, 1) if isinstance(a, Run)}
    behind: dict[Buffer, Buffer] = {}
    for turn, written, read in schedule.takeovers:
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
