"""Accuracy budgets, and the search for the units that have to stay in floating point."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from byoc.errors import InputError
from byoc.quantization._sensitivity import KeptAccuracy

_TEXT = re.compile(r"(?:snr=)?(?P<db>[0-9]+(?:\.[0-9]+)?) ?dB|top1=(?P<share>[01](?:\.[0-9]+)?)", re.I)


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


Proposals = Generator[tuple[str, ...] | None, KeptAccuracy, None]
"""Units to leave in floating point, each answered (`send`) with the accuracy; None at the end."""


def search_float_units(budget: Budget, rank: Callable[[], Mapping[str, KeptAccuracy]]) -> Proposals:
    """Propose units to leave in floating point, until the fewest that meet a budget are found.

    The last proposal that met the budget is the answer. The first is to leave none; `rank`, called only
    if that is not enough, returns the accuracy with each unit alone quantized. Units are left out from
    the most sensitive on. Their number is found by bisection, since each more keeps at least as much
    but for chance, beginning with what is enough if noise powers add up. Raises InputError when
    leaving out all units is not enough.
    """
    if budget.is_met((yield ())):
        yield None
        return
    each = rank()
    order = sorted(each, key=lambda name: (each[name].signal_to_noise, name))
    if not budget.is_met((yield tuple(order))):
        raise InputError(f"accuracy budget {budget}: not met even with nothing quantized")
    too_few, enough = 0, len(order)
    guess = _guess_number(budget, [each[name].noise for name in order])
    guesses = [guess, guess - 1, guess + 1]
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        number = next((number for number in guesses if too_few < number < enough), middle)
        if budget.is_met((yield tuple(order[:number]))):
            enough = number
        else:
            too_few = number
    yield None


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
