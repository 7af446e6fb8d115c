"""The cheapest choice of units' precisions within limits of noise: an integer program for each limit."""

from dataclasses import dataclass, field, replace

from byoc.numerics import SearchBudget
from byoc.quantization._precision_problem import Floats, Ints, PrecisionProblem
from byoc.quantization._precision_program import build_precision_program

# Seconds of an ordinary computer, counted by steps, for one limit and for all (see `SearchBudget`). What
# is counted before the first node is some ten times what passes.
_SECONDS, _ALL_SECONDS = 500.0, 5000.0
_NODES = 1000
_GAP = 0.01  # share of the cost: most of the work is to prove the last of it
_ROUNDING = 1e-5  # share of what is allowed that the solver's tolerance may exceed it by


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A choice of the level of each unit, int64 `[units]`, its predicted cost and expected noise.

    `bound` is a lower bound of the cost of every choice within the same limits.
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
    """Limits, and the cheapest choice within them: within less it is that, too, if it is within."""
    budget: SearchBudget = field(default_factory=lambda: SearchBudget(_ALL_SECONDS))

    def find(self, allowed: Floats) -> PrecisionChoice:
        """Return the cheapest choice whose noise is at most `allowed`, float64 `[outputs]`, above 0.

        Where the budget is spent, it is the cheapest of the known ones.
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
    return bool((choice.noise <= allowed * (1 + _ROUNDING)).all())
