"""The best regions for given labels by exhaustive search: small graphs with any limits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np

from byoc.placement.fusions import choose_fusions
from byoc.placement.problem import UNLIMITED, Ints, Problem


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
