"""Timing a function until its median settles, within limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from time import perf_counter

import numpy as np

Clock = Callable[[], float]
"""A function that returns seconds, of which only differences count."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The number of measurements: `warmup` runs that do not count, then `least` to `most` runs.

    Measuring ends sooner if the interquartile range, divided by the root of the number of runs, is at
    most the share `settled` of the median, or if `seconds` have passed since the first run that counts.
    """

    warmup: int = 2
    least: int = 5
    most: int = 100
    seconds: float = 5.0
    settled: float = 0.01


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements in seconds: the median, the interquartile range, and the number of runs."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Samples":
        """Summarize at least one measurement."""
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        return cls(median, high - low, len(seconds))


def measure_runs(
    run: Callable[[], object], patience: Patience, clock: Clock = perf_counter
) -> list[float]:
    """Measure a function; return the seconds of each run that counts."""
    return measure_in_turn([run], patience, clock)[0]


def measure_in_turn(
    runs: Sequence[Callable[[], object]], patience: Patience, clock: Clock = perf_counter
) -> list[list[float]]:
    """Measure several functions in turn, so that load on the machine slows all of them.

    Each round begins with another function. Return the seconds of each run that counts, by function.
    Measuring ends when all have settled, or after a round for each run of `patience`; its `seconds` are
    for each function.
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
            after = clock()
            found[turn].append(after - before)
        if first + 1 >= patience.least and (
            after - start >= patience.seconds * len(runs)
            or all(_has_settled(each, patience.settled) for each in found)
        ):
            break
    return found


def _has_settled(found: Sequence[float], part: float) -> bool:
    samples = Samples.of(found)
    return samples.spread / sqrt(samples.count) <= part * samples.median
