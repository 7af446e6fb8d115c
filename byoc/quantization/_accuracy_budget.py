"""Accuracy budgets, and the search for the units that have to stay in floating point."""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from byoc.errors import InputError
from byoc.quantization._sensitivity import KeptAccuracy

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)
_MOST_TRIALS = 64  # plans that are made to find cheaper ones than by order
_LONGEST_RUN = 4  # units next to each other that are left in floating point, or quantized, together
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
class FloatTrial:
    """A plan with some units in floating point: the accuracy that it keeps, and its predicted cost.

    Costs are seconds, or in the unit of another objective.
    """

    accuracy: KeptAccuracy
    cost: float


Proposals = Generator[tuple[str, ...] | None, FloatTrial, None]
"""Units to leave in floating point, each answered (`send`) with what was found; None at the end."""
_Search = Generator[tuple[str, ...], FloatTrial, None]


def search_float_units(
    budget: Budget, units: Sequence[str], rank: Callable[[], Mapping[str, KeptAccuracy]]
) -> Proposals:
    """Propose units to leave in floating point, until no cheaper ones are found that meet a budget.

    The generator yields units in order of execution, receives the `FloatTrial` of them by `send`, and
    yields None at the end. Each trial costs the caller a plan and its runs on up to 32 samples. The
    answer is the proposal of the least cost that met the budget, the first of several.

    `units` are in order of execution. The first proposal is to leave none; `rank`, called only if that
    is not enough, returns the accuracy with each unit alone quantized. Where the precision changes
    within an accelerator's region, tensors cross to the host and back, so that the fewest units are
    seldom the cheapest. Proposed are the most sensitive units, the first ones and the last ones, each as
    few as it takes, and then what differs from the cheapest in a run of units, or by one in place of
    another, at most `_MOST_TRIALS` of these. Raises InputError when leaving out all units is not enough.
    """
    search = _FloatSearch(budget, units)
    yield from search.try_units(())
    if budget.is_met(search.tried[frozenset()].accuracy):
        yield None
        return
    yield from search.try_units(units)
    if not budget.is_met(search.tried[frozenset(units)].accuracy):
        raise InputError(f"accuracy budget {budget}: not met even with nothing quantized")
    each = rank()
    noisiest = sorted(units, key=lambda name: (each[name].signal_to_noise, name))
    guess = _guess_number(budget, [each[name].noise for name in noisiest])
    yield from search.find_fewest(noisiest, guess)
    yield from search.find_fewest(units, guess)
    yield from search.find_fewest(units[::-1], guess)
    yield from search.improve()
    yield None


@dataclass(eq=False)
class _FloatSearch:
    """The sets of units, left in floating point, that were tried."""

    budget: Budget
    units: Sequence[str]
    tried: dict[frozenset[str], FloatTrial] = field(default_factory=dict)

    def try_units(self, names: Iterable[str]) -> _Search:
        """Propose some units, unless they were proposed before."""
        chosen = frozenset(names)
        if chosen in self.tried:
            return
        self.tried[chosen] = yield tuple(name for name in self.units if name in chosen)

    def find_fewest(self, order: Sequence[str], guess: int) -> _Search:
        """Find by bisection the fewest from the beginning of an order that meet the budget.

        Each more keeps at least as much but for chance. `guess` is a number to try first: that of the
        noisiest units, for any order.
        """
        too_few, enough = 0, len(order)
        guesses = [guess, guess - 1, guess + 1]
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            number = next((number for number in guesses if too_few < number < enough), middle)
            chosen = frozenset(order[:number])
            yield from self.try_units(chosen)
            if self.budget.is_met(self.tried[chosen].accuracy):
                enough = number
            else:
                too_few = number

    def improve(self) -> _Search:
        """Propose what differs little from sets that met the budget, the cheapest first.

        Each is followed until nothing near is cheaper.
        """
        most = len(self.tried) + _MOST_TRIALS
        met = [one for one in self.tried if self.budget.is_met(self.tried[one].accuracy)]
        for start in sorted(met, key=self._find_cost):
            best, last = start, None
            while best != last:
                last = best
                for chosen in self._list_near(last):
                    if len(self.tried) >= most:
                        return
                    yield from self.try_units(chosen)
                    if self._find_cost(chosen) < self._find_cost(best):
                        best = chosen
                        break

    def _find_cost(self, chosen: frozenset[str]) -> float:
        """Return the cost of a set that was tried, infinite where it does not meet the budget."""
        found = self.tried[chosen]
        return found.cost if self.budget.is_met(found.accuracy) else inf

    def _list_near(self, start: frozenset[str]) -> Iterator[frozenset[str]]:
        """Yield the sets that differ in a run of units, or by one in place of another."""
        count = len(self.units)
        for length in range(1, _LONGEST_RUN + 1):
            runs = [frozenset(self.units[at : at + length]) for at in range(count - length + 1)]
            yield from (start - run for run in runs if not run.isdisjoint(start))
            yield from (start | run for run in runs if not run <= start)
        for one in filter(start.__contains__, self.units):
            yield from (start - {one} | {other} for other in self.units if other not in start)


def _guess_number(budget: Budget, noises: Sequence[float]) -> int:
    """Return the number of noisiest units to leave out if noise powers add up; else half of them."""
    if budget.measure != "dB":
        return len(noises) // 2
    allowed = 10 ** (-budget.least / 10)
    left = sum(noises)
    for number, noise in enumerate(noises):
        if left <= allowed:
            return number
        left -= noise
    return len(noises)
