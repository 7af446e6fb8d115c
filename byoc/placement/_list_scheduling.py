"""Scheduling of one inference when host and accelerators work at the same time.

The model is list scheduling for heterogeneous processors (HEFT: Topcuoglu, Hariri and Wu, IEEE
Transactions on Parallel and Distributed Systems 13, 2002), with regions as jobs:

- Each accelerator runs one job at a time, and the host as many as it has cores, without interruption.
  A job is a unit on the host, or a region, which takes its launch and all its units.
- A job starts when every tensor that it reads from outside has arrived, and its results are sent when it
  ends. Graph inputs are on the host at time 0; the makespan is the time at which the last job has ended
  and the last graph output is on the host.
- A device occupies its engines (`Conditions.engines`), which run one job at a time. Where engines slow
  one another, jobs start as soon as their engines are free, or wait for those that would slow them too
  much, whichever ends sooner: one of two simulations, and no schedule is proven the best.
- The end of a network counts by its weight.
- A tensor takes `to_host` off its accelerator and `to_device` onto another, once however many consumers
  it has there, or a direct link where that is sooner. A direct link is a latency alone. By the target
  (`Occupancy`) so are the others, or a job of the link or of the host; or a part of the region: its
  inputs are sent one after another when it starts, and its results when it has run, during which the
  accelerator does nothing else. An input of several regions of such an accelerator is sent with the
  first of them in a topological order; the others wait for that one.

So no makespan exceeds the cost that adds everything up: going back from the end, each moment belongs
to one job or one transfer, and none of them occurs twice.

Units are taken by upward rank, the longest average path from them to the end, and each goes to the
device on which it ends first, into the earliest gap there (Topcuoglu, Hariri and Wu). Ranks, and
transfers in them, may be drawn at random, gaps left open, and some units may stay where they are: the
same rule makes many starting points, and places a part of a placement anew.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np

from byoc._dataclasses import dataclass
from byoc.placement._engines import (
    Contention,
    EngineJob,
    IdleCores,
    IdleIntervals,
    RateCheck,
    SharedLanes,
    SharedSystem,
    UnlimitedCores,
    simulate_engines,
)
from byoc.placement._form_regions import choose_fusions
from byoc.placement._problem import Floats, Ints, Occupancy, Problem
from byoc.placement._unit_groups import Neighbours

# Seconds to schedule one unit, or one consumer of a tensor, on one core of about 3 GHz, by what
# transfers occupy. Where these are jobs of their own, there is more to schedule.
_ITEM_SECONDS = {
    Occupancy.nothing: 1.6e-6,
    Occupancy.device: 2.6e-6,
    Occupancy.link: 4.5e-6,
    Occupancy.host: 4.5e-6,
}
# Of so many units in all, schedules are kept: each takes about 50 bytes for a unit.
_MOST_KEPT = 2**19
# All orders of so many jobs are tried where asked for.
_FEW_JOBS = 6


@dataclass(frozen=True, eq=False)
class InferenceSchedule:
    """Start and end of each unit's job; its device is in the labels."""

    start: Floats
    """float64 (units,): seconds from the start of the inference; equal for all units of a region."""
    end: Floats
    """float64 (units,)."""
    makespan: float
    """Seconds until the last job has ended and the last output is on the host."""
    ends: Mapping[int, float]
    """The same seconds by network; one without jobs is not in it."""


class ListScheduler:
    """List scheduling of placements of one problem."""

    def __init__(self, problem: Problem) -> None:
        """Prepare the data shared by all schedules, O(tensors + entries)."""
        self.problem = problem
        self.around = Neighbours(problem)
        self.seconds: list[list[float]] = problem.seconds.tolist()
        self.launch: list[float] = problem.launch.tolist()
        self.edges = list(zip(*(side.tolist() for side in problem.edges), strict=True))
        self.occupies = (Occupancy.nothing, *problem.occupies)
        item = max(_ITEM_SECONDS[kind] for kind in self.occupies)
        self.step_seconds = item * (1 + problem.units + len(problem.consumers))
        """Seconds that one schedule takes on one core of about 3 GHz."""
        self.system = None if problem.conditions is None else SharedSystem(problem)
        if self.system is not None:
            self.step_seconds *= self.system.work
        self._known: dict[tuple[int, ...], InferenceSchedule | None] = {}

    def schedule(self, labels: Sequence[int], regions: Sequence[int]) -> InferenceSchedule | None:
        """Return a list schedule of a placement; None if its regions form a cycle.
        Its makespan is infinite where a tensor cannot be sent to where it is needed. Jobs are taken by
        upward rank, the longest path from their start to the end, and each goes into the earliest gap of
        its device that it fits in (Topcuoglu et al., section 5.1). Searches come back to a placement
        often, 400 times on a problem of ten units, so that schedules are kept.
        """
        firsts: dict[int, int] = {}  # the numbers of regions are arbitrary
        key = (*labels, *(-1 if r < 0 else firsts.setdefault(r, len(firsts)) for r in regions))
        if key not in self._known:
            if len(self._known) * len(key) >= _MOST_KEPT:
                self._known.clear()
            jobs = _ScheduledJobs(self, labels, regions)
            order = jobs.order_by_rank()
            self._known[key] = None if order is None else jobs.describe(jobs.find_times(order))
        return self._known[key]

    def schedule_few(
        self, labels: Sequence[int], regions: Sequence[int]
    ) -> tuple[InferenceSchedule | None, bool]:
        """Return the best schedule of a placement of at most six jobs, of more the list schedule.

        Returns None if its regions form a cycle, and whether no schedule is shorter. All orders of the
        jobs are tried; one of them is that of the start times of the best schedule.
        """
        jobs = _ScheduledJobs(self, labels, regions)
        order = jobs.order_by_rank()
        if order is None:
            return None, True
        best, few = jobs.find_times(order), len(order) <= _FEW_JOBS
        for each in jobs.iterate_orders() if few else ():
            found = jobs.find_times(each)
            if found[2] < best[2]:
                best = found
        is_simulated = self.system is not None and self.system.slowdown is not None
        return jobs.describe(best), few and not is_simulated

    def check_rates(self, labels: Sequence[int], regions: Sequence[int]) -> RateCheck | None:
        """Simulate the rates of networks in a placement; None if its regions form a cycle.

        All networks are released at once, and again after each of their periods; of the jobs that are
        ready the one of the earliest deadline starts first (EDF: Liu and Layland, Journal of the ACM 20,
        1973), and none is interrupted.
        """
        assert self.system is not None
        jobs = _ScheduledJobs(self, labels, regions)
        order = jobs.order_by_rank()
        return None if order is None else jobs.check_rates(order, self.system)


class _ScheduledJobs:
    """The jobs of a placement and their dependencies."""

    def __init__(self, scheduler: ListScheduler, labels: Sequence[int], regions: Sequence[int]) -> None:
        problem = scheduler.problem
        number: dict[tuple[bool, int], int] = {}
        self.of_unit: list[int] = []
        self.device: list[int] = []
        self.seconds: list[float] = []
        for unit, (label, region) in enumerate(zip(labels, regions, strict=True)):
            key = (True, region) if label else (False, unit)
            job = number.get(key)
            if job is None:
                job = number[key] = len(self.device)
                self.device.append(label)
                self.seconds.append(scheduler.launch[label - 1] if label else 0.0)
            self.of_unit.append(job)
            self.seconds[job] += scheduler.seconds[unit][label]
        if problem.fusions:
            placed = np.array(labels, np.int64), np.array(regions, np.int64)
            for chosen in choose_fusions(problem, *placed):
                fusion = problem.fusions[chosen]
                job = self.of_unit[fusion.members[0]]
                self.seconds[job] = max(0.0, self.seconds[job] - fusion.saving)
        self.cores = problem.cores
        self.release = [0.0] * len(self.device)
        self.tail = [0.0] * len(self.device)
        self.following: list[list[tuple[int, float]]] = [[] for _ in self.device]
        self._occupies = scheduler.occupies
        self._system = scheduler.system
        self.network = [0] * len(self.device)
        if self._system is not None and self._system.network_of is not None:
            for unit, job in enumerate(self.of_unit):
                self.network[job] = self._system.network_of[unit]
        self._position: list[int] = []
        self._network = 0  # of the tensor that is connected
        self._edges = scheduler.edges
        if all(kind is Occupancy.nothing for kind in scheduler.occupies):
            self._connect(scheduler.around)
        else:
            self._connect_with_transfers(scheduler.around)

    def _connect(self, around: Neighbours) -> None:
        for tensor, producer in enumerate(around.producer):
            source = self.of_unit[producer] if producer >= 0 else -1
            home = self.device[source] if producer >= 0 else 0
            up = around.to_host[tensor][home - 1] if home else 0.0
            if around.is_output[tensor] and home:
                self.tail[source] = max(self.tail[source], up)
            for reader in around.consumers[tensor]:
                job = self.of_unit[reader]
                if job == source:
                    continue
                there = self.device[job]
                moving = 0.0
                if there != home:
                    moving = up + (around.to_device[tensor][there - 1] if there else 0.0)
                    if home and there and self._system is not None and self._system.direct is not None:
                        moving = min(moving, self._system.direct[tensor][home - 1][there - 1])
                if source < 0:
                    self.release[job] = max(self.release[job], moving)
                else:
                    self.following[source].append((job, moving))

    def _connect_with_transfers(self, around: Neighbours) -> None:
        """Connect the jobs where some transfers occupy a device, a link or the host."""
        for tensor, producer in enumerate(around.producer):
            source = self.of_unit[producer] if producer >= 0 else -1
            ends = [source, *(self.of_unit[reader] for reader in around.consumers[tensor][:1])]
            self._network = self.network[ends[-1]] if ends[-1] >= 0 else 0
            home = self.device[source] if producer >= 0 else 0
            jobs: dict[int, list[int]] = {}
            for reader in around.consumers[tensor]:
                job = self.of_unit[reader]
                if job != source and job not in jobs.setdefault(self.device[job], []):
                    jobs[self.device[job]].append(job)
            for job in jobs.pop(home, []):
                if source >= 0:
                    self.following[source].append((job, 0.0))
            self._take_direct_links(tensor, home, source, jobs, around)
            origin, delay = source, 0.0
            if home and (jobs or around.is_output[tensor]):
                origin, delay = self._send(tensor, source, around)
                if around.is_output[tensor]:
                    self.tail[origin] = max(self.tail[origin], delay)
            for there, arriving in jobs.items():
                down = around.to_device[tensor][there - 1] if there else 0.0
                self._receive(origin, delay, arriving, down)

    def _take_direct_links(
        self, tensor: int, home: int, source: int, jobs: dict[int, list[int]], around: Neighbours
    ) -> None:
        """Connect those of `jobs`, by device, that a direct link reaches sooner than the host does."""
        if self._system is None or self._system.direct is None or not home:
            return
        for there in [each for each in jobs if each]:
            straight = self._system.direct[tensor][home - 1][there - 1]
            by_host = around.to_host[tensor][home - 1] + around.to_device[tensor][there - 1]
            if straight < by_host:
                self.following[source] += [(job, straight) for job in jobs.pop(there)]

    def _send(self, tensor: int, source: int, around: Neighbours) -> tuple[int, float]:
        """Take a tensor off the device of its job; return the job that ends with it, and the latency."""
        home = self.device[source]
        seconds = around.to_host[tensor][home - 1]
        kind = self._occupies[home]
        if kind is Occupancy.nothing:
            return source, seconds
        if kind is Occupancy.device:
            self.seconds[source] += seconds
            return source, 0.0
        transfer = self._add_transfer(home, seconds)
        self.following[source].append((transfer, 0.0))
        return transfer, 0.0

    def _receive(self, origin: int, delay: float, jobs: list[int], seconds: float) -> None:
        """Bring a tensor to the device of some jobs; it is on the host `delay` after `origin`."""
        there = self.device[jobs[0]]
        kind = self._occupies[there]
        if kind is Occupancy.nothing:
            self._wait_for(origin, jobs, delay + seconds)
        elif kind is Occupancy.device:
            if len(jobs) > 1:
                jobs = sorted(jobs, key=self._find_positions().__getitem__)
            self.seconds[jobs[0]] += seconds
            self._wait_for(origin, jobs[:1], delay)
            self._wait_for(jobs[0], jobs[1:], 0.0)
        else:
            transfer = self._add_transfer(there, seconds)
            self._wait_for(origin, [transfer], delay)
            self._wait_for(transfer, jobs, 0.0)

    def _find_positions(self) -> list[int]:
        """Return the position of each unit's job in a topological order, the same one every time."""
        if not self._position:
            jobs = len(set(self.of_unit))
            before: list[set[int]] = [set() for _ in range(jobs)]
            for unit, target in self._edges:
                if self.of_unit[unit] != self.of_unit[target]:
                    before[self.of_unit[target]].add(self.of_unit[unit])
            self._position = [0] * jobs
            for place, job in enumerate(_sort_jobs(before)):
                self._position[job] = place
        return self._position

    def _wait_for(self, origin: int, jobs: list[int], delay: float) -> None:
        for job in jobs:
            if origin < 0:
                self.release[job] = max(self.release[job], delay)
            else:
                self.following[origin].append((job, delay))

    def _add_transfer(self, device: int, seconds: float) -> int:
        """Add a job that moves a tensor to or from a device, and return its number."""
        on_host = self._occupies[device] is Occupancy.host
        self.device.append(0 if on_host else len(self._occupies) + device)
        self.seconds.append(seconds)
        self.release.append(0.0)
        self.tail.append(0.0)
        self.following.append([])
        self.network.append(self._network)
        return len(self.device) - 1

    def order_by_rank(self) -> list[int] | None:
        """Return the jobs by falling upward rank; None if they form a cycle."""
        waits = [0] * len(self.device)
        for following in self.following:
            for job, _ in following:
                waits[job] += 1
        order = [job for job, waiting in enumerate(waits) if not waiting]
        for job in order:  # grows as it goes
            for after, _ in self.following[job]:
                waits[after] -= 1
                if not waits[after]:
                    order.append(after)
        if len(order) < len(self.device):
            return None
        rank = list(self.seconds)
        for job in reversed(order):
            longest = self.tail[job]
            for after, moving in self.following[job]:
                longest = max(longest, moving + rank[after])
            rank[job] += longest
        # Sorting is stable: of equal ranks, a job comes before those that wait for it.
        return sorted(order, key=lambda job: -rank[job])

    def iterate_orders(self) -> Iterator[list[int]]:
        """Yield all orders of the jobs in which none comes before one that it waits for."""
        before: list[set[int]] = [set() for _ in self.device]
        for job, following in enumerate(self.following):
            for after, _ in following:
                before[after].add(job)
        pending: list[list[int]] = [[]]
        while pending:
            order = pending.pop()
            if len(order) == len(before):
                yield order
            done = set(order)
            ready = (job for job, needed in enumerate(before) if job not in done and needed <= done)
            pending.extend([*order, job] for job in ready)

    def describe(self, times: tuple[list[float], list[float], float]) -> InferenceSchedule:
        """Return the schedule of the units for what `assign_times` gives."""
        start, end, makespan = times
        ends: dict[int, float] = {}
        for network, last, tail in zip(self.network, end, self.tail, strict=True):
            ends[network] = max(ends.get(network, 0.0), last + tail)
        return InferenceSchedule(
            np.array([start[job] for job in self.of_unit], np.float64),
            np.array([end[job] for job in self.of_unit], np.float64),
            makespan,
            ends,
        )

    def find_times(self, order: Sequence[int]) -> tuple[list[float], list[float], float]:
        """Return the start and end of every job in an order of their priority, and the makespan."""
        if self._system is None:
            return self.assign_times(order)
        if self._system.slowdown is None:
            return self._weigh(*self._share_engines(order, self._system))
        both = (self._simulate(order, self._system, is_patient) for is_patient in (False, True))
        return min(both, key=lambda times: times[2])

    def _weigh(self, start: list[float], end: list[float]) -> tuple[list[float], list[float], float]:
        """Return times with the makespan, in which the end of a network counts by its weight."""
        assert self._system is not None
        weights = [each.weight for each in self._system.networks] or [1.0]
        ends = zip(end, self.tail, self.network, strict=True)
        makespan = max(((last + tail) * weights[network] for last, tail, network in ends), default=0.0)
        return start, end, makespan

    def _share_engines(
        self, order: Sequence[int], system: SharedSystem
    ) -> tuple[list[float], list[float]]:
        """Return times by which each job in turn goes where all its engines are free first."""
        ready, start, end = (list(self.release) for _ in range(3))
        lanes = system.make_lanes(self.device)
        for job in order:
            start[job] = lanes[self.device[job]].take(ready[job], self.seconds[job])
            end[job] = start[job] + self.seconds[job]
            for after, moving in self.following[job]:
                ready[after] = max(ready[after], end[job] + moving)
        return start, end

    def _make_engine_jobs(self, order: Sequence[int], system: SharedSystem) -> list[EngineJob]:
        place = {job: float(number) for number, job in enumerate(order)}
        return [
            EngineJob(system.find_engines(device), seconds, release, (place[one],), following)
            for one, (device, seconds, release, following) in enumerate(
                zip(self.device, self.seconds, self.release, self.following, strict=True)
            )
        ]

    def _simulate(
        self, order: Sequence[int], system: SharedSystem, is_patient: bool
    ) -> tuple[list[float], list[float], float]:
        assert system.slowdown is not None
        jobs = self._make_engine_jobs(order, system)
        return self._weigh(
            *simulate_engines(jobs, system.cores, Contention(system.slowdown, is_patient))
        )

    def check_rates(self, order: Sequence[int], system: SharedSystem) -> RateCheck:
        """Return the utilization of engines, and the responses in one hyperperiod."""
        networks, once = system.networks, self._make_engine_jobs(order, system)
        busy: dict[int, float] = {}
        for one, network in zip(once, self.network, strict=True):
            for engine in one.engines:
                seconds = one.seconds / system.cores.get(engine, 1)
                busy[engine] = busy.get(engine, 0.0) + seconds / networks[network].period
        jobs, numbers = self._release_jobs(once, system)
        contention = None if system.slowdown is None else Contention(system.slowdown, False)
        _, end = simulate_engines(jobs, system.cores, contention)
        responses = [0.0] * len(networks)
        for last, (job, released) in zip(end, numbers, strict=True):
            network = self.network[job]
            responses[network] = max(responses[network], last + self.tail[job] - released)
        return RateCheck(busy, tuple(responses), networks)

    def _release_jobs(
        self, once: Sequence[EngineJob], system: SharedSystem
    ) -> tuple[list[EngineJob], list[tuple[int, float]]]:
        """Return the jobs of all inferences of a hyperperiod, and the number and release of each."""
        jobs: list[EngineJob] = []
        numbers: list[tuple[int, float]] = []
        for network, (each, count) in enumerate(zip(system.networks, system.inferences, strict=True)):
            own = [job for job, its in enumerate(self.network) if its == network]
            place = {job: number for number, job in enumerate(own)}
            for number in range(count):
                first, released = len(jobs), number * each.period if number else 0.0
                due = released + each.response
                for job in own:
                    one = once[job]
                    following = [(first + place[after], delay) for after, delay in one.following]
                    release = one.release + released
                    rank = (due, *one.rank)
                    jobs.append(EngineJob(one.engines, one.seconds, release, rank, following))
                    numbers.append((job, released))
        return jobs, numbers

    def assign_times(self, order: Sequence[int]) -> tuple[list[float], list[float], float]:
        """Return the start and end of every job, and the makespan."""
        ready, start, end = (list(self.release) for _ in range(3))
        idle: dict[int, IdleIntervals | IdleCores | UnlimitedCores] = {
            device: IdleIntervals() for device in set(self.device)
        }
        if self.cores > 1:
            # With a core for each of its jobs the host has none that waits.
            enough = self.cores >= self.device.count(0)
            idle[0] = UnlimitedCores() if enough else IdleCores(self.cores)
        makespan = 0.0
        for job in order:
            start[job] = idle[self.device[job]].take(ready[job], self.seconds[job])
            end[job] = start[job] + self.seconds[job]
            makespan = max(makespan, end[job] + self.tail[job])
            for after, moving in self.following[job]:
                ready[after] = max(ready[after], end[job] + moving)
        return start, end, makespan


def _sort_jobs(before: list[set[int]]) -> list[int]:
    """Return the jobs in topological order; those in or after a circle are left out."""
    after: list[list[int]] = [[] for _ in before]
    waits = [len(each) for each in before]
    for job, needed in enumerate(before):
        for one in sorted(needed):
            after[one].append(job)
    order = [job for job, waiting in enumerate(waits) if not waiting]
    for job in order:  # grows as it goes
        for other in after[job]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def renumber_regions(labels: Sequence[int], regions: Sequence[int]) -> tuple[Ints, Ints]:
    """Return both as int64 (units,), the regions renumbered 0, 1, ... in order of appearance."""
    number: dict[int, int] = {}
    renumbered = [number.setdefault(region, len(number)) if region >= 0 else -1 for region in regions]
    return np.array(labels, np.int64), np.array(renumbered, np.int64)


# Placements by the earliest finish of each unit, for the makespan (HEFT).


# Seconds to place a unit, or a reader of a tensor, for each device, on one core of about 3 GHz.
_PLACING_SECONDS = 1.5e-6
# Drawn ranks are made of seconds between these parts of the average ones.
_LEAST, _MOST = 0.6, 1.4
_LEAST_MOVED, _MOST_MOVED = 0.0, 2.0  # of transfers, which take nothing within a device


class EarliestFinish:
    """Labels of a problem, each unit launched by itself; what transfers occupy is left out."""

    def __init__(self, problem: Problem) -> None:
        """Prepare what all placements share, O(tensors + entries)."""
        self._problem = problem
        self._around = Neighbours(problem)
        self._costs: list[list[float]] = problem.costs.tolist()
        self._launch = [0.0, *problem.launch.tolist()]
        allowed = np.where(problem.allowed, problem.seconds, 0.0)
        self._average: list[float] = (
            allowed.sum(axis=1) / np.maximum(1, problem.allowed.sum(axis=1))
        ).tolist()
        transfers = np.hstack([problem.to_device, problem.to_host])
        transfers = np.where(np.isfinite(transfers), transfers, 0.0)
        self._moving: list[float] = (transfers.sum(axis=1) / max(1, transfers.shape[1])).tolist()
        self._system = None if problem.conditions is None else SharedSystem(problem)
        items = 1 + problem.units + len(problem.consumers)
        self.step_seconds = _PLACING_SECONDS * max(1, problem.devices) * items
        """Seconds that one placement takes on one core of about 3 GHz."""

    def place(self, draw: random.Random | None = None, kept: Sequence[int] | None = None) -> Ints:
        """Return labels, int64 (units,): by average ranks, or by ranks drawn around them.

        It is drawn, too, whether units fill gaps, or go behind what their device has already; neither is
        better on all graphs. `kept` has the device of each unit that stays, and -1 for the others.
        """
        problem = self._problem
        end = [0.0] * problem.units
        labels = [0] * problem.units
        lanes = self._make_lanes()
        fills_gaps = draw is None or draw.random() < 0.5
        behind: dict[int, float] = {}
        rank = self.rank_units(draw)
        for unit in sorted(range(problem.units), key=lambda unit: (-rank[unit], unit)):
            fixed = -1 if kept is None else kept[unit]
            finish, chosen, lane, ready = inf, 0, lanes[0][0], inf
            for device, seconds in enumerate(self._costs[unit]):
                if seconds == inf or fixed not in (-1, device):
                    continue
                arrived = self._find_arrival(unit, device, labels, end)
                taken = self._launch[device] + seconds
                for each in lanes[device]:
                    begin = arrived if fills_gaps else max(arrived, behind.get(id(each), 0.0))
                    ends = each.find(begin, taken)[0] + taken
                    if ends < finish:
                        finish, chosen, lane, ready = ends, device, each, begin
            labels[unit], end[unit] = chosen, finish
            behind[id(lane)] = finish
            if finish < inf:
                lane.take(ready, self._launch[chosen] + self._costs[unit][chosen])
        return np.array(labels, np.int64)

    def _make_lanes(self) -> Sequence[Sequence[IdleIntervals | IdleCores | SharedLanes]]:
        """Return for each device what may run a unit: cores of the host, or all its engines together."""
        problem = self._problem
        if self._system is not None:
            devices = list(range(1 + problem.devices))
            shared = self._system.make_lanes(devices * max(1, problem.units))
            return [[shared[device]] for device in devices]
        hosts = [IdleIntervals() for _ in range(max(1, min(problem.cores, problem.units)))]
        return [hosts, *([IdleIntervals()] for _ in range(problem.devices))]

    def _find_arrival(
        self, unit: int, device: int, labels: Sequence[int], end: Sequence[float]
    ) -> float:
        """Return when all that a unit reads is on a device."""
        around, arrived = self._around, 0.0
        for tensor in around.read[unit]:
            producer = around.producer[tensor]
            home, made = (labels[producer], end[producer]) if producer >= 0 else (0, 0.0)
            at_home = made
            if home:
                made += around.to_host[tensor][home - 1] if home != device else 0.0
            if device and home != device:
                made += around.to_device[tensor][device - 1]
                if home and self._system is not None and self._system.direct is not None:
                    made = min(made, at_home + self._system.direct[tensor][home - 1][device - 1])
            arrived = max(arrived, made)
        return arrived

    def rank_units(self, draw: random.Random | None = None) -> list[float]:
        """Return the seconds of the longest average path from each unit to the end, or drawn ones."""
        around, moving = self._around, self._moving
        rank = list(self._average)
        if draw is not None:
            rank = [seconds * draw.uniform(_LEAST, _MOST) for seconds in rank]
            if draw.random() < 0.5:  # neither is better on all graphs
                moving = [seconds * draw.uniform(_LEAST_MOVED, _MOST_MOVED) for seconds in moving]
        for unit in reversed(range(self._problem.units)):
            longest = 0.0
            for tensor in around.made[unit]:
                for reader in around.consumers[tensor]:
                    longest = max(longest, moving[tensor] + rank[reader])
            rank[unit] += longest
        return rank
