"""The least makespan of small problems by another hand: all labels, all regions, all orders of all jobs.

A schedule is built job by job in the order of the starts, so that each one occurs once. Transfers that
occupy a link or the host are jobs of their own. Where they occupy the device they are part of a region;
an input that several regions read is sent with any one of them, and the others wait for that region.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

from helpers.placement_oracle import every_region, readers

from byoc.placement import Occupancy, Problem

Resource = tuple[str, int]
"""Where a job runs: the host, a device, or the link of a device."""


@dataclass
class Job:
    """A unit of the host, a region, or a transfer."""

    resource: Resource
    seconds: float
    needs: list[tuple[int, float]] = field(default_factory=list)
    """Jobs that end before, -1 for the start of all, and the seconds that pass between."""
    tail: float = 0.0
    """Seconds from the end until all outputs of the graph are on the host."""


def gather_jobs(problem: Problem, labels: list[int], regions: list[int]) -> Iterator[list[Job]]:
    """Yield the jobs of a placement, for each choice of the region that an input is sent with."""
    names = [
        ("region", region) if label else ("unit", unit)
        for unit, (label, region) in enumerate(zip(labels, regions, strict=True))
    ]
    order = list(dict.fromkeys(names))
    of_unit = [order.index(name) for name in names]
    device = [labels[of_unit.index(number)] for number in range(len(order))]
    shared: list[tuple[int, int, list[int]]] = []
    for tensor, made in enumerate(problem.producer.tolist()):
        for there in range(1, 1 + problem.devices):
            jobs = sorted({of_unit[unit] for unit in readers(problem, tensor) if labels[unit] == there})
            home = labels[made] if made >= 0 else 0
            if jobs and home != there and problem.occupies[there - 1] is Occupancy.device:
                shared.append((tensor, there, jobs))
    for firsts in product(*(jobs for _, _, jobs in shared)):
        chosen = {
            (tensor, there): first for (tensor, there, _), first in zip(shared, firsts, strict=True)
        }
        yield _connect(problem, labels, of_unit, device, chosen)


def _connect(
    problem: Problem,
    labels: list[int],
    of_unit: list[int],
    device: list[int],
    chosen: dict[tuple[int, int], int],
) -> list[Job]:
    jobs = [
        Job(("device", d) if d else ("host", 0), float(problem.launch[d - 1]) if d else 0.0)
        for d in device
    ]
    for unit, number in enumerate(of_unit):
        jobs[number].seconds += float(problem.seconds[unit, labels[unit]])
    for tensor, made in enumerate(problem.producer.tolist()):
        source, home = (of_unit[made], labels[made]) if made >= 0 else (-1, 0)
        ends = {of_unit[unit] for unit in readers(problem, tensor)} - {source}
        away = {number for number in ends if device[number] != home}
        for number in ends - away:
            jobs[number].needs.append((source, 0.0))
        at, delay = source, 0.0
        if home and (away or problem.is_output[tensor]):
            back = float(problem.to_host[tensor, home - 1])
            at, delay = _move(jobs, problem.occupies, home, (source, 0.0), back)
            if problem.is_output[tensor]:
                jobs[at].tail = max(jobs[at].tail, delay)
        for number in away:
            if not device[number]:
                jobs[number].needs.append((at, delay))
        for there in sorted({device[number] for number in away} - {0}):
            here = [number for number in away if device[number] == there]
            seconds = float(problem.to_device[tensor, there - 1])
            if (tensor, there) in chosen:
                first = chosen[tensor, there]
                jobs[first].seconds += seconds
                for number in here:
                    jobs[number].needs.append((at, delay) if number == first else (first, 0.0))
            else:
                arrival = _move(jobs, problem.occupies, there, (at, delay), seconds)
                for number in here:
                    jobs[number].needs.append(arrival)
    return jobs


def _move(
    jobs: list[Job],
    kinds: Sequence[Occupancy],
    device: int,
    origin: tuple[int, float],
    seconds: float,
) -> tuple[int, float]:
    """Move a tensor over the link of a device; return the job after which, and when, it has arrived."""
    source, delay = origin
    occupies = kinds[device - 1]
    if occupies is Occupancy.nothing:
        return source, delay + seconds
    if occupies is Occupancy.device:  # results: inputs are dealt with elsewhere
        jobs[source].seconds += seconds
        return source, delay
    resource = ("host", 0) if occupies is Occupancy.host else ("link", device)
    jobs.append(Job(resource, seconds, [(source, delay)]))
    return len(jobs) - 1, 0.0


def find_least_makespan(jobs: list[Job], cores: int, most: float) -> float:
    """Return the least makespan of some jobs in any order below `most`, else `most`."""
    best = most
    ends: dict[int, float] = {-1: 0.0}
    free: dict[Resource, tuple[float, ...]] = {
        job.resource: (0.0,) * (min(cores, len(jobs)) if job.resource[0] == "host" else 1)
        for job in jobs
    }
    tail = [_longest_tail(jobs, number, {}) for number in range(len(jobs))]

    def go(last: float, latest: float) -> None:
        nonlocal best
        if latest >= best:
            return
        if len(ends) == len(jobs) + 1:
            best = latest
            return
        for number, job in enumerate(jobs):
            if number in ends or any(need not in ends for need, _ in job.needs):
                continue
            slots = free[job.resource]
            ready = max((ends[need] + delay for need, delay in job.needs), default=0.0)
            start = max(ready, slots[0])
            if start < last or start + job.seconds + tail[number] >= best:
                continue
            end = start + job.seconds
            ends[number] = end
            free[job.resource] = tuple(sorted((end, *slots[1:])))
            go(start, max(latest, end + job.tail))
            free[job.resource] = slots
            del ends[number]

    go(0.0, 0.0)
    return best


def _longest_tail(jobs: list[Job], number: int, known: dict[int, float]) -> float:
    """Return the longest way from the end of a job to the end of all; inf where it waits for itself."""
    if number not in known:
        known[number] = inf  # while it is being found
        longest = jobs[number].tail
        for after, job in enumerate(jobs):
            for need, delay in job.needs:
                if need == number:
                    longest = max(longest, delay + job.seconds + _longest_tail(jobs, after, known))
        known[number] = longest
    return known[number]


def slow_makespan(problem: Problem) -> float:
    """Return the least makespan of all lawful labels and regions, all choices and all orders."""
    best = inf
    for labels, regions in every_region(problem):
        for jobs in gather_jobs(problem, list(labels), regions):
            best = find_least_makespan(jobs, problem.cores, best)
    return best
