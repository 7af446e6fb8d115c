"""Optimal scratchpad residency as a 0-1 program, solved by HiGHS, with its lower bound.

Variables: r[e], the buffer is resident at an access; k[g], it is kept between two consecutive accesses;
w[e], a result written while resident is stored; s[p], a buffer overwrites one that dies. An access loads
if r[e] - k[e-1] = 1. One row for each turn says that buffers and staging fit together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

from byoc.memory.arena import Buffer
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._residency_choice import BufferResidency, ResidencyChoice
from byoc.numerics.solvers import MilpBuilder

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
