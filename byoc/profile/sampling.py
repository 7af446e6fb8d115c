"""Timing something until the answer settles, within bounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from time import perf_counter

import numpy as np

Clock = Callable[[], float]
"""Gives seconds; only differences count."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to measure: `warmup` runs that do not count, then `least` to `most` runs.

    It is enough sooner when the spread between the quartiles, over the root of the number of runs, is at
    most the part `settled` of the median, or `seconds` have passed since the first run that counts.
    """

    warmup: int = 2
    least: int = 5
    most: int = 100
    seconds: float = 5.0
    settled: float = 0.01


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured, in seconds: the median, the spread between the quartiles, how many runs."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Samples":
        """Return the summary of at least one measurement."""
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        return cls(median, high - low, len(seconds))


def sampled(run: Callable[[], object], patience: Patience, clock: Clock = perf_counter) -> list[float]:
    """Return the seconds of each run that counts."""
    for _ in range(patience.warmup):
        run()
    found: list[float] = []
    start = clock()
    while len(found) < max(patience.most, 1):
        before = clock()
        run()
        after = clock()
        found.append(after - before)
        if len(found) >= patience.least and (
            after - start >= patience.seconds or _settled(found, patience.settled)
        ):
            break
    return found


def in_turn(
    runs: Sequence[Callable[[], object]], patience: Patience, clock: Clock = perf_counter
) -> list[list[float]]:
    """Return the seconds of each of some things, run in turn, so that what slows one slows all.

    Every round begins with another one. It is enough when all have settled, or a round for each run of
    `patience` has been; its seconds are for each of them.
    """
    for _ in range(patience.warmup):
        for run in runs:
            run()
    found: list[list[float]] = [[] for _ in runs]
    start = clock()
    for first in range(max(patience.most, 1)):
        for number in range(len(runs)):
            turn = (first + number) % len(runs)
            before = clock()
            runs[turn]()
            found[turn].append(clock() - before)
        if first + 1 >= patience.least and (
            clock() - start >= patience.seconds * len(runs)
            or all(_settled(each, patience.settled) for each in found)
        ):
            break
    return found


def _settled(found: Sequence[float], part: float) -> bool:
    samples = Samples.of(found)
    return samples.spread / sqrt(samples.count) <= part * samples.median
