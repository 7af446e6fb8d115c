"""Placement as a mixed integer program that grows with the graph: what any size is solved with."""

from dataclasses import dataclass

import numpy as np

from byoc.placement.company import company
from byoc.placement.problem import UNLIMITED, Bools, Floats, Ints, Problem
from byoc.placement.rows import Program

# Units times units: what rows on the company of each take.
_MOST_ACCOMPANIED = 700


@dataclass(frozen=True, eq=False)
class Columns:
    """Which columns hold what."""

    placed: Ints
    """int64 (units, devices): 1 = the unit is on that accelerator."""
    level: Ints
    """int64 (units, devices): regions of the device up to the unit; -1 = not counted."""
    fused: Ints
    """int64 (fusions,): 1 = chosen."""


def placement_program(
    problem: Problem, most_levels: int, count_launches: bool = True
) -> tuple[Program, Columns, float]:
    """Return a program, its columns, and the constant to add to its cost.

    Without `count_launches` it has neither launches nor limits of regions nor fusions.

    With one accelerator, phases, and regions of any size it states the problem exactly; else it
    relaxes it: launches are counted for each accelerator as if all others were the host, which no
    regions fall below, connected or not. `most_levels` is a number of regions that a device never
    needs to pass.

    Transfers are one column for each tensor, device and direction: `down[t, d] >= x[c, d] - x[p, d]`
    and `up[t, d] >= x[p, d] - x[c, d]` for every consumer `c`. Launches are levels that rise along
    edges: `r[v] >= r[u]`, `r[v] >= r[u] + x[v] - x[u]`, `R >= r[v] >= x[v]`. No constant is large,
    and the levels are continuous: rounded down they still hold.
    """
    program = Program()
    extra = problem.seconds[:, 1:] - problem.seconds[:, :1]
    open_to = problem.allowed[:, 1:]
    placed = program.add(np.where(open_to, extra, 0.0), open_to, True)
    constant = float(problem.seconds[:, 0].sum())
    if problem.devices > 1:
        program.at_most(1, *((placed[:, d], 1) for d in range(problem.devices)))
    musts = np.flatnonzero(problem.must)
    if musts.size:
        program.at_most(-1, *((placed[musts, d], -1) for d in range(problem.devices)))
    level = np.full(placed.shape, -1, np.int64)
    for d in range(problem.devices):
        transfers = _Transfers(program, problem, placed[:, d])
        transfers.add(open_to[:, d], problem.to_device[:, d], problem.to_host[:, d])
        if np.isfinite(problem.capacity[d]) and problem.memory[open_to[:, d], d].sum() > 0:
            program.sum_at_most(problem.capacity[d], placed[:, d], problem.memory[:, d])
        if count_launches and _counts(problem, d):
            level[:, d] = _levels(program, problem, placed[:, d], d, most_levels)
    fused = np.zeros(0, np.int64)
    if count_launches:
        fused = _fusions(program, problem, placed, level, most_levels)
    return program, Columns(placed, level, fused), constant


def _counts(problem: Problem, d: int) -> bool:
    """Tell whether it matters how many regions a device has."""
    limited = problem.max_regions[d] < UNLIMITED or problem.max_nodes[d] < UNLIMITED
    fused = any(fusion.device == 1 + d for fusion in problem.fusions)
    return bool(problem.launch[d] > 0 or limited or problem.min_nodes[d] > 1 or fused)


@dataclass(frozen=True, eq=False)
class _Transfers:
    """What adds the transfers of one device to a program."""

    program: Program
    problem: Problem
    placed: Ints
    """int64 (units,): the columns of the units on the device."""

    def add(self, open_to: Bools, to_device: Floats, to_host: Floats) -> None:
        """Charge both directions; the device takes units `open_to`."""
        problem = self.problem
        maker = problem.producer
        makers = (maker >= 0) & open_to[maker]
        # What the host wants anyway is on the unit that makes it.
        direct = makers & problem.is_output
        self._on_units(self.placed[maker[direct]], to_host[direct])
        self._once(makers & ~direct, to_host, up=True)
        arriving = np.zeros(problem.tensors, np.bool_)
        arriving[problem.consumed[open_to[problem.consumers]]] = True
        self._once(arriving, to_device, up=False)

    def _on_units(self, columns: Ints, cost: Floats) -> None:
        """Charge units for being there, by way of columns that equal theirs or more."""
        barred = np.isinf(cost)
        self.program.at_most(0, (columns[barred], 1))
        extra = self.program.add(cost[~barred], 1, False)
        self.program.at_most(0, (columns[~barred], 1), (extra, -1))

    def _once(self, which: Bools, cost: Floats, *, up: bool) -> None:
        """Charge tensors once for a direction, as soon as one consumer is on the other side."""
        problem = self.problem
        entry = which[problem.consumed] & (cost[problem.consumed] > 0)
        tensors, ends = problem.consumed[entry], problem.consumers[entry]
        makers = problem.producer[tensors]
        dear = np.isinf(cost[tensors])
        number = np.full(len(cost), -1, np.int64)
        paid = np.unique(tensors[~dear])
        number[paid] = self.program.add(cost[paid], 1, False)
        sign = -1 if up else 1
        for made in (False, True):
            for finite in (False, True):
                here = ((makers >= 0) == made) & (dear != finite)
                terms: list[tuple[Ints, int]] = [(self.placed[ends[here]], sign)]
                if made:
                    terms.append((self.placed[makers[here]], -sign))
                if finite:
                    terms.append((number[tensors[here]], -1))
                self.program.at_most(0, *terms)


def _levels(program: Program, problem: Problem, placed: Ints, d: int, most_levels: int) -> Ints:
    source, target = problem.edges
    most = min(most_levels, int(problem.max_regions[d]))
    level = program.add(np.zeros(problem.units), most, False)
    count = program.add(problem.launch[d], most, False)
    # Phases can be more than levels where they are limited in size, never fewer.
    if problem.min_nodes[d] > 1:
        _accompanied(program, problem, placed, d)
        program.sum_at_most(0, [*placed, count], [*(-problem.size).tolist(), int(problem.min_nodes[d])])
    if problem.max_nodes[d] < UNLIMITED:
        program.sum_at_most(0, [*placed, count], [*problem.size.tolist(), -int(problem.max_nodes[d])])
    program.at_most(0, (level[source], 1), (level[target], -1))
    # A unit that the device refuses never begins a region.
    begins = problem.allowed[target, 1 + d]
    source, target = source[begins], target[begins]
    program.at_most(
        0, (level[source], 1), (placed[target], 1), (placed[source], -1), (level[target], -1)
    )
    program.at_most(0, (placed, 1), (level, -1))
    program.at_most(0, (level, 1), (np.repeat(count, len(level)), -1))
    return level


def _accompanied(program: Program, problem: Problem, placed: Ints, d: int) -> None:
    """Say that a placed unit has enough others with it that can be in its region."""
    if problem.units > _MOST_ACCOMPANIED:
        return
    least = int(problem.min_nodes[d])
    for unit, members in enumerate(company(problem, problem.allowed[:, 1 + d])):
        others = [other for other in range(problem.units) if members >> other & 1]
        if others:
            factors = -np.minimum(problem.size[others], least)
            program.sum_at_most(0, [*placed[others], placed[unit]], [*factors.tolist(), least])


def _fusions(program: Program, problem: Problem, placed: Ints, level: Ints, most_levels: int) -> Ints:
    """A fusion needs its members on the device and on one level; a unit is in one fusion at most."""
    saving = np.array([fusion.saving for fusion in problem.fusions], np.float64)
    fused = program.add(-saving, 1, True)
    taken: dict[int, list[int]] = {}
    for number, fusion in zip(fused.tolist(), problem.fusions, strict=True):
        d = fusion.device - 1
        members = np.array(fusion.members)
        program.at_most(0, (np.full(len(members), number), 1), (placed[members, d], -1))
        first, others = np.repeat(level[members[0], d], len(members) - 1), level[members[1:], d]
        for one, two in ((first, others), (others, first)):
            program.at_most(most_levels, (one, 1), (two, -1), (np.full(len(one), number), most_levels))
        for member in fusion.members:
            taken.setdefault(member, []).append(number)
    for numbers in taken.values():
        if len(numbers) > 1:
            program.sum_at_most(1, numbers, 1)
    return fused
