"""Keeping a model's accuracy: the units that cost most of it stay in floating point, and no more."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from byoc.errors import InputError
from byoc.precision.sensitivity import Kept

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)


T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """The least that must be left: a signal-to-noise ratio in dB, or the share of equal classes."""

    measure: Literal["signal_to_noise", "same_class"]
    least: float

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        return f"{self.least:g}dB" if self.measure == "signal_to_noise" else f"top1={self.least:g}"

    def met(self, found: Kept) -> bool:
        """Return whether enough is left."""
        return self.of(found) >= self.least

    def of(self, found: Kept) -> float:
        """Return what is left, as it is measured."""
        value: float = getattr(found, self.measure)
        return value


def read_budget(text: str) -> Budget:
    """Return a budget from text: `30dB` or `top1=0.99`. Raises InputError for other text."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"accuracy budget: '{text}' is neither like 30dB nor like top1=0.99")
    if match["db"] is not None:
        return Budget("signal_to_noise", float(match["db"]))
    if float(match["share"]) > 1:
        raise InputError(f"accuracy budget: '{text}': a share is at most 1")
    return Budget("same_class", float(match["share"]))


@dataclass(frozen=True, eq=False)
class Trial(Generic[T]):
    """A plan in which some units are left in floating point, and what it keeps."""

    result: T
    kept: Kept


@dataclass(frozen=True, eq=False)
class Met(Generic[T]):
    """The plan that keeps within a budget: what was left in floating point, and what that cost alone.

    `without` is what would be kept with nothing left out.
    """

    trial: Trial[T]
    left: Mapping[str, Kept]
    without: Kept


def within(
    budget: Budget,
    try_without: Callable[[Sequence[str]], Trial[T]],
    rank: Callable[[], Mapping[str, Kept]],
) -> Met[T]:
    """Return the plan with the fewest of the most sensitive units left in floating point.

    `try_without` makes the plan that leaves some units out, `rank` says what each costs alone. Units are
    left out from the most sensitive on; how many is found by bisection, since each more keeps at least
    as much but for chance. It begins with what is enough if noise powers add up. Raises InputError when
    it is not enough to leave out all.
    """
    first = try_without(())
    if budget.met(first.kept):
        return Met(first, {}, first.kept)
    each = rank()
    order = sorted(each, key=lambda name: (each[name].signal_to_noise, name))
    low, high = 0, len(order)  # `low` is too few
    best = try_without(order)
    if not budget.met(best.kept):
        raise InputError(f"accuracy budget {budget}: not met even with nothing quantized")
    guess = _enough(budget, [each[name].noise for name in order])
    guesses = [guess, guess - 1, guess + 1]
    while high - low > 1:
        middle = next((number for number in guesses if low < number < high), (low + high) // 2)
        trial = try_without(order[:middle])
        if budget.met(trial.kept):
            best, high = trial, middle
        else:
            low = middle
    return Met(best, {name: each[name] for name in order[:high]}, first.kept)


def _enough(budget: Budget, noises: Sequence[float]) -> int:
    """Return how many of the noisiest to leave out if noise powers add up; half for other measures."""
    if budget.measure != "signal_to_noise":
        return len(noises) // 2
    allowed = 10 ** (-budget.least / 10)
    left = sum(noises)
    for number, noise in enumerate(noises):
        if left <= allowed:
            return number
        left -= noise
    return len(noises)
