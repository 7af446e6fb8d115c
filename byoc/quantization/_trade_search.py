"""The search for the plans that keep each accuracy at the least predicted cost."""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field, replace
from math import ceil, floor, isfinite

import numpy as np

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.quantization._accuracy_budget import Budget
from byoc.quantization._accuracy_measures import KeptAccuracy
from byoc.quantization._precision_problem import Floats, Ints, PrecisionProblem, UnitPrecisions
from byoc.quantization._precision_program import build_precision_program

# The cheapest choice of units' precisions within limits of noise: an integer program for each
# limit.

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


_MOST_TRIALS = 4  # plans that are made for an accuracy, each with what was learnt from the ones before
_MOST_ACCURACIES = 40  # a decibel apart, that plans are searched for
_DECIBELS_ABOVE = 4  # accuracies above the budget, and above what all in integers keep
_MARGIN = 1.02  # by which the expected noise is stricter than what was measured last
_SLACK = 1.15  # share by which a plan may be less noisy than it has to be
_LEAST_NOISE = 1e-20
_MOST_SCALE = 10.0


@dataclass(frozen=True, slots=True)
class PlanTrial:
    """A plan with units in some precisions: the accuracy that it keeps, and its predicted cost.

    Costs are seconds, or in the unit of another objective.
    """

    accuracy: KeptAccuracy
    cost: float


Proposals = Generator[UnitPrecisions | None, PlanTrial, None]
"""Precisions of units, each answered (`send`) with what was found; None at the end."""


@dataclass(eq=False)
class TradeSearch:
    """The search for the plans that keep each whole decibel at the least predicted cost.

    `units` may be quantized, and `wide` are those of them that may have 16 bits. `build` is called once
    the `ends` were tried; it returns the problem of some of the units, with the noise of each alone.
    """

    budget: Budget
    units: Collection[str]
    build: Callable[[], PrecisionProblem]
    wide: Collection[str] = ()
    tried: dict[UnitPrecisions, PlanTrial] = field(default_factory=dict)
    gap: float = 0.0
    """The greatest share by which a plan costs more than the lower bound within its limits of noise."""

    @property
    def ends(self) -> tuple[UnitPrecisions, ...]:
        """The precisions of all units alike: as asked for, in 16 bits where they may, and in floats."""
        wide = UnitPrecisions(wide=frozenset(self.wide))
        return tuple(
            dict.fromkeys((UnitPrecisions(), wide, UnitPrecisions(in_float=frozenset(self.units))))
        )

    def propose(self) -> Proposals:
        """Yield the precisions of units, receive the trial of each, yield None at the end.

        Each trial costs the caller a plan and its runs on up to 32 samples. First come the `ends`, then
        plans for each whole decibel between these, up to a few above the budget: larger budgets try what
        smaller ones try, and more. The caller takes one of the trials (`choose_plan`). Raises InputError
        when floating point is not enough.
        """
        for end in self.ends:
            yield from self._try(end)
        found = [self.tried[end] for end in self.ends]
        if not any(self.budget.is_met(each.accuracy) for each in found):
            raise InputError(f"accuracy budget {self.budget}: not met even with nothing quantized")
        if self.units and isfinite(found[0].accuracy.signal_to_noise):
            yield from self._try_accuracies(found[0].accuracy)
        yield None

    def _try(self, precisions: UnitPrecisions) -> Generator[UnitPrecisions, PlanTrial, None]:
        """Propose precisions, unless they were proposed before."""
        if precisions not in self.tried:
            self.tried[precisions] = yield precisions

    def _try_accuracies(self, integer: KeptAccuracy) -> Generator[UnitPrecisions, PlanTrial, None]:
        """Propose the cheapest precisions for each accuracy above that of all units in integers.

        Noises of units do not quite add up: where a plan is measured to be noisier than its limits, or
        much less noisy, the limits of the next trial are stricter or less strict, output by output.
        """
        search = self._start_search(integer)
        strictness = np.ones(search.problem.noise.shape[2])  # what limits are divided by, `[outputs]`
        for decibels in self._list_accuracies(integer.signal_to_noise):
            if self._is_enough(decibels):
                return
            limit = 10 ** (-decibels / 10)
            for _ in range(_MOST_TRIALS):
                found = search.find(limit / strictness)
                self.gap = max(self.gap, 1 - found.bound / found.cost if found.cost > 0 else 0.0)
                if not found.levels.any():  # nothing is left in integers
                    return
                precisions = search.problem.name_precisions(found.levels)
                is_new = precisions not in self.tried
                yield from self._try(precisions)
                accuracy = self.tried[precisions].accuracy
                measured = np.nan_to_num(_list_noises(accuracy), nan=np.inf)
                needed = _MARGIN * measured / np.maximum(found.noise, _LEAST_NOISE)
                if accuracy.signal_to_noise < decibels:
                    stricter = np.clip(needed, _MARGIN * strictness, _MOST_SCALE * strictness)
                    strictness = np.where(measured > limit, stricter, strictness)
                    continue
                tightest = int(np.argmax(found.noise * strictness))
                if not is_new or needed[tightest] > strictness[tightest] / _SLACK:
                    break
                strictness = np.clip(needed, strictness / _MOST_SCALE, strictness)  # it may be exact

    def _start_search(self, integer: KeptAccuracy) -> CheapestSearch:
        """Return a search that knows the `ends`, in a problem with noises in proportion.

        They are scaled by what was measured of all units in integers, over the sum of what was measured
        of each unit alone.
        """
        problem = self.build()
        expected = problem.sum_noise(problem.find_levels(UnitPrecisions()))
        ratio = _list_noises(integer) / np.maximum(expected, _LEAST_NOISE)
        scale = np.clip(ratio, 1 / _MOST_SCALE, _MOST_SCALE)
        problem = replace(problem, noise=problem.noise * scale, rounding=problem.rounding * scale)
        ends = [(problem.find_levels(end), self.tried[end].cost) for end in self.ends]
        return CheapestSearch(
            problem, [PrecisionChoice(each, cost, problem.sum_noise(each)) for each, cost in ends]
        )

    def _list_accuracies(self, least: float) -> list[float]:
        """Return the accuracies (dB) to search plans for, in rising order; all are above `least`."""
        first = floor(least) + 1
        found: set[float] = {first + number for number in range(_MOST_ACCURACIES)}
        if self.budget.measure == "dB":
            most = ceil(max(self.budget.least, least)) + _DECIBELS_ABOVE
            found = {decibels for decibels in found if decibels <= most} | {self.budget.least}
        return sorted(decibels for decibels in found if decibels > least)

    def _is_enough(self, decibels: float) -> bool:
        """Return whether a budget of classes was met by a plan some decibels below."""
        if self.budget.measure == "dB":
            return False
        most = decibels - _DECIBELS_ABOVE
        found = (each.accuracy for each in self.tried.values())
        return any(self.budget.is_met(each) and each.signal_to_noise <= most for each in found)


def _list_noises(accuracy: KeptAccuracy) -> Floats:
    """Return the noise of each output, float64 `[outputs]`."""
    return np.asarray(accuracy.noises or [accuracy.noise])
