"""The optimal placement and its proof, by mixed integer programs, begun from simple incumbents."""

from collections.abc import Iterable

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder, MilpSolution
from byoc.placement._form_regions import (
    are_fusions_acyclic,
    find_components,
    form_levelled_regions,
    form_regions,
)
from byoc.placement._hard_limits import find_broken_limit, repair_labels
from byoc.placement._placement_milp import (
    PlacementColumns,
    build_placement_milp,
    remove_isolated_units,
)
from byoc.placement._problem import UNLIMITED, Floats, Ints, Problem
from byoc.placement._strategy import CHEAPER_ON_HOST, NoPlacementError, Placement


def build_incumbent(problem: Problem, labels: Ints) -> Placement | None:
    """Return a placement of labels, repaired if they break a limit; None if that fails."""
    placement = Placement.from_labels(problem, labels, why_host=CHEAPER_ON_HOST)
    if not find_broken_limit(problem, labels, placement.regions):
        return placement
    repaired = repair_labels(problem, labels)
    placement = Placement.from_labels(problem, repaired, why_host=CHEAPER_ON_HOST)
    return None if find_broken_limit(problem, placement.labels, placement.regions) else placement


def select_best(placements: Iterable[Placement | None]) -> Placement | None:
    """Return the placement of least cost, the first of equals; None if there is none."""
    best: Placement | None = None
    for placement in placements:
        if placement is not None and (best is None or placement.cost.total < best.cost.total):
            best = placement
    return best


def find_incumbent(problem: Problem) -> Placement | None:
    """Return the best of host only, each accelerator where possible, and the fastest device per unit."""
    host = np.zeros(problem.units, np.int64)
    labels = [host]
    for d in range(1, 1 + problem.devices):
        labels.append(np.where(problem.allowed[:, d], d, host))
        labels.append(np.where(problem.costs[:, d] < problem.costs[:, 0], d, host))
    labels.append(problem.costs.argmin(axis=1).astype(np.int64))
    distinct: dict[bytes, Ints] = {}
    for each in labels:
        distinct.setdefault(each.tobytes(), each)
    return select_best(build_incumbent(problem, each) for each in distinct.values())


# Units times accelerators of a problem whose program is built in a few seconds.
_MAX_NEAREST = 20_000


def find_nearest_placement(problem: Problem, labels: Ints, budget: SearchBudget) -> Placement | None:
    """Return a placement that keeps all limits and moves the fewest units from where `labels` has them.
    `labels` is int64 (units,). Returns None if none is found within the budget, or the problem is too
    large to look for it. Raises NoPlacementError if there is none.
    """
    if problem.units * problem.devices > _MAX_NEAREST:
        return None
    moved = (labels[:, np.newaxis] != np.arange(1 + problem.devices)).astype(np.float64)
    barred = [np.where(np.isinf(costs), np.inf, 0.0) for costs in (problem.to_device, problem.to_host)]
    counting = replace(
        problem.plain,
        seconds=np.where(np.isinf(problem.seconds), np.inf, moved),
        to_device=barred[0],
        to_host=barred[1],
        launch=np.zeros(problem.devices),
        fusions=(),
    )
    found = solve_exactly(counting, find_incumbent(counting), budget, None)
    if found is None:
        return None
    return Placement.from_labels(problem, found.labels, regions=found.regions)


# A relative gap that the tolerances of the solver may hide; below it a placement is optimal.
OPTIMALITY_GAP = 1e-9
# Entries of the launch program's largest variable: beyond that it is too slow to be useful.
_MAX_MEMBERS = 1200

# Factors on launch costs that give fewer regions, and how often small regions are dissolved.
_LAUNCH_FACTORS = (1.0, 4.0, 16.0)
_MAX_TRIES = 6  # placements that are cut off for one factor of launches

_UNPROVEN = "launches and limits of regions are proven in part only: the bound leaves out the rest"
_STOPPED = "the search was stopped before the optimum was proven"
_SPENT = f"{_STOPPED}: the work of its time limit was done"


def solve_exactly(
    problem: Problem, known: Placement | None, budget: SearchBudget | None, nodes: int | None
) -> Placement | None:
    """Return the best placement found with its lower bound; None if none was found.
    `known` is a placement to start from. `budget` limits the whole search and `nodes` the
    branch-and-bound nodes of each program; None = no limit. Raises NoPlacementError if there is none.
    """
    try:
        problem = remove_isolated_units(problem)
    except ValueError:  # no region is possible for a unit that must be on an accelerator
        raise NoPlacementError from None
    search = _MilpSearch(problem, budget, nodes)
    best, solution = search.solve_by_levels(known)
    bound = solution.bound
    exact = _is_exact(problem)
    if _can_improve(best, solution) and (problem.min_nodes > 1).any():
        best = search.avoid_small_regions(best)
    if not exact and _can_improve(best, solution):
        launches = search.bound_launches(best)
        if problem.units * problem.devices * launches <= _MAX_MEMBERS:
            best, solution = search.solve_by_launches(best, launches)
            bound, exact = max(bound, solution.bound), True
    if best is None:
        if bound == np.inf:
            raise NoPlacementError
        return None
    notes: tuple[str, ...] = ()
    if not solution.solved:
        notes = (_SPENT if budget is not None and budget.is_spent else _STOPPED,)
    elif not exact and _can_improve(best, solution):
        notes = (_UNPROVEN,)
    return replace(best, bound=max(0.0, min(bound, best.cost.total)), notes=notes)


def _is_exact(problem: Problem) -> bool:
    """Return whether `build_placement_milp` states the problem exactly rather than a relaxation."""
    counts = (problem.launch > 0) | (problem.max_regions < UNLIMITED)
    sized = (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED)
    if not counts.any() and not sized.any() and not problem.fusions:
        return True
    return problem.devices == 1 and not problem.connected[0] and not sized[0]


def _can_improve(best: Placement | None, solution: MilpSolution) -> bool:
    """Return whether a better placement may exist, within tolerances."""
    if best is None:
        return solution.bound < np.inf
    return best.cost.total - solution.bound - solution.slack > OPTIMALITY_GAP * best.cost.total


def _total_cost(best: Placement | None) -> float:
    return np.inf if best is None else best.cost.total


@dataclass(frozen=True, eq=False)
class _MilpSearch:
    """A problem and what its search may take: a budget in all, and nodes for each program."""

    problem: Problem
    budget: SearchBudget | None
    nodes: int | None

    def solve_by_levels(self, best: Placement | None) -> tuple[Placement | None, MilpSolution]:
        """Return the better placement and the solution of the program over levels."""
        problem = self.problem
        program, columns, constant = build_placement_milp(problem, _count_placeable_units(problem))
        solution, chosen = self._solve_with_acyclic_fusions(
            program, columns.fused, constant, _total_cost(best)
        )
        if solution.values is None:
            return best, solution
        labels = _read_labels(solution.values[columns.placed])
        found = [build_incumbent(problem, labels), _keep_fusions_together(problem, labels, chosen)]
        return select_best([best, *found]), solution

    def avoid_small_regions(self, best: Placement | None) -> Placement | None:
        """Return the better placement after avoiding regions that are too small, in two ways.
        More expensive launches give fewer regions; and units that ended in a region that is too small
        are refused by their device, and the rest is placed again.
        """
        problem = self.problem
        best = select_best([best, find_incumbent(problem)])
        for factor in _LAUNCH_FACTORS:
            variant = replace(problem, launch=problem.launch * factor)
            labels = self._solve_labels(variant)
            for _ in range(_MAX_TRIES):
                if labels is None:
                    break
                best = select_best([best, build_incumbent(problem, labels)])
                movable = _units_of_small_regions(problem, labels)
                if not movable.size:
                    break
                seconds = variant.seconds.copy()
                seconds[movable, labels[movable]] = np.inf
                variant = replace(variant, seconds=seconds, fusions=())
                labels = self._solve_labels(variant)
        return best

    def _solve_labels(self, problem: Problem) -> Ints | None:
        program, columns, constant = build_placement_milp(problem, _count_placeable_units(problem))
        solution, _ = self._solve_with_acyclic_fusions(program, columns.fused, constant, np.inf)
        return None if solution.values is None else _read_labels(solution.values[columns.placed])

    def solve_by_launches(
        self, best: Placement | None, launches: int
    ) -> tuple[Placement | None, MilpSolution]:
        """Return the better placement and the solution of the program over a sequence of launches."""
        program, columns, constant = build_launch_milp(self.problem, launches)
        solution, chosen = self._solve_with_acyclic_fusions(
            program, columns.fused, constant, _total_cost(best)
        )
        if solution.values is None:
            return best, solution
        found = Placement.from_labels(
            self.problem,
            _read_labels(solution.values[columns.placed]),
            why_host=CHEAPER_ON_HOST,
            regions=columns.read_regions(solution.values),
            fusions=chosen,
        )
        if find_broken_limit(self.problem, found.labels, found.regions):
            return best, solution
        return select_best([best, found]), solution

    def bound_launches(self, best: Placement | None) -> int:
        """Return a number of launches that no better placement exceeds."""
        problem = self.problem
        most = _count_placeable_units(problem)
        most = min(most, int(np.minimum(problem.max_regions, UNLIMITED // (1 + problem.devices)).sum()))
        cheapest = float(problem.launch.min(initial=np.inf))
        if best is None or not cheapest > 0 or problem.fusions:
            return most
        program, _, constant = build_placement_milp(problem, most, count_launches=False)
        least = program.solve(constant, np.inf, self.budget, self.nodes).bound
        if not np.isfinite(least):
            return most
        return max(1, min(most, int((best.cost.total - least) / cheapest * (1 + OPTIMALITY_GAP)) + 1))

    def _solve_with_acyclic_fusions(
        self, program: MilpBuilder, fused: Ints, constant: float, most: float
    ) -> tuple[MilpSolution, tuple[int, ...]]:
        """Solve a program, and again while the chosen fusions form a cycle."""
        while True:
            solution = program.solve(constant, most, self.budget, self.nodes)
            if solution.values is None or not fused.size:
                return solution, ()
            values = solution.values[fused].reshape(len(fused), -1)
            chosen = np.flatnonzero(values.max(axis=1) > 0.5).tolist()
            if are_fusions_acyclic(self.problem, chosen):
                return solution, tuple(chosen)
            for cycle in _fusion_cycles(self.problem, chosen):
                program.add_row(len(cycle) - 1, fused[cycle].ravel(), 1)


def _keep_fusions_together(problem: Problem, labels: Ints, chosen: tuple[int, ...]) -> Placement | None:
    """Return the placement with each chosen fusion in one region, None if that is impossible."""
    if not chosen or problem.devices > 1 or problem.connected.any():
        return None
    regions = form_levelled_regions(problem, labels, [problem.fusions[i].members for i in chosen])
    if regions is None or find_broken_limit(problem, labels, regions):
        return None
    # A phase with too many nodes may have been divided.
    if any(np.ptp(regions[list(problem.fusions[number].members)]) for number in chosen):
        return None
    return Placement.from_labels(
        problem, labels, why_host=CHEAPER_ON_HOST, regions=regions, fusions=chosen
    )


def _units_of_small_regions(problem: Problem, labels: Ints) -> Ints:
    """Return the movable units in regions with too few nodes, int64."""
    regions = form_regions(problem, labels)
    placed = np.flatnonzero(labels > 0)
    nodes = np.bincount(regions[placed], problem.size[placed])
    small = nodes[regions[placed]] < problem.min_nodes[labels[placed] - 1]
    movable: Ints = placed[small & ~problem.must[placed]]
    return movable


def _read_labels(placed: Floats) -> Ints:
    """Return labels from float64 (units, devices), where more than 0.5 means 1."""
    if not placed.size:
        return np.zeros(len(placed), np.int64)
    where = placed > 0.5
    return np.where(where.any(axis=1), 1 + where.argmax(axis=1, keepdims=False), 0).astype(np.int64)


def _fusion_cycles(problem: Problem, chosen: list[int]) -> list[list[int]]:
    """Return groups of the chosen fusions that wait for one another."""
    node = np.arange(problem.units)
    for number in chosen:
        members = list(problem.fusions[number].members)
        node[members] = members[0]
    source, target = (node[side] for side in problem.edges)
    crossing = source != target
    _, component = find_components(problem.units, source[crossing], target[crossing], "strong")
    sizes = np.bincount(component)
    cycles: dict[int, list[int]] = {}
    for number in chosen:
        group = int(component[problem.fusions[number].members[0]])
        if sizes[group] > 1:
            cycles.setdefault(group, []).append(number)
    return list(cycles.values())


def _count_placeable_units(problem: Problem) -> int:
    """Count the units that an accelerator may take, at least 1: no placement has more regions."""
    return max(1, int(problem.allowed[:, 1:].any(axis=1).sum()))


# Placement as a mixed integer program over a sequence of launches: exact, for small graphs.


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
