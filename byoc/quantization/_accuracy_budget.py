"""Accuracy budgets, and the search for the plans that keep accuracy at the least predicted cost."""

import re
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, isfinite
from typing import Literal

import numpy as np

from byoc.errors import InputError
from byoc.planning import TradePoint
from byoc.quantization._cheapest_precision import CheapestSearch, PrecisionChoice
from byoc.quantization._precision_problem import PrecisionProblem, UnitPrecisions
from byoc.quantization._sensitivity import KeptAccuracy

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)
_MOST_TRIALS = 4  # plans that are made for an accuracy, each with what was learnt from the ones before
_MOST_LEVELS = 40  # accuracies, a decibel apart, that plans are searched for
_LEVELS_ABOVE = 4  # of these above the budget, and above what all in integers keep
_MARGIN = 1.02  # by which the expected noise is stricter than what was measured last
_SLACK = 1.15  # share by which a plan may be less noisy than it has to be
_SAME_COST = 0.02  # share of the cost that is as good as none
_LEAST_NOISE = 1e-20
_MOST_SCALE = 10.0
_MEASURES = {"dB": "signal_to_noise", "top1": "same_class"}  # the fields of `KeptAccuracy`


@dataclass(frozen=True)
class Budget:
    """The least accuracy to keep: `Budget("dB", 45)` or `Budget("top1", 0.99)`.

    `dB` is the signal-to-noise ratio of the outputs, at least 0; `top1` the share of rows with the
    largest element where it was, from 0 to 1. Raises InputError for another measure, or such a number.
    """

    measure: Literal["dB", "top1"]
    least: float

    def __post_init__(self) -> None:
        """Raise InputError for a measure that there is not, or a number outside its range."""
        if self.measure not in _MEASURES:
            raise InputError(f"accuracy budget: {self.measure!r} is neither dB nor top1")
        if not isinstance(self.least, (int, float)) or not 0 <= self.least < inf:
            raise InputError(f"accuracy budget: {self.least!r} is no number from 0 on")
        if self.measure == "top1" and self.least > 1:
            raise InputError(f"accuracy budget: '{self}': a share is at most 1")

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        return f"{self.least:g}dB" if self.measure == "dB" else f"top1={self.least:g}"

    def is_met(self, found: KeptAccuracy) -> bool:
        """Return whether an accuracy is within the budget."""
        return self.measure_of(found) >= self.least

    def measure_of(self, found: KeptAccuracy) -> float:
        """Return an accuracy in the measure of the budget."""
        value: float = getattr(found, _MEASURES[self.measure])
        return value


def read_budget(text: str) -> Budget:
    """Return a budget from text: `30dB` or `top1=0.99`. Raises InputError for other text."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")
    if match["db"] is not None:
        return Budget("dB", float(match["db"]))
    return Budget("top1", float(match["share"]))


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

    `units` may be quantized, and `wide` are those of them that may have 16 bits. `build`, called once
    the plans with all in one precision were tried, returns the problem whose noises are those of units
    alone, and units among these.
    """

    budget: Budget
    units: Collection[str]
    build: Callable[[], PrecisionProblem]
    wide: Collection[str] = ()
    tried: dict[UnitPrecisions, PlanTrial] = field(default_factory=dict)
    gap: float = 0.0
    """The greatest share by which a plan costs more than the lower bound of its expected noise."""

    @property
    def ends(self) -> tuple[UnitPrecisions, ...]:
        """The plans with all units in 8 bits, in 16 where they may be, and in floating point."""
        wide = UnitPrecisions(wide=frozenset(self.wide))
        return tuple(
            dict.fromkeys((UnitPrecisions(), wide, UnitPrecisions(in_float=frozenset(self.units))))
        )

    def propose(self) -> Proposals:
        """Yield the precisions of units, receive the trial of each, yield None at the end.

        Each trial costs the caller a plan and its runs on up to 32 samples. First come the `ends`.
        Between these the accuracies are whole decibels, up to a few above the budget: larger budgets try
        what smaller ones try, and more. The answer is the trial of the least cost that met the budget,
        the first of several. Raises InputError when floating point is not enough.
        """
        for end in self.ends:
            yield from self._try(end)
        found = [self.tried[end] for end in self.ends]
        if not any(self.budget.is_met(each.accuracy) for each in found):
            raise InputError(f"accuracy budget {self.budget}: not met even with nothing quantized")
        if self.units and isfinite(found[0].accuracy.signal_to_noise):
            yield from self._try_levels(found[0].accuracy)
        yield None

    def _try(self, precisions: UnitPrecisions) -> Generator[UnitPrecisions, PlanTrial, None]:
        """Propose precisions, unless they were proposed before."""
        if precisions not in self.tried:
            self.tried[precisions] = yield precisions

    def _try_levels(self, integer: KeptAccuracy) -> Generator[UnitPrecisions, PlanTrial, None]:
        problem = self.build()
        expected = problem.sum_noise(problem.find_levels(UnitPrecisions()))
        measured = np.asarray(integer.noises or [integer.noise])
        # What is measured of all units, over the sum of what is measured of each.
        scale = np.clip(measured / np.maximum(expected, _LEAST_NOISE), 1 / _MOST_SCALE, _MOST_SCALE)
        problem = replace(problem, noise=problem.noise * scale, rounding=problem.rounding * scale)
        ends = [(problem.find_levels(end), self.tried[end].cost) for end in self.ends]
        known = [PrecisionChoice(each, cost, problem.sum_noise(each)) for each, cost in ends]
        search = CheapestSearch(problem, known)
        strictness = np.ones(len(measured))  # by which the noise of each output is to stay below a limit
        for level in self._list_levels(integer.signal_to_noise):
            if self._is_enough(level):
                return
            limit = 10 ** (-level / 10)
            for _ in range(_MOST_TRIALS):
                found = search.find(limit / strictness)
                self.gap = max(self.gap, 1 - found.bound / found.cost if found.cost > 0 else 0.0)
                if not found.levels.any():
                    return
                precisions = problem.name_precisions(found.levels)
                is_new = precisions not in self.tried
                yield from self._try(precisions)
                accuracy = self.tried[precisions].accuracy
                kept = np.nan_to_num(np.asarray(accuracy.noises or [accuracy.noise]), nan=np.inf)
                needed = _MARGIN * kept / np.maximum(found.noise, _LEAST_NOISE)
                if accuracy.signal_to_noise < level:
                    stricter = np.clip(needed, _MARGIN * strictness, _MOST_SCALE * strictness)
                    strictness = np.where(kept > limit, stricter, strictness)
                    continue
                tightest = int(np.argmax(found.noise * strictness))
                if not is_new or needed[tightest] > strictness[tightest] / _SLACK:
                    break
                strictness = np.clip(needed, strictness / _MOST_SCALE, strictness)  # it may be exact

    def _list_levels(self, least: float) -> list[float]:
        """Return the accuracies (dB) to search plans for, in rising order."""
        first = floor(least) + 1
        levels: set[float] = {first + number for number in range(_MOST_LEVELS)}
        if self.budget.measure == "dB":
            most = ceil(max(self.budget.least, least)) + _LEVELS_ABOVE
            levels = {level for level in levels if level <= most} | {self.budget.least}
        return sorted(level for level in levels if level > least)

    def _is_enough(self, level: float) -> bool:
        """Return whether a budget of classes was met by a plan some levels below."""
        if self.budget.measure == "dB":
            return False
        return any(
            self.budget.is_met(each.accuracy) and each.accuracy.signal_to_noise <= level - _LEVELS_ABOVE
            for each in self.tried.values()
        )


def list_cheap_plans(points: Iterable[TradePoint]) -> list[TradePoint]:
    """Return the plans that cost hardly more than the cheapest: none of them is worth a surprise."""
    found = list(points)
    least = min((point.cost for point in found), default=0.0)
    return [point for point in found if point.cost <= least * (1 + _SAME_COST)]


def choose_plan(points: Iterable[TradePoint]) -> TradePoint:
    """Return the plan to take of those that meet a budget.

    Of those that cost hardly more than the cheapest it is the one with the fewest units in floating
    point, then in 16 bits: quantizing is what was asked for. Raises ValueError if there is no plan.
    """
    return min(
        list_cheap_plans(points),
        key=lambda point: (len(point.in_float), len(point.wide), point.cost, -point.reached),
    )


def choose_front(points: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
    """Return the plans that keep more than every cheaper one, and the one that is taken, by cost."""
    front: list[TradePoint] = []
    most = -inf
    for each in sorted(points, key=lambda point: (point.cost, -point.reached)):
        if each not in front and (each.reached > most or each == taken):
            front.append(each)
            most = max(most, each.reached)
    return tuple(front)


def update_taken(front: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
    """Return plans, by cost, with new figures of the one that has its units in the same precisions."""
    others = (point for point in front if (point.in_float, point.wide) != (taken.in_float, taken.wide))
    return tuple(sorted((*others, taken), key=lambda point: (point.cost, point.reached)))
