"""The cheapest choice of units in integers within limits of noise: Lagrange multipliers and branching.

With a price on noise the problem is a placement problem, which a placement strategy solves with a
lower bound. The best price bounds the cost of all choices within the limits from below (Lagrangian
relaxation: Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming Problems",
Management Science 27, 1981). What is left between that bound and the best choice is closed by
branching: a unit that some prices have in one precision and others in another is fixed at each in turn.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np

from byoc.quantization._precision_problem import (
    Fixed,
    Floats,
    Level,
    PrecisionChoice,
    PrecisionProblem,
)

_GAP = 0.01  # share of the cost at which a choice counts as the cheapest
_MAX_NODES = 24  # of the branching tree, for one choice
_MAX_SOLVED = 600  # placement problems in a search; beyond these nothing is branched on
_MAX_PRICES = 8  # that are tried along a direction
_MAX_DIRECTIONS = 3  # ratios of the prices of outputs' noises
_ROUNDING = 1e-9  # share of a value below which a gain is a rounding error


@dataclass(frozen=True, eq=False)
class CheapestChoice:
    """The cheapest choice that was found within limits, and a lower bound of the cost of any."""

    choice: PrecisionChoice
    bound: float


@dataclass(eq=False)
class CheapestSearch:
    """Searches for the cheapest choices of a problem; later ones use what earlier ones found."""

    problem: PrecisionProblem
    solved: dict[tuple[bytes, frozenset[tuple[int, int]]], PrecisionChoice] = field(default_factory=dict)

    def find(self, allowed: Floats) -> CheapestChoice:
        """Return the cheapest choice whose noise is at most `allowed`, float64 `[outputs]`, above 0."""
        numbers = count()
        bound, unit = self._find_bound({}, allowed)
        waiting: list[tuple[float, int, Fixed, int | None]] = [(bound, next(numbers), {}, unit)]
        nodes = 0
        while True:
            bound, _, fixed, unit = heappop(waiting)
            best = min(
                (each for each in self.solved.values() if _is_within(each, allowed)), key=_get_cost
            )
            is_spent = nodes >= _MAX_NODES or len(self.solved) >= _MAX_SOLVED
            if unit is None or is_spent or bound >= best.cost * (1 - _GAP):
                return CheapestChoice(best, min(bound, best.cost))
            for level in self.problem.list_levels(unit):
                child = {**fixed, unit: level}
                child_bound, child_unit = self._find_bound(child, allowed)
                nodes += 1
                heappush(waiting, (max(child_bound, bound), next(numbers), child, child_unit))

    def _find_bound(self, fixed: Fixed, allowed: Floats) -> tuple[float, int | None]:
        """Return a lower bound with some units fixed, and the unit to branch on, None for none."""
        problem = self.problem
        cheapest = self._solve(np.zeros_like(allowed), fixed)
        if _is_within(cheapest, allowed):
            return cheapest.bound, None
        others = {unit: Level.floating for unit in range(len(problem.units)) if unit not in fixed}
        quietest = self._solve(np.zeros_like(allowed), {**fixed, **others})
        if not _is_within(quietest, allowed):
            return inf, None
        best, direction = cheapest.bound, np.maximum(cheapest.noise / allowed - 1, 0.0)
        for _ in range(_MAX_DIRECTIONS):
            direction /= direction.sum()
            line = self._begin_line(fixed, direction / allowed)
            best = max(best, line.find_bound())
            if _is_within(line.quiet, allowed):
                break
            ratio = line.quiet.noise / allowed
            direction = direction * ratio + np.maximum(ratio - 1, 0.0)
        return best, _choose_branch(problem, fixed, line.noisy, line.quiet, direction / allowed)

    def _begin_line(self, fixed: Fixed, direction: Floats) -> "_PriceLine":
        """Return prices along a direction, between the best two known choices around what is allowed."""
        units, levels = [*fixed], [*fixed.values()]
        known = [each for each in self.solved.values() if (each.levels[units] == levels).all()]
        weights = np.array([each.noise @ direction for each in known])
        costs = np.array([each.cost for each in known])
        noisy, quiet = np.flatnonzero(weights > 1), np.flatnonzero(weights <= 1)
        if not noisy.size:
            cheapest = known[int(np.argmin(costs))]
            return _PriceLine(self, fixed, direction, cheapest, cheapest)
        more = weights[noisy] - 1
        less = (1 - weights[quiet])[:, np.newaxis]
        between = (more * costs[quiet][:, np.newaxis] + less * costs[noisy]) / (more + less)
        row, column = np.unravel_index(np.argmin(between), between.shape)
        return _PriceLine(self, fixed, direction, known[noisy[column]], known[quiet[row]])

    def _solve(self, weights: Floats, fixed: Fixed) -> PrecisionChoice:
        """Return the choice at a price of noise, solved for at the first call alone."""
        key = weights.tobytes(), frozenset(fixed.items())
        if key not in self.solved:
            self.solved[key] = self.problem.solve(weights, fixed)
        return self.solved[key]


@dataclass(eq=False)
class _PriceLine:
    """Prices of noise along a direction, in which a weighted noise of 1 is allowed.

    `noisy` is a choice with more noise than that, `quiet` one with at most that.
    """

    owner: CheapestSearch
    fixed: Fixed
    direction: Floats
    noisy: PrecisionChoice
    quiet: PrecisionChoice

    def find_bound(self) -> float:
        """Find the price with the greatest lower bound, by secants; return the bound."""
        best = 0.0
        for _ in range(_MAX_PRICES):
            more = self._weigh(self.noisy) - self._weigh(self.quiet)
            if more <= 0 or self.quiet.cost <= self.noisy.cost:
                break
            price = (self.quiet.cost - self.noisy.cost) / more
            found = self.owner._solve(price * self.direction, self.fixed)
            best = max(best, found.bound - price)
            value = found.cost + price * self._weigh(found)
            if value >= (self.noisy.cost + price * self._weigh(self.noisy)) * (1 - _ROUNDING):
                break
            if self._weigh(found) <= 1:
                self.quiet = found
            else:
                self.noisy = found
        return best

    def _weigh(self, choice: PrecisionChoice) -> float:
        return float(self.direction @ choice.noise)


def _is_within(choice: PrecisionChoice, allowed: Floats) -> bool:
    return bool((choice.noise <= allowed).all())


def _get_cost(choice: PrecisionChoice) -> float:
    return choice.cost


def _choose_branch(
    problem: PrecisionProblem,
    fixed: Fixed,
    one: PrecisionChoice,
    other: PrecisionChoice,
    weights: Floats,
) -> int | None:
    """Return the unit of two choices whose noises differ most, None where all have one precision."""
    differs = one.levels != other.levels
    differs[list(fixed)] = False
    units = np.flatnonzero(differs)
    if not units.size:
        return None
    more = np.abs(problem.list_noise(one.levels) - problem.list_noise(other.levels))
    return int(units[np.argmax(more[units] @ weights)])
