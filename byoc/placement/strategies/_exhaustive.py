"""Exhaustive search over labels and regions, a reference for small problems."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement._form_regions import form_regions
from byoc.placement._fusions import choose_fusions
from byoc.placement._hard_limits import find_broken_limit
from byoc.placement._problem import UNLIMITED, Bools, Floats, Ints, Problem
from byoc.placement._strategy import ALL_REQUIREMENTS, CHEAPER_ON_HOST, Placement


@dataclass(frozen=True)
class _Continuation:
    """A way to finish: seconds of launches minus savings, and the launches in order."""

    seconds: float
    launches: tuple[int, ...] = ()


_IMPOSSIBLE = _Continuation(inf)


def find_best_regions(problem: Problem, labels: Ints) -> tuple[float, Ints] | None:
    """Return launches minus savings of the best regions for labels, and the regions, int64 (units,).
    None if no regions keep the limits. Tries every order of launches and, where it matters which units
    are launched together, every choice of them: regions that can be launched one after another are
    exactly those whose contraction is acyclic.
    """
    search = _RegionSearch(problem, labels.tolist())
    best = search.finish(search.run_until_blocked(0), tuple(problem.max_regions.tolist()))
    if best.seconds == inf:
        return None
    regions = np.full(problem.units, -1, np.int64)
    for number, launch in enumerate(best.launches):
        regions[[unit for unit in range(problem.units) if launch >> unit & 1]] = number
    return best.seconds, regions


@dataclass(eq=False)
class _RegionSearch:
    """The search state; sets of units are bits of integers."""

    problem: Problem
    labels: list[int]
    before: list[int] = field(init=False)
    """The units whose results each unit needs."""
    known: dict[tuple[int, tuple[int, ...]], _Continuation] = field(default_factory=dict)
    savings: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = [0] * self.problem.units
        for u, v in zip(*(side.tolist() for side in self.problem.edges), strict=True):
            self.before[v] |= 1 << u

    def run_until_blocked(self, done: int, device: int = 0) -> int:
        """Return the units that have run once a device, or the host, has run all it can."""
        for unit, needed in enumerate(self.before):
            if self.labels[unit] == device and not needed & ~done:
                done |= 1 << unit
        return done

    def finish(self, done: int, allowed: tuple[int, ...]) -> _Continuation:
        """Return the best continuation, with so many launches allowed for each accelerator."""
        if done == (1 << self.problem.units) - 1:
            return _Continuation(0.0)
        key = done, allowed
        if key not in self.known:
            ways = (
                self._launch(launch, device, done, allowed)
                for device, launch in self._next_launches(done)
            )
            self.known[key] = min(ways, key=lambda way: way.seconds, default=_IMPOSSIBLE)
        return self.known[key]

    def _launch(self, launch: int, device: int, done: int, allowed: tuple[int, ...]) -> _Continuation:
        left = allowed[device - 1]
        if left <= 0:
            return _IMPOSSIBLE
        fewer = left if left == UNLIMITED else left - 1
        rest = self.finish(
            self.run_until_blocked(done | launch), (*allowed[: device - 1], fewer, *allowed[device:])
        )
        seconds = float(self.problem.launch[device - 1]) - self._best_saving(launch) + rest.seconds
        return _Continuation(seconds, (launch, *rest.launches))

    def _next_launches(self, done: int) -> Iterator[tuple[int, int]]:
        """Yield each device with each set of units that it can launch next."""
        problem = self.problem
        for device in range(1, 1 + problem.devices):
            ready = self.run_until_blocked(done, device) & ~done
            if not ready:
                continue
            limited = problem.min_nodes[device - 1] > 1 or problem.max_nodes[device - 1] < UNLIMITED
            fused = any(fusion.device == device for fusion in problem.fusions)
            if not (limited or fused or problem.connected[device - 1]):
                yield device, ready  # waiting never helps
                continue
            launch = ready
            while launch:
                if self._can_launch(launch, device, done):
                    yield device, launch
                launch = (launch - 1) & ready

    def _can_launch(self, launch: int, device: int, done: int) -> bool:
        members = [unit for unit in range(self.problem.units) if launch >> unit & 1]
        nodes = int(self.problem.size[members].sum())
        least, most = (limit[device - 1] for limit in (self.problem.min_nodes, self.problem.max_nodes))
        if not least <= nodes <= most or any(self.before[unit] & ~(done | launch) for unit in members):
            return False
        return not self.problem.connected[device - 1] or self._is_connected(launch, members)

    def _is_connected(self, launch: int, members: list[int]) -> bool:
        reached = 1 << members[0]
        for _ in members:
            for unit in members:
                if self.before[unit] & reached:
                    reached |= 1 << unit
                if reached >> unit & 1:
                    reached |= self.before[unit] & launch
        return reached == launch

    def _best_saving(self, launch: int) -> float:
        if not self.problem.fusions:
            return 0.0
        if launch not in self.savings:
            members = np.array([launch >> unit & 1 for unit in range(self.problem.units)], np.int64)
            chosen = choose_fusions(self.problem, np.array(self.labels) * members, members - 1)
            self.savings[launch] = sum(self.problem.fusions[number].saving for number in chosen)
        return self.savings[launch]


_MOST = 2**16


@dataclass(frozen=True)
class Exhaustive:
    """Try every placement of up to 16 units on one accelerator, or of fewer on several.

    The regions are the best that the limits allow, whether `form_regions` would form them or not.
    """

    name: ClassVar[str] = "exhaustive"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS

    def solve(self, problem: Problem) -> Placement:
        """Return the best placement. Raises InputError if there are too many, or none is valid."""
        count = (1 + problem.devices) ** problem.units
        if count > _MOST:
            raise InputError(
                f"strategy exhaustive tries at most {_MOST} placements (16 units with one "
                f"accelerator); {problem.units} units and {problem.devices} accelerators have "
                f"{1 + problem.devices}^{problem.units}: choose another strategy"
            )
        weights = (1 + problem.devices) ** np.arange(problem.units)
        labels = np.arange(count)[:, np.newaxis] // weights % (1 + problem.devices)
        seconds = np.where(_is_valid(problem, labels), _execution_and_transfer(problem, labels), np.inf)
        if not np.isfinite(seconds).any():
            raise InputError("strategy exhaustive: no placement keeps all the limits")
        # Of equal costs, the placement with the most units on the host.
        best = int(np.lexsort((np.count_nonzero(labels, axis=1), seconds))[0])
        if not _regions_matter(problem):
            return Placement.from_labels(
                problem, labels[best], float(seconds[best]), why_host=CHEAPER_ON_HOST
            )
        return _search_regions(problem, labels, seconds)


def _is_valid(problem: Problem, labels: Ints) -> Bools:
    """Mark the placements that accelerators accept and have memory for, bool (placements,)."""
    kept = [problem.allowed[np.arange(problem.units), labels].all(axis=1)]
    for d in np.flatnonzero(np.isfinite(problem.capacity)):
        taken = (labels == 1 + d) @ problem.memory[:, d]
        kept.append(taken <= problem.capacity[d] * (1 + 2.0**-40))
    every: Bools = np.all(kept, axis=0)
    return every


def _regions_matter(problem: Problem) -> bool:
    limits = (
        (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED) | (problem.max_regions < UNLIMITED)
    )
    return bool(problem.launch.any() or limits.any() or problem.fusions)


def _execution_and_transfer(problem: Problem, labels: Ints) -> Floats:
    """Return the costs of many placements: int64 (placements, units) to float64 (placements,)."""
    seconds: Floats = problem.seconds[np.arange(problem.units), labels].sum(axis=1)
    for tensor, producer in enumerate(problem.producer.tolist()):
        first, last = problem.consumer_start[tensor : tensor + 2]
        at = labels[:, problem.consumers[first:last]]
        home = labels[:, producer] if producer >= 0 else np.zeros(len(labels), np.int64)
        leaves = ((at != home[:, np.newaxis]).any(axis=1) | problem.is_output[tensor]) & (home > 0)
        seconds[leaves] += problem.to_host[tensor, home[leaves] - 1]
        for device in range(1, 1 + problem.devices):
            arrives = (at == device).any(axis=1) & (home != device)
            seconds[arrives] += problem.to_device[tensor, device - 1]
    return seconds


def _search_regions(problem: Problem, labels: Ints, seconds: Floats) -> Placement:
    """Return the best placement including launches, savings and limits on regions."""
    used = np.stack([(labels == 1 + d).any(axis=1) for d in range(problem.devices)], axis=1)
    at_least = seconds + used @ problem.launch
    for fusion in problem.fusions:
        at_least -= fusion.saving * (labels[:, fusion.members] == fusion.device).all(axis=1)
    best, total, regions = -1, np.inf, labels[0]
    for number in np.lexsort((np.count_nonzero(labels, axis=1), at_least)).tolist():
        if at_least[number] >= total:
            break
        found = find_best_regions(problem, labels[number])
        if found is not None and seconds[number] + found[0] < total:
            best, total, regions = number, float(seconds[number]) + found[0], found[1]
    if best < 0:
        raise InputError("strategy exhaustive: no placement keeps all the limits")
    formed = form_regions(problem, labels[best])
    # Prefer the regions that `form_regions` gives if they are as good.
    standard = Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST)
    if standard.cost.total <= total * (1 + 2.0**-40) and not find_broken_limit(
        problem, labels[best], formed
    ):
        return standard
    return Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST, regions=regions)
