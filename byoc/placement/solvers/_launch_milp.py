"""Placement as a mixed integer program over a sequence of launches: exact, for small graphs."""

from dataclasses import dataclass

import numpy as np

from byoc.numerics.solvers import MilpBuilder
from byoc.placement._problem import UNLIMITED, Floats, Ints, Problem
from byoc.placement.solvers._placement_milp import PlacementColumns, build_placement_milp


@dataclass(frozen=True, eq=False)
class LaunchColumns:
    """The column numbers of a launch program's variables."""

    placed: Ints
    """int64 (units, devices): 1 = the unit is on that accelerator."""
    member: Ints
    """int64 (units, devices, launches): 1 = the unit is in the region of that launch."""
    fused: Ints
    """int64 (fusions, launches): 1 = chosen, in that region."""

    def read_regions(self, values: Floats) -> Ints:
        """Return the region of each unit in launch order, int64 (units,), -1 on the host."""
        member = values[self.member].max(axis=1, initial=0.0) > 0.5
        launch = np.where(member.any(axis=1), member.argmax(axis=1), -1)
        _, regions = np.unique(np.append(-1, launch), return_inverse=True)
        return regions[1:].astype(np.int64) - 1


def build_launch_milp(problem: Problem, launches: int) -> tuple[MilpBuilder, LaunchColumns, float]:
    """Return a program for at most `launches` launches, its columns, and the constant part of its cost.
    Launch `l` is one region of one device; a unit is in one of them, or on the host after some of them:
    `host 0, launch 1, host 1, launch 2, ...`. No unit comes before a unit whose result it needs. So the
    solutions are exactly the sets of regions whose contraction is acyclic. Connected regions carry a
    flow from one of their units to all others (Gavish and Graves, 1978).
    """
    program, columns, constant = build_placement_milp(problem, launches, count_launches=False)
    units, devices = problem.units, problem.devices
    open_to = np.repeat(problem.allowed[:, 1:, np.newaxis], launches, axis=2)
    member = program.add_columns(np.zeros(open_to.shape), open_to, True)
    host = program.add_columns(np.zeros((units, launches + 1)), 1, False)
    cost = np.repeat(problem.launch[:, np.newaxis], launches, axis=1)
    used = program.add_columns(cost, 1, True)
    _link_placed_to_members(program, columns, member, host)
    _order_by_edges(program, problem, member, host)
    # Each launch is of one device, and none is skipped.
    every = range(devices)
    program.add_rows(1, *((used[d], 1) for d in every))
    if launches > 1:
        later, sooner = ([(used[d, rows], sign) for d in every] for rows, sign in _CONSECUTIVE)
        program.add_rows(0, *later, *sooner)
    for d in every:
        for launch in range(launches):
            program.add_rows(0, (member[:, d, launch], 1), (np.full(units, used[d, launch]), -1))
        _add_region_limits(program, problem, member[:, d], used[d], d)
        if problem.connected[d]:
            _require_connected(program, problem, member[:, d], used[d])
    return (
        program,
        LaunchColumns(columns.placed, member, _add_fusions_of_launches(program, problem, member)),
        constant,
    )


_CONSECUTIVE = ((slice(1, None), 1), (slice(None, -1), -1))


def _link_placed_to_members(
    program: MilpBuilder, columns: PlacementColumns, member: Ints, host: Ints
) -> None:
    """Require a unit to be on a device exactly if it is in one of its regions, else on the host."""
    devices, launches = member.shape[1:]
    for d in range(devices):
        terms = [(member[:, d, launch], 1) for launch in range(launches)]
        program.add_rows(0, *terms, (columns.placed[:, d], -1))
        program.add_rows(0, *((c, -f) for c, f in terms), (columns.placed[:, d], 1))
    terms = [(host[:, launch], 1) for launch in range(launches + 1)]
    terms += [(columns.placed[:, d], 1) for d in range(devices)]
    program.add_rows(1, *terms)
    program.add_rows(-1, *((c, -f) for c, f in terms))


def _order_by_edges(program: MilpBuilder, problem: Problem, member: Ints, host: Ints) -> None:
    source, target = problem.edges
    devices, launches = member.shape[1:]
    before: list[tuple[Ints, int]] = []
    for step in range(2 * launches):
        launch = step // 2
        launched = [member[:, d, launch] for d in range(devices)]
        columns = launched if step % 2 else [host[:, launch]]
        before += [(column, 1) for column in columns]
        terms = [(column[target], 1) for column, _ in before]
        program.add_rows(0, *terms, *((column[source], -1) for column, _ in before))


def _add_region_limits(program: MilpBuilder, problem: Problem, member: Ints, used: Ints, d: int) -> None:
    for launch, region in enumerate(used.tolist()):
        units = [*member[:, launch].tolist(), region]
        if problem.max_nodes[d] < UNLIMITED:
            program.add_row(0, units, [*problem.size.tolist(), -int(problem.max_nodes[d])])
        least = max(1, int(problem.min_nodes[d]))
        program.add_row(0, units, [*(-problem.size).tolist(), least])
    if problem.max_regions[d] < UNLIMITED:
        program.add_row(float(problem.max_regions[d]), used, 1)


def _require_connected(program: MilpBuilder, problem: Problem, member: Ints, used: Ints) -> None:
    units = problem.units
    tail, head = (np.concatenate(pair) for pair in (problem.edges, problem.edges[::-1]))
    for launch, region in enumerate(used.tolist()):
        here = member[:, launch]
        root = program.add_columns(np.zeros(units), 1, True)
        program.add_rows(0, (root, 1), (here, -1))
        program.add_row(0, [*root, region], [*np.ones(units), -1])
        supply = program.add_columns(np.zeros(units), units, False)
        program.add_rows(0, (supply, 1), (root, -units))
        flow = program.add_columns(np.zeros(len(tail)), units, False)
        for end in (tail, head):
            program.add_rows(0, (flow, 1), (here[end], -units))
        for unit in range(units):
            columns = [here[unit], supply[unit], *flow[head == unit], *flow[tail == unit]]
            signs = [1, -1, *[-1] * int((head == unit).sum()), *[1] * int((tail == unit).sum())]
            program.add_row(0, columns, signs)


def _add_fusions_of_launches(program: MilpBuilder, problem: Problem, member: Ints) -> Ints:
    launches = member.shape[2]
    saving = np.array([fusion.saving for fusion in problem.fusions], np.float64)
    fused = program.add_columns(-np.repeat(saving[:, np.newaxis], launches, axis=1), 1, True)
    columns_of: dict[int, list[int]] = {}
    for columns, fusion in zip(fused, problem.fusions, strict=True):
        for unit in fusion.members:
            program.add_rows(0, (columns, 1), (member[unit, fusion.device - 1], -1))
            columns_of.setdefault(unit, []).extend(columns.tolist())
    for columns in columns_of.values():
        program.add_row(1, columns, 1)
    return fused
