"""Schedules of jobs that occupy engines together, slow one another, and are released periodically.

The simulation goes from event to event: a job is ready, or ends. At each event the ready jobs are taken
in the order of their ranks, and each starts whose engines are free; none is interrupted. While others
compute, a job makes less progress: by the sum of what each of them slows it (`Conditions.slowdown`).
"""

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.placement._conditions import PlacedNetwork, find_hyperperiod
from byoc.placement._problem import Problem

# Work below this share of a job's seconds is a rounding error.
_DONE = 1e-12

Rank = tuple[float, ...]


@dataclass(eq=False, slots=True)
class EngineJob:
    """A job: the engines that it occupies, its seconds alone, when it may start, and what follows it."""

    engines: tuple[int, ...]
    seconds: float
    release: float
    rank: Rank
    """Of jobs that are ready, the one of the lowest rank starts first."""
    following: list[tuple[int, float]] = field(default_factory=list)
    """Numbers of jobs that wait for it, and the seconds that pass between."""


@dataclass(frozen=True, eq=False)
class Contention:
    """The slow-down of engines by one another, and whether jobs wait to avoid it."""

    slowdown: Sequence[Sequence[float]]
    is_patient: bool
    """Whether a job waits for another one where both side by side would take at least as long as one
    after the other."""

    def find_excess(self, job: EngineJob, other: EngineJob) -> float:
        """Return by which part of its seconds a job takes longer while another one runs."""
        rows = [self.slowdown[one] for one in job.engines if one < len(self.slowdown)]
        columns = [two for two in other.engines if two < len(self.slowdown)]
        return max((row[two] for row in rows for two in columns), default=1.0) - 1.0

    def should_wait(self, job: EngineJob, other: EngineJob) -> bool:
        """Return whether running two jobs side by side gains nothing."""
        if not self.is_patient:
            return False
        both = 1 / (1 + self.find_excess(job, other)) + 1 / (1 + self.find_excess(other, job))
        return both <= 1


def simulate_engines(
    jobs: Sequence[EngineJob], cores: Mapping[int, int], contention: Contention | None
) -> tuple[list[float], list[float]]:
    """Return the start and end of each job in seconds; infinite for one that never can start.

    `cores` has the number of jobs that an engine runs at once where that is not 1.
    """
    return _Simulation(jobs, cores, contention).run()


class _Simulation:
    def __init__(
        self, jobs: Sequence[EngineJob], cores: Mapping[int, int], contention: Contention | None
    ) -> None:
        self._jobs, self._contention = jobs, contention
        self._free = {engine: cores.get(engine, 1) for job in jobs for engine in job.engines}
        self._ready = [job.release for job in jobs]
        self._waits = [0] * len(jobs)
        for job in jobs:
            for after, _ in job.following:
                self._waits[after] += 1
        self._arriving: list[tuple[float, int]] = []
        for number, waits in enumerate(self._waits):
            if not waits:
                heappush(self._arriving, (self._ready[number], number))
        self._available: list[tuple[Rank, int]] = []
        self._left: dict[int, float] = {}  # the seconds of work that running jobs have left
        self._now = 0.0
        self._start, self._end = ([inf] * len(jobs) for _ in range(2))

    def run(self) -> tuple[list[float], list[float]]:
        """Run to the end; what waits for ever has infinite times."""
        while True:
            while self._arriving and self._arriving[0][0] <= self._now:
                number = heappop(self._arriving)[1]
                insort(self._available, (self._jobs[number].rank, number))
            self._begin()
            arrival = self._arriving[0][0] if self._arriving else inf
            if self._left:
                self._advance(arrival)
            elif arrival < inf:
                self._now = arrival
            else:
                return self._start, self._end

    def _begin(self) -> None:
        """Start the available jobs whose engines are free."""
        waiting = []
        for rank, number in self._available:
            job = self._jobs[number]
            contention = self._contention
            if any(not self._free[engine] for engine in job.engines) or (
                contention is not None
                and any(contention.should_wait(job, self._jobs[other]) for other in self._left)
            ):
                waiting.append((rank, number))
                continue
            for engine in job.engines:
                self._free[engine] -= 1
            self._start[number], self._left[number] = self._now, job.seconds
        self._available = waiting

    def _advance(self, arrival: float) -> None:
        """Go to the next event: the end of a running job, or the arrival of another one."""
        pace = {number: self._find_pace(number) for number in self._left}
        until = min(left * pace[number] for number, left in self._left.items())
        if self._now + until == inf:  # a job that never ends
            self._now = arrival
            if arrival == inf:
                self._left.clear()
            return
        passed = min(until, arrival - self._now)
        self._now = arrival if passed < until else self._now + until
        for number, left in list(self._left.items()):
            rest = left - passed / pace[number]
            self._left[number] = rest
            if rest <= _DONE * self._jobs[number].seconds:
                self._finish(number)

    def _find_pace(self, number: int) -> float:
        """Return the seconds that a second of a job's work takes now."""
        if self._contention is None or len(self._left) == 1:
            return 1.0
        job, find = self._jobs[number], self._contention.find_excess
        return 1.0 + sum(find(job, self._jobs[other]) for other in self._left if other != number)

    def _finish(self, number: int) -> None:
        del self._left[number]
        self._end[number] = self._now
        for engine in self._jobs[number].engines:
            self._free[engine] += 1
        for after, delay in self._jobs[number].following:
            self._ready[after] = max(self._ready[after], self._now + delay)
            self._waits[after] -= 1
            if not self._waits[after]:
                heappush(self._arriving, (self._ready[after], after))


# The rates of networks, and what the scheduler reads of a problem's conditions.


@dataclass(frozen=True, eq=False)
class RateCheck:
    """The load of engines at the rates of some networks, and the response times of inferences."""

    utilization: dict[int, float]
    """The share of its time for which each engine computes; links have numbers above those."""
    responses: tuple[float, ...]
    """Seconds from the release to the end of each network's slowest inference in a hyperperiod."""
    networks: tuple[PlacedNetwork, ...]

    def find_excess(self) -> float:
        """Return the largest of utilizations and shares of deadlines: at most 1 where all is kept."""
        parts = [
            response / network.response
            for response, network in zip(self.responses, self.networks, strict=True)
        ]
        return max(*parts, *self.utilization.values(), 0.0)

    def describe_miss(self) -> str:
        """Return a sentence on what is not kept; empty if all is."""
        if self.find_excess() <= 1 + _RATE_ROUNDING:
            return ""
        busiest = max(self.utilization.values(), default=0.0)
        if busiest > 1 + _RATE_ROUNDING:
            return f"the busiest engine would have to work {busiest:.3g} times as long as there is time"
        late = [
            (response / network.response, network.name, response, network.response)
            for response, network in zip(self.responses, self.networks, strict=True)
        ]
        _, name, response, most = max(late)
        return (
            f"network {name} ends {response:.4g} s after its release, and {most:.4g} s is its deadline"
        )


# Rates and deadlines are decimal numbers that binary ones round.
_RATE_ROUNDING = 1e-9


# Times as long as a list schedule of one round takes, for the simulation of each further round.
_SIMULATED = 6.0


class SharedSystem:
    """The conditions of a problem, as the scheduler reads them."""

    def __init__(self, problem: Problem) -> None:
        """Prepare what all schedules share."""
        conditions = problem.conditions
        assert conditions is not None
        shares = problem.engines
        self.count = shares.shape[1]
        """Number of engines; links have the numbers behind them."""
        self.of_device = [tuple(np.flatnonzero(row).tolist()) for row in shares]
        self.cores = dict.fromkeys(self.of_device[0], problem.cores) if problem.cores > 1 else {}
        self.slowdown = None if conditions.slowdown is None else conditions.slowdown.tolist()
        self.direct = None if conditions.direct is None else conditions.direct.tolist()
        self.networks = conditions.networks
        self.network_of = None if conditions.network_of is None else conditions.network_of.tolist()
        self.hyperperiod, self.inferences = math.inf, [1] * len(self.networks)
        if conditions.has_rates:
            self.hyperperiod, self.inferences = find_hyperperiod(self.networks)
        self.work = 2.0 + 2.0 * (self.slowdown is not None)
        if conditions.has_rates:
            self.work += _SIMULATED * sum(self.inferences) / len(self.inferences)
        """How many times as long a schedule takes as one without conditions."""

    def find_engines(self, device: int) -> tuple[int, ...]:
        """Return the engines of a job by its device; a link, numbered above all, is its own."""
        first_link = len(self.of_device)
        return self.of_device[device] if device < first_link else (self.count + device - first_link,)

    def make_lanes(self, devices: Sequence[int]) -> "dict[int, SharedLanes | IdleIntervals | IdleCores]":
        """Return for each device the idle intervals of its engines; of one engine they are its own."""
        idle: dict[int, IdleIntervals | IdleCores] = {}
        for engine in {engine for device in devices for engine in self.find_engines(device)}:
            cores = min(self.cores.get(engine, 1), max(1, len(devices)))
            idle[engine] = IdleCores(cores) if cores > 1 else IdleIntervals()
        lanes = {
            device: [idle[engine] for engine in self.find_engines(device)] for device in set(devices)
        }
        return {device: own[0] if len(own) == 1 else SharedLanes(own) for device, own in lanes.items()}


# The times at which devices have nothing to do, while a schedule is made.


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

    def find(self, ready: float, seconds: float) -> tuple[float, int]:
        """Return the earliest start on any core, and that core's number."""
        starts = (core.find(ready, seconds)[0] for core in self._cores)
        return min((start, number) for number, start in enumerate(starts))

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
        """Return the earliest start from `ready` on at which a job fits, and the interval's number.

        A job that waits for ever (for a tensor that cannot be sent), or never ends, starts at infinity.
        """
        if ready + seconds == math.inf:
            return math.inf, -1
        gap = max(0, bisect_right(self._start, ready) - 1)
        while max(ready, self._start[gap]) + seconds > self._end[gap]:
            gap += 1
        return max(ready, self._start[gap]), gap

    def take(self, ready: float, seconds: float) -> float:
        """Return the earliest start from `ready` on at which a job fits, and occupy that interval."""
        begin, gap = self.find(ready, seconds)
        first, last = self._start[gap], self._end[gap]
        if not seconds or begin == math.inf:
            return begin
        remaining = [(a, b) for a, b in ((first, begin), (begin + seconds, last)) if a < b]
        self._start[gap : gap + 1] = [a for a, _ in remaining]
        self._end[gap : gap + 1] = [b for _, b in remaining]
        return begin


class SharedLanes:
    """The idle intervals of several engines that a job occupies together."""

    def __init__(self, lanes: "Sequence[IdleIntervals | IdleCores]") -> None:
        self._lanes = lanes

    def find(self, ready: float, seconds: float) -> tuple[float, int]:
        """Return the earliest start from `ready` on at which a job fits on all engines, and a 0."""
        start = ready
        while True:
            latest = max(lane.find(start, seconds)[0] for lane in self._lanes)
            if latest in {start, math.inf}:
                return latest, 0
            start = latest

    def take(self, ready: float, seconds: float) -> float:
        """Return the earliest start at which a job fits on all engines, and occupy these intervals."""
        start, _ = self.find(ready, seconds)
        for lane in self._lanes:
            lane.take(start, seconds)
        return start
