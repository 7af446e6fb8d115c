"""Timing a function until its median settles, within limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from time import perf_counter, sleep

import numpy as np

Clock = Callable[[], float]
"""A function that returns seconds, of which only differences count."""


_SHORTEST = 1e-9  # seconds; a clock may not see anything pass
_CLEARLY = 4.0  # times the noise of a ratio


@dataclass(frozen=True, slots=True)
class Patience:
    """The number of measurements: `warmup` runs that do not count, then `least` to `most` runs.

    Measuring ends sooner if the interquartile range, divided by the root of the number of runs, is at
    most the share `settled` of the median, or if `seconds` have passed since the first run that counts.
    Before each run there is a `pause` of so many seconds, which do not count: threads fall asleep, those
    of a library that ran before too, and have to be woken as in an application that does other things.
    """

    warmup: int = 2
    least: int = 5
    most: int = 100
    seconds: float = 5.0
    settled: float = 0.01
    pause: float = 0.0


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

    @property
    def noise(self) -> float:
        """The uncertainty of the median: the interquartile range over the root of the number of runs.

        For a normal distribution that is 1.08 times the standard error of the median.
        """
        return self.spread / sqrt(self.count)


def measure_runs(
    run: Callable[[], object], patience: Patience, clock: Clock = perf_counter
) -> list[float]:
    """Measure a function; return the seconds of each run that counts."""
    return measure_in_turn([run], patience, clock)[0]


def measure_in_turn(
    runs: Sequence[Callable[[], object]],
    patience: Patience,
    clock: Clock = perf_counter,
    drop_slow: bool = False,
) -> list[list[float]]:
    """Measure several functions in turn, so that load on the machine slows all of them.

    Each round has an order of its own, from a fixed seed: what a library leaves behind, as threads that
    spin for a while or a cold cache, meets all others alike. Return the seconds of each run that counts,
    by function.
    Measuring ends when all have settled, or after a round for each run of `patience`; its `seconds` are
    for each function. With `drop_slow` a function that is clearly slower than the fastest takes no part
    in further rounds, and measuring ends when one is left.
    """
    for _ in range(patience.warmup):
        for run in runs:
            run()
    found: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    orders = np.random.default_rng(0)
    start, paused = clock(), 0.0
    for number in range(max(patience.most, 1)):
        for turn in orders.permutation(left).tolist():
            before = clock()
            if patience.pause:
                sleep(patience.pause)
                paused += clock() - before
                before = clock()
            runs[turn]()
            after = clock()
            found[turn].append(after - before)
        if number + 1 < patience.least:
            continue
        if after - start - paused >= patience.seconds * len(runs):
            break
        if drop_slow:
            left = _find_contenders(found, left)
        if (drop_slow and len(left) == 1) or all(_has_settled(found[i], patience.settled) for i in left):
            break
    return found


def compare_in_turn(one: Sequence[float], other: Sequence[float]) -> "Samples":
    """Return the ratio of two functions that were measured in turn, over their common rounds.

    Load on the machine slows both runs of a round, so ratios spread less than seconds do.
    """
    count = min(len(one), len(other))
    return Samples.of((np.array(one[:count]) / np.maximum(other[:count], _SHORTEST)).tolist())


def _find_contenders(found: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    """Return those of the functions in `left` that are not clearly slower than the fastest."""
    fastest = min(left, key=lambda i: float(np.median(found[i])))
    ratios = {i: compare_in_turn(found[i], found[fastest]) for i in left}
    return [i for i in left if ratios[i].median - _CLEARLY * ratios[i].noise <= 1]


def _has_settled(found: Sequence[float], part: float) -> bool:
    samples = Samples.of(found)
    return samples.noise <= part * samples.median
