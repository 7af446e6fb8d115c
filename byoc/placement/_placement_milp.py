"""Placement as a mixed integer program whose size is linear in the graph."""

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder
from byoc.placement._conditions import add_costs
from byoc.placement._problem import UNLIMITED, Bools, Floats, Ints, Problem

# The sets take the square of the number of units in bits.
_MAX_PRUNED = 5_000


def find_compatible_units(problem: Problem, open_to: Bools) -> list[int]:
    """Return for each unit the set of units it can share a region with, itself included, as bits.
    `open_to`, bool (units,), marks the units that the device accepts. Two units are incompatible if a
    path between them passes a unit that the device does not accept: the region would wait for itself.
    """
    units = problem.units
    # Successors of each unit: all, and those after a unit that the device does not accept.
    beyond, behind = [0] * units, [0] * units
    accepted = open_to.tolist()
    edges = list(zip(*(side.tolist() for side in problem.edges), strict=True))
    for u, v in reversed(edges):
        beyond[u] |= beyond[v] | 1 << v
        behind[u] |= behind[v] if accepted[v] else beyond[v]
    every = sum(1 << unit for unit in range(units) if accepted[unit])
    apart = [0] * units
    for unit in range(units):
        apart[unit] |= behind[unit]
        other = behind[unit] & every
        while accepted[unit] and other:
            lowest = other & -other
            apart[lowest.bit_length() - 1] |= 1 << unit
            other ^= lowest
    return [every & ~apart[unit] | 1 << unit if accepted[unit] else 0 for unit in range(units)]


def remove_isolated_units(problem: Problem) -> Problem:
    """Return the problem without units on devices where all their possible regions are too small.

    It is as it was if it has more than `_MAX_PRUNED` units, or a fusion would be lost with a unit.
    No placement that keeps the limits is lost. Raises ValueError if a unit that must be on an
    accelerator has no device left.
    """
    if problem.units > _MAX_PRUNED:
        return problem
    seconds = problem.seconds.copy()
    for d in np.flatnonzero(problem.min_nodes > 1):
        open_to = problem.allowed[:, 1 + d].copy()
        while True:
            least = int(problem.min_nodes[d])
            sets = find_compatible_units(problem, open_to)
            isolated = [
                unit
                for unit in np.flatnonzero(open_to).tolist()
                if not _has_nodes(sets[unit], problem.size, least)
            ]
            if not isolated:
                break
            open_to[isolated] = False
        seconds[~open_to, 1 + d] = np.inf
    fusions = tuple(
        fusion
        for fusion in problem.fusions
        if np.isfinite(seconds[list(fusion.members), fusion.device]).all()
    )
    if len(fusions) < len(problem.fusions):
        return problem  # their numbers would change
    return replace(problem, seconds=seconds)


def _has_nodes(members: int, size: Ints, least: int) -> bool:
    nodes = 0
    while members and nodes < least:
        lowest = members & -members
        nodes += int(size[lowest.bit_length() - 1])
        members ^= lowest
    return nodes >= least


# Rows on compatible units need memory for this number of units squared.
_MAX_PAIRED = 700


@dataclass(frozen=True, eq=False)
class PlacementColumns:
    """The column numbers of a placement program's variables."""

    placed: Ints
    """int64 (units, devices): 1 = the unit is on that accelerator."""
    level: Ints
    """int64 (units, devices): number of regions of the device up to the unit; -1 = not counted."""
    fused: Ints
    """int64 (fusions,): 1 = chosen."""


def build_placement_milp(
    problem: Problem, most_levels: int, count_launches: bool = True
) -> tuple[MilpBuilder, PlacementColumns, float]:
    """Return the program of a problem, its columns, and the constant part of its cost.
    Without `count_launches` it has neither launches nor limits on regions nor fusions.

    It is exact for one accelerator with phases of any size. Otherwise it is a relaxation: launches of
    each accelerator are counted as if all others were the host, and no set of regions, connected or not,
    has fewer. `most_levels` is a number of regions that a device never needs to exceed.

    Transfers have one column for each tensor, device and direction: `down[t, d] >= x[c, d] - x[p, d]`
    and `up[t, d] >= x[p, d] - x[c, d]` for every consumer `c`. Launches are levels that rise along
    edges: `r[v] >= r[u]`, `r[v] >= r[u] + x[v] - x[u]`, `R >= r[v] >= x[v]`. No big-M constants are
    needed, and the levels are continuous: rounded down they remain feasible.
    """
    program = MilpBuilder()
    extra = problem.seconds[:, 1:] - problem.seconds[:, :1]
    open_to = problem.allowed[:, 1:]
    placed = program.add_columns(np.where(open_to, extra, 0.0), open_to, True)
    constant = float(problem.seconds[:, 0].sum())
    if problem.devices > 1:
        program.add_rows(1, *((placed[:, d], 1) for d in range(problem.devices)))
    musts = np.flatnonzero(problem.must)
    if musts.size:
        program.add_rows(-1, *((placed[musts, d], -1) for d in range(problem.devices)))
    level = np.full(placed.shape, -1, np.int64)
    for d in range(problem.devices):
        transfers = _Transfers(program, problem, placed[:, d])
        transfers.add(open_to[:, d], problem.to_device[:, d], problem.to_host[:, d])
        if np.isfinite(problem.capacity[d]) and problem.memory[open_to[:, d], d].sum() > 0:
            program.add_row(problem.capacity[d], placed[:, d], problem.memory[:, d])
        if count_launches and _regions_matter(problem, d):
            level[:, d] = _add_levels(program, problem, placed[:, d], d, most_levels)
    fused = np.zeros(0, np.int64)
    if count_launches:
        fused = _add_fusions(program, problem, placed, level, most_levels)
    return program, PlacementColumns(placed, level, fused), constant


def _regions_matter(problem: Problem, d: int) -> bool:
    """Return whether the number of a device's regions affects cost or feasibility."""
    limited = problem.max_regions[d] < UNLIMITED or problem.max_nodes[d] < UNLIMITED
    fused = any(fusion.device == 1 + d for fusion in problem.fusions)
    return bool(problem.launch[d] > 0 or limited or problem.min_nodes[d] > 1 or fused)


@dataclass(frozen=True, eq=False)
class _Transfers:
    """Adds the transfers of one device to a program."""

    program: MilpBuilder
    problem: Problem
    placed: Ints
    """int64 (units,): the columns of the units on the device."""

    def add(self, open_to: Bools, to_device: Floats, to_host: Floats) -> None:
        """Add the costs of both directions; `open_to` marks the units that the device accepts."""
        problem = self.problem
        producer = problem.producer
        on_device = np.append(open_to, False)[producer]  # -1 is the host
        # The transfer of a graph output depends on its producer alone.
        direct = on_device & problem.is_output
        self._charge_units(self.placed[producer[direct]], to_host[direct])
        self._charge_tensors(on_device & ~direct, to_host, up=True)
        arriving = np.zeros(problem.tensors, np.bool_)
        arriving[problem.consumed[open_to[problem.consumers]]] = True
        self._charge_tensors(arriving, to_device, up=False)

    def _charge_units(self, columns: Ints, cost: Floats) -> None:
        """Charge units for being on the device, through columns that are at least theirs."""
        barred = np.isinf(cost)
        self.program.add_rows(0, (columns[barred], 1))
        extra = self.program.add_columns(cost[~barred], 1, False)
        self.program.add_rows(0, (columns[~barred], 1), (extra, -1))

    def _charge_tensors(self, which: Bools, cost: Floats, *, up: bool) -> None:
        """Charge tensors once for a direction if at least one consumer is on the other side."""
        problem = self.problem
        entry = which[problem.consumed] & (cost[problem.consumed] > 0)
        tensors, ends = problem.consumed[entry], problem.consumers[entry]
        makers = problem.producer[tensors]
        forbidden = np.isinf(cost[tensors])
        number = np.full(len(cost), -1, np.int64)
        paid = np.unique(tensors[~forbidden])
        number[paid] = self.program.add_columns(cost[paid], 1, False)
        sign = -1 if up else 1
        for made in (False, True):
            for finite in (False, True):
                here = ((makers >= 0) == made) & (forbidden != finite)
                terms: list[tuple[Ints, int]] = [(self.placed[ends[here]], sign)]
                if made:
                    terms.append((self.placed[makers[here]], -sign))
                if finite:
                    terms.append((number[tensors[here]], -1))
                self.program.add_rows(0, *terms)


def _add_levels(program: MilpBuilder, problem: Problem, placed: Ints, d: int, most_levels: int) -> Ints:
    source, target = problem.edges
    most = min(most_levels, int(problem.max_regions[d]))
    level = program.add_columns(np.zeros(problem.units), most, False)
    count = program.add_columns(problem.launch[d], most, False)
    # With a limit of size there may be more phases than levels, never fewer.
    if problem.min_nodes[d] > 1:
        _require_compatible(program, problem, placed, d)
        program.add_row(0, [*placed, count], [*(-problem.size).tolist(), int(problem.min_nodes[d])])
    if problem.max_nodes[d] < UNLIMITED:
        program.add_row(0, [*placed, count], [*problem.size.tolist(), -int(problem.max_nodes[d])])
    program.add_rows(0, (level[source], 1), (level[target], -1))
    # A unit that the device refuses never starts a region.
    starts = problem.allowed[target, 1 + d]
    source, target = source[starts], target[starts]
    program.add_rows(
        0, (level[source], 1), (placed[target], 1), (placed[source], -1), (level[target], -1)
    )
    program.add_rows(0, (placed, 1), (level, -1))
    program.add_rows(0, (level, 1), (np.repeat(count, len(level)), -1))
    return level


def _require_compatible(program: MilpBuilder, problem: Problem, placed: Ints, d: int) -> None:
    """Require enough compatible units on the device for each unit placed there."""
    if problem.units > _MAX_PAIRED:
        return
    least = int(problem.min_nodes[d])
    for unit, members in enumerate(find_compatible_units(problem, problem.allowed[:, 1 + d])):
        others = [other for other in range(problem.units) if members >> other & 1]
        if others:
            factors = -np.minimum(problem.size[others], least)
            program.add_row(0, [*placed[others], placed[unit]], [*factors.tolist(), least])


def _add_fusions(
    program: MilpBuilder, problem: Problem, placed: Ints, level: Ints, most_levels: int
) -> Ints:
    """Require a fusion's members to be on its device and on one level, and each in one fusion only."""
    saving = np.array([fusion.saving for fusion in problem.fusions], np.float64)
    fused = program.add_columns(-saving, 1, True)
    fusions_of: dict[int, list[int]] = {}
    for number, fusion in zip(fused.tolist(), problem.fusions, strict=True):
        d = fusion.device - 1
        members = np.array(fusion.members)
        program.add_rows(0, (np.full(len(members), number), 1), (placed[members, d], -1))
        first, others = np.repeat(level[members[0], d], len(members) - 1), level[members[1:], d]
        for one, two in ((first, others), (others, first)):
            program.add_rows(most_levels, (one, 1), (two, -1), (np.full(len(one), number), most_levels))
        for member in fusion.members:
            fusions_of.setdefault(member, []).append(number)
    for numbers in fusions_of.values():
        if len(numbers) > 1:
            program.add_row(1, numbers, 1)
    return fused


def solve_within(
    problem: Problem, other: Problem, most: float, budget: SearchBudget
) -> tuple[Ints | None, float]:
    """Return the best labels that cost at most `most` by the other costs, and a lower bound.

    Both problems have no conditions, and the same units, tensors, devices and fusions. The labels are
    None where none were found; the bound is infinite where there are none. The program is that of
    `build_placement_milp` with one more row: exact, or a relaxation, where that is.
    """
    # Columns stand for costs above 0, so that both programs have those of either cost.
    programs = []
    for factor in (1.0, 2.0):
        both = add_costs(problem, other, factor)
        programs.append(build_placement_milp(both, 1 + int(problem.allowed[:, 1:].any(axis=1).sum())))
    (program, columns, constant), (second, _, further) = programs
    summed, doubled = (np.concatenate([np.zeros(0), *each.cost]) for each in (program, second))
    spent = np.where(np.isfinite(summed), doubled - summed, 0.0)
    program.cost = [summed - spent]
    program.add_row(most - (further - constant), np.arange(program.columns), spent)
    solution = program.solve(constant - (further - constant), np.inf, budget)
    if solution.values is None:
        return None, solution.bound
    values = solution.values[columns.placed] > 0.5
    labels: Ints = np.where(values.any(axis=1), 1 + values.argmax(axis=1), 0).astype(np.int64)
    return labels, max(0.0, solution.bound)
