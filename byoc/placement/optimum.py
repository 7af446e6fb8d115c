"""The best placement and its proof, by programs that HiGHS solves."""

import time
from dataclasses import dataclass, replace

import numpy as np

from byoc.placement.company import without_lonely
from byoc.placement.formulation import placement_program
from byoc.placement.fusions import fusions_are_acyclic
from byoc.placement.incumbents import incumbents, of_labels, the_better
from byoc.placement.limits import breach
from byoc.placement.problem import UNLIMITED, Floats, Ints, Problem
from byoc.placement.regions import connected_parts, form_regions, levelled_regions
from byoc.placement.rows import Program, Solution
from byoc.placement.sequence import sequence_program
from byoc.placement.strategy import CHEAPER_ON_HOST, Placement

# A gap below which nothing is left to gain: what the programs' tolerances may hide.
PROVEN = 1e-9
# Entries of the sequence program's widest variable: beyond that it is too slow to be of use.
_MOST_MEMBERS = 1200

# By how much launches are made dearer to have fewer regions, and how often small ones are taken away.
_DEARER = (1.0, 4.0, 16.0)
_MOST_TRIES = 6

_UNPROVEN = "launches and limits of regions are proven in part only: the bound leaves out the rest"
_STOPPED = "the search was stopped before the optimum was proven"


def optimum(
    problem: Problem, known: Placement | None, seconds: float | None, nodes: int | None
) -> Placement | None:
    """Return the best placement found, with its bound; None where there is none, or none was found.

    `known` is a placement to begin with. Stops after so many seconds, and each program after so
    many nodes of its search; None = no limit.
    """
    try:
        problem = without_lonely(problem)
    except ValueError:  # a unit that must be on an accelerator can be in no region
        return None
    search = _Search(problem, seconds, nodes, time.monotonic())
    best, solution = search.by_levels(known)
    bound = solution.bound
    exact = _levels_are_exact(problem)
    if _open(best, solution) and (problem.min_nodes > 1).any():
        best = search.with_larger_regions(best)
    if not exact and _open(best, solution):
        launches = search.most_launches(best)
        if problem.units * problem.devices * launches <= _MOST_MEMBERS:
            best, solution = search.by_sequence(best, launches)
            bound, exact = max(bound, solution.bound), True
    if best is None:
        return None
    notes: tuple[str, ...] = ()
    if not solution.solved:
        notes = (_STOPPED,)
    elif not exact and _open(best, solution):
        notes = (_UNPROVEN,)
    return replace(best, bound=max(0.0, min(bound, best.cost.total)), notes=notes)


def _levels_are_exact(problem: Problem) -> bool:
    """Tell whether `placement_program` states the problem as it is, and does not relax it."""
    counts = (problem.launch > 0) | (problem.max_regions < UNLIMITED)
    sized = (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED)
    if not counts.any() and not sized.any() and not problem.fusions:
        return True
    return problem.devices == 1 and not problem.connected[0] and not sized[0]


def _open(best: Placement | None, solution: Solution) -> bool:
    """Tell whether something better than a placement may be there, tolerances aside."""
    if best is None:
        return solution.bound < np.inf
    return best.cost.total - solution.bound - solution.slack > PROVEN * best.cost.total


def _total(best: Placement | None) -> float:
    return np.inf if best is None else best.cost.total


@dataclass(frozen=True, eq=False)
class _Search:
    """A problem, and what may be spent on it: seconds in all, nodes in each program's search."""

    problem: Problem
    seconds: float | None
    nodes: int | None
    begun: float

    def by_levels(self, best: Placement | None) -> tuple[Placement | None, Solution]:
        """Return the better placement, and how the program was solved."""
        problem = self.problem
        program, columns, constant = placement_program(problem, _most_levels(problem))
        solution, chosen = self._solved(program, columns.fused, constant, _total(best))
        if solution.values is None:
            return best, solution
        labels = _labels(solution.values[columns.placed])
        found = [of_labels(problem, labels), _levelled(problem, labels, chosen)]
        return the_better([best, *found]), solution

    def with_larger_regions(self, best: Placement | None) -> Placement | None:
        """Return the better placement, once too small regions have been avoided in two ways.

        Launches are made dearer, so that there are fewer; and units that ended in too small a
        region are kept off their device, and the rest is placed anew.
        """
        problem = self.problem
        best = the_better([best, incumbents(problem)])
        for factor in _DEARER:
            dearer = replace(problem, launch=problem.launch * factor)
            labels = self._labels_of(dearer)
            for _ in range(_MOST_TRIES):
                if labels is None:
                    break
                best = the_better([best, of_labels(problem, labels)])
                stray = _in_small_regions(problem, labels)
                if not stray.size:
                    break
                seconds = dearer.seconds.copy()
                seconds[stray, labels[stray]] = np.inf
                dearer = replace(dearer, seconds=seconds, fusions=())
                labels = self._labels_of(dearer)
        return best

    def _labels_of(self, problem: Problem) -> Ints | None:
        program, columns, constant = placement_program(problem, _most_levels(problem))
        solution, _ = self._solved(program, columns.fused, constant, np.inf)
        return None if solution.values is None else _labels(solution.values[columns.placed])

    def by_sequence(self, best: Placement | None, launches: int) -> tuple[Placement | None, Solution]:
        """Return the same, by so many launches in turn."""
        program, columns, constant = sequence_program(self.problem, launches)
        solution, chosen = self._solved(program, columns.fused, constant, _total(best))
        if solution.values is None:
            return best, solution
        found = Placement.of(
            self.problem,
            _labels(solution.values[columns.placed]),
            why_host=CHEAPER_ON_HOST,
            regions=columns.regions(solution.values),
            fusions=chosen,
        )
        if breach(self.problem, found.labels, found.regions):
            return best, solution
        return the_better([best, found]), solution

    def most_launches(self, best: Placement | None) -> int:
        """Return a number of launches that no better placement passes."""
        problem = self.problem
        most = _most_levels(problem)
        most = min(most, int(np.minimum(problem.max_regions, UNLIMITED // (1 + problem.devices)).sum()))
        cheapest = float(problem.launch.min(initial=np.inf))
        if best is None or not cheapest > 0 or problem.fusions:
            return most
        program, _, constant = placement_program(problem, most, count_launches=False)
        least = program.solve(constant, np.inf, self._left(), self.nodes).bound
        if not np.isfinite(least):
            return most
        return max(1, min(most, int((best.cost.total - least) / cheapest * (1 + PROVEN)) + 1))

    def _left(self) -> float | None:
        """Return the seconds left, None where there is no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - time.monotonic() + self.begun)

    def _solved(
        self, program: Program, fused: Ints, constant: float, most: float
    ) -> tuple[Solution, tuple[int, ...]]:
        """Solve, and again for as long as chosen fusions would wait for one another in a circle."""
        while True:
            solution = program.solve(constant, most, self._left(), self.nodes)
            if solution.values is None or not fused.size:
                return solution, ()
            values = solution.values[fused].reshape(len(fused), -1)
            chosen = np.flatnonzero(values.max(axis=1) > 0.5).tolist()
            if fusions_are_acyclic(self.problem, chosen):
                return solution, tuple(chosen)
            for circle in _circles(self.problem, chosen):
                program.sum_at_most(len(circle) - 1, fused[circle].ravel(), 1)


def _levelled(problem: Problem, labels: Ints, chosen: tuple[int, ...]) -> Placement | None:
    """Return the placement that puts chosen fusions into one region each, None if that cannot be."""
    if not chosen or problem.devices > 1 or problem.connected.any():
        return None
    regions = levelled_regions(problem, labels, [problem.fusions[i].members for i in chosen])
    if regions is None or breach(problem, labels, regions):
        return None
    # A phase of too many nodes has been dealt out.
    if any(np.ptp(regions[list(problem.fusions[number].members)]) for number in chosen):
        return None
    return Placement.of(problem, labels, why_host=CHEAPER_ON_HOST, regions=regions, fusions=chosen)


def _in_small_regions(problem: Problem, labels: Ints) -> Ints:
    """Return the units of regions with too few nodes that need not be on an accelerator."""
    regions = form_regions(problem, labels)
    placed = np.flatnonzero(labels > 0)
    nodes = np.bincount(regions[placed], problem.size[placed])
    small = nodes[regions[placed]] < problem.min_nodes[labels[placed] - 1]
    stray: Ints = placed[small & ~problem.must[placed]]
    return stray


def _labels(placed: Floats) -> Ints:
    """Return labels from float64 (units, devices), where more than a half stands for 1."""
    if not placed.size:
        return np.zeros(len(placed), np.int64)
    where = placed > 0.5
    return np.where(where.any(axis=1), 1 + where.argmax(axis=1, keepdims=False), 0).astype(np.int64)


def _circles(problem: Problem, chosen: list[int]) -> list[list[int]]:
    """Return sets of the chosen fusions that wait for one another."""
    node = np.arange(problem.units)
    for number in chosen:
        members = list(problem.fusions[number].members)
        node[members] = members[0]
    source, target = (node[side] for side in problem.edges)
    crossing = source != target
    _, component = connected_parts(problem.units, source[crossing], target[crossing], "strong")
    sizes = np.bincount(component)
    circles: dict[int, list[int]] = {}
    for number in chosen:
        place = int(component[problem.fusions[number].members[0]])
        if sizes[place] > 1:
            circles.setdefault(place, []).append(number)
    return list(circles.values())


def _most_levels(problem: Problem) -> int:
    """Return a number of regions that no device needs to pass: a path enters it once every two units."""
    return max(1, int(problem.allowed[:, 1:].any(axis=1).sum()))
