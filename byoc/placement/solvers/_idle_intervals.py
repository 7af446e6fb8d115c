"""The times at which devices have nothing to do, while a schedule is made."""

import math
from bisect import bisect_right


class UnlimitedCores:
    """A host on which every job finds an idle core."""

    @staticmethod
    def take(ready: float, _seconds: float) -> float:
        """Return the earliest start, which is when the job is ready."""
        return ready


class IdleCores:
    """The idle intervals of the host's cores."""

    def __init__(self, cores: int) -> None:
        self._cores = [IdleIntervals() for _ in range(max(cores, 1))]

    def take(self, ready: float, seconds: float) -> float:
        """Return the earliest start on any core, and occupy that interval."""
        found = min(self._cores, key=lambda core: core.find(ready, seconds)[0])
        return found.take(ready, seconds)


class IdleIntervals:
    """The idle intervals of one device."""

    def __init__(self) -> None:
        self._start = [0.0]
        self._end = [math.inf]

    def find(self, ready: float, seconds: float) -> tuple[float, int]:
        """Return the earliest start from `ready` on at which a job fits, and the interval's number."""
        gap = max(0, bisect_right(self._start, ready) - 1)
        while max(ready, self._start[gap]) + seconds > self._end[gap]:
            gap += 1
        return max(ready, self._start[gap]), gap

    def take(self, ready: float, seconds: float) -> float:
        """Return the earliest start from `ready` on at which a job fits, and occupy that interval."""
        begin, gap = self.find(ready, seconds)
        first, last = self._start[gap], self._end[gap]
        if seconds == 0:
            return begin
        remaining = [(a, b) for a, b in ((first, begin), (begin + seconds, last)) if a < b]
        self._start[gap : gap + 1] = [a for a, _ in remaining]
        self._end[gap : gap + 1] = [b for _, b in remaining]
        return begin
