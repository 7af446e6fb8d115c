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
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from byoc.memory.arena import Buffer
from byoc.memory.scratchpad._access_schedule import AccessSchedule
from byoc.memory.scratchpad._residency_choice import BufferResidency, ResidencyChoice
from byoc.numerics import redirect_stdout_to_stderr

# What the solver's tolerances may hide of a bound, in parts of the greatest common divisor of all costs.
_HIDDEN = 1e-4
_INFEASIBLE = 2


@dataclass(frozen=True)
class ResidencySolution:
    """The best choice, None if none was found, and a lower bound on the bytes moved."""

    choice: ResidencyChoice | None
    bound: int
    is_exact: bool
    is_impossible: bool = False


class _MilpBuilder:
    """A mixed integer program under construction: columns with costs, and rows with limits."""

    def __init__(self) -> None:
        self.costs: list[int] = []
        self.most: list[int] = []  # 0 where a column is 0 for sure
        self.least: list[int] = []
        self.entries: list[tuple[int, int, int]] = []
        self.limits: list[int] = []

    def add_column(self, cost: int, least: int = 0, most: int = 1) -> int:
        self.costs.append(cost)
        self.least.append(least)
        self.most.append(most)
        return len(self.costs) - 1

    def add_row(self, entries: Sequence[tuple[int, int]], limit: int) -> None:
        """Require that the sum of factor x column is at most `limit`."""
        self.entries += [(len(self.limits), column, factor) for column, factor in entries]
        self.limits.append(limit)


@dataclass(frozen=True)
class _BufferColumns:
    """The columns of a buffer: r for each access, k for each pair of consecutive ones."""

    resident: list[int]
    kept: list[int]


def minimize_traffic(schedule: AccessSchedule, size: int, seconds: float) -> ResidencySolution:
    """Return the choice that moves the fewest bytes with a scratchpad of `size` bytes, and the bound.

    Stops after `seconds` with the best choice found. The bound holds for every choice, whatever the
    addresses: it is the solver's dual bound, rounded up to a possible number of bytes.
    """
    rows = _MilpBuilder()
    constant = sum(e.streamed for events in schedule.events for e in events)
    columns = [_add_buffer(schedule, buffer, size, rows) for buffer in range(len(schedule.sizes))]
    shares = _add_overwrites(schedule, columns, rows)
    _add_capacity(schedule, size, columns, shares, rows)
    if not rows.costs:
        return ResidencySolution([BufferResidency((), ())] * len(columns), constant, True)
    unit = reduce(gcd, rows.costs, constant) or 1
    with redirect_stdout_to_stderr():
        found = milp(
            np.array(rows.costs, dtype=float) / unit,
            integrality=np.ones(len(rows.costs), dtype=np.int64),
            bounds=Bounds(np.array(rows.least, dtype=float), np.array(rows.most, dtype=float)),
            constraints=_build_constraints(rows),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
    if found.status == _INFEASIBLE:
        return ResidencySolution(None, 0, True, is_impossible=True)
    least = found.mip_dual_bound
    bound = 0 if least is None or not np.isfinite(least) else unit * ceil(least - _HIDDEN) + constant
    if found.x is None:
        return ResidencySolution(None, max(bound, 0), False)
    values = found.x > 0.5
    choice = [
        BufferResidency(
            tuple(bool(values[c]) for c in each.resident), tuple(bool(values[c]) for c in each.kept)
        )
        for each in columns
    ]
    return ResidencySolution(choice, max(bound, 0), found.status == 0)


def _add_buffer(
    schedule: AccessSchedule, buffer: Buffer, size: int, rows: _MilpBuilder
) -> _BufferColumns:
    """Add the columns of a buffer and the rows between them."""
    events, bytes_ = schedule.events[buffer], schedule.sizes[buffer]
    most = int(bytes_ <= size)
    resident = []
    for number, event in enumerate(events):
        load = bytes_ if schedule.has_content(buffer, number) else 0
        resident.append(rows.add_column(load - event.streamed, int(event.access.pinned), most))
    kept = [rows.add_column(-bytes_, 0, most) for _ in events[1:]]
    for gap, column in enumerate(kept):
        rows.add_row([(column, 1), (resident[gap], -1)], 0)
        rows.add_row([(column, 1), (resident[gap + 1], -1)], 0)
    written = None
    for number, event in enumerate(events):
        if written is not None:
            store, writer = written  # asked for in system memory when it was not kept up to here
            rows.add_row([(resident[writer], 1), (kept[number - 1], -1), (store, -1)], 0)
        if event.access.writes:
            written = rows.add_column(bytes_), number
    if written is not None and buffer in schedule.outputs:
        rows.add_row([(resident[written[1]], 1), (written[0], -1)], 0)
    return _BufferColumns(resident, kept)


def _add_overwrites(
    schedule: AccessSchedule, columns: Sequence[_BufferColumns], rows: _MilpBuilder
) -> list[tuple[int, Buffer, int]]:
    """Add a column for each pair of buffers that can overwrite; return (turn, buffer, column)."""
    shares, same = [], dict[tuple[str, Buffer], list[int]]()
    for turn, written, read in schedule.overwrites:
        share = rows.add_column(0)
        rows.add_row([(share, 1), (columns[written].resident[0], -1)], 0)
        rows.add_row([(share, 1), (columns[read].resident[-1], -1)], 0)
        same.setdefault(("written", written), []).append(share)
        same.setdefault(("read", read), []).append(share)
        shares.append((turn, written, share))
    for group in same.values():
        if len(group) > 1:
            rows.add_row([(share, 1) for share in group], 1)
    return shares


def _add_capacity(
    schedule: AccessSchedule,
    size: int,
    columns: Sequence[_BufferColumns],
    shares: Sequence[tuple[int, Buffer, int]],
    rows: _MilpBuilder,
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
    for need, known in zip(needs, fixed, strict=True):
        most = sum(factor * rows.most[column] for column, factor in need if factor > 0)
        if known + most <= size:
            continue
        unit = reduce(gcd, (factor for _, factor in need), 0) or 1
        rows.add_row([(c, factor // unit) for c, factor in need if factor], (size - known) // unit)


def _build_constraints(rows: _MilpBuilder) -> list[LinearConstraint]:
    if not rows.limits:
        return []
    row, column, factor = np.array(rows.entries or [(0, 0, 0)], dtype=np.int64).T
    shape = (len(rows.limits), len(rows.costs))
    matrix = coo_array((factor.astype(float), (row, column)), shape=shape).tocsc()
    return [LinearConstraint(matrix, -np.inf, np.array(rows.limits, dtype=float))]
