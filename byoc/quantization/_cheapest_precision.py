"""The cheapest choice of units' precisions within limits of noise: an integer program for each limit."""

from dataclasses import dataclass, field, replace

from byoc.numerics import SearchBudget
from byoc.quantization._precision_problem import Floats, Ints, PrecisionProblem
from byoc.quantization._precision_program import build_precision_program

# Seconds of an ordinary computer, counted by steps, for one limit and for all (see `SearchBudget`).
# Before the first node of branch and bound the count is about ten times the seconds that pass.
_SECONDS, _ALL_SECONDS = 500.0, 5000.0
_NODES = 1000  # of branch and bound, for one limit
_GAP = 0.01  # share of the cost that a choice may be above the least: to prove the last of it takes long
_TOLERANCE = 1e-5  # share by which the solver's tolerances may exceed what is allowed


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A choice of the level of each unit, its predicted cost and its expected noise.

    `levels` is int64 `[units]`, `noise` float64 `[outputs]`. `bound` is a lower bound of the cost of
    every choice within the same limits.
    """

    levels: Ints
    cost: float
    noise: Floats
    bound: float = 0.0


@dataclass(eq=False)
class CheapestSearch:
    """Searches for the cheapest choices of a problem within limits.

    `known` are choices to begin with, one of which is without noise; those that are found are added.
    """

    problem: PrecisionProblem
    known: list[PrecisionChoice]
    found: list[tuple[Floats, PrecisionChoice]] = field(default_factory=list)
    """Limits that were searched, and the cheapest choice within each.

    It is also the cheapest within stricter limits, if it is within these.
    """
    budget: SearchBudget = field(default_factory=lambda: SearchBudget(_ALL_SECONDS))

    def find(self, allowed: Floats) -> PrecisionChoice:
        """Return the cheapest choice whose noise is at most `allowed`, float64 `[outputs]`, above 0.

        Where the budget is spent, or the solver finds none, it is the cheapest of the known ones.
        """
        for limit, choice in self.found:
            if (allowed <= limit).all() and _is_within(choice, allowed):
                return choice
        program = build_precision_program(self.problem, allowed)
        solution = program.builder.solve(
            program.constant, budget=self.budget.limit(_SECONDS), nodes=_NODES, gap=_GAP
        )
        if solution.values is not None:
            levels = program.read_levels(solution.values)
            cost = program.sum_cost(solution.values)
            self.known.append(PrecisionChoice(levels, cost, self.problem.sum_noise(levels)))
        within = [each for each in self.known if _is_within(each, allowed)]
        best = min(within, key=lambda each: each.cost)
        best = replace(best, bound=min(max(solution.bound, 0.0), best.cost))
        self.found.append((allowed, best))
        return best


def _is_within(choice: PrecisionChoice, allowed: Floats) -> bool:
    return bool((choice.noise <= allowed * (1 + _TOLERANCE)).all())
