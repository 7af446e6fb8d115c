"""Random factors on the costs of a placement problem, and what placements cost with them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from byoc.errors import InputError
from byoc.placement._placement_cost import find_transfers
from byoc.placement._problem import Floats, Problem
from byoc.placement._strategy import Placement

_MAX_SIGMA = 5.0
_MAX_FACTORS = 40_000_000


@dataclass(frozen=True)
class Perturbation:
    """Random factors on costs; raises InputError for numbers that give none.

    The logarithm of a factor is normal with the standard deviation `sigma`. Half of its variance is that
    of the unit on a device, half is shared by all units of one kind there; each accelerator has one
    factor for its transfers, and one for its launches. `samples` are drawn from `seed`.
    """

    sigma: float
    samples: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.sigma <= _MAX_SIGMA:
            raise InputError(f"perturb {self.sigma:g}: not a number above 0, and at most {_MAX_SIGMA:g}")
        if self.samples < 1 or self.seed < 0:
            raise InputError("perturb: needs at least one sample, and a seed of at least 0")


@dataclass(frozen=True, eq=False)
class CostSamples:
    """A problem, and factors on its costs for each sample.

    `units` is float64 (samples, units, 1 + devices); `links` and `launches` are (samples, devices).
    """

    problem: Problem
    units: Floats
    links: Floats
    launches: Floats

    @classmethod
    def draw(cls, problem: Problem, kinds: Sequence[str], perturbation: Perturbation) -> "CostSamples":
        """Draw the factors; `kinds` are those of the units. Raises InputError if they are too many."""
        count, columns = perturbation.samples, 1 + problem.devices
        most = _MAX_FACTORS // max(problem.units * columns, 1)
        if count > most:
            raise InputError(
                f"perturb: at most {most} samples fit in memory for {problem.units} units, not {count}"
            )
        generator = np.random.default_rng(perturbation.seed)
        distinct, of = np.unique(np.array(kinds, dtype=str), return_inverse=True)
        shared = generator.standard_normal((count, len(distinct), columns))[:, of]
        own = generator.standard_normal((count, problem.units, columns))
        links, launches = generator.standard_normal((2, count, problem.devices))
        sigma = perturbation.sigma
        return cls(
            problem,
            np.exp(sigma * math.sqrt(0.5) * (shared + own)),
            np.exp(sigma * links),
            np.exp(sigma * launches),
        )

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.units)

    def make_problem(self, number: int) -> Problem:
        """Return the problem at the costs of a sample. What a fusion saves changes as its members."""
        problem = self.problem
        seconds = problem.seconds * self.units[number]
        fusions = tuple(
            replace(each, saving=each.saving * float(ratios[number]))
            for each, ratios in zip(problem.fusions, self._saving_factors, strict=True)
        )
        return replace(
            problem,
            seconds=seconds,
            to_device=problem.to_device * self.links[number],
            to_host=problem.to_host * self.links[number],
            launch=problem.launch * self.launches[number],
            fusions=fusions,
        )

    @cached_property
    def _saving_factors(self) -> list[Floats]:
        """The factor on each fusion's saving, float64 (samples,): that of its members' sum."""
        factors = []
        for each in self.problem.fusions:
            members, device = list(each.members), each.device
            seconds = self.problem.seconds[members, device]
            total = math.fsum(seconds)
            # Rounded down: a saving is never above the sum.
            ratio = self.units[:, members, device] @ seconds / total if total else np.ones(self.count)
            factors.append(ratio * (1 - 2.0**-48))
        return factors

    def evaluate(self, placement: Placement) -> Floats:
        """Return the cost of a placement in each sample, float64 (samples,)."""
        problem, labels = self.problem, placement.labels
        rows = np.arange(problem.units)
        cost: Floats = self.units[:, rows, labels] @ problem.seconds[rows, labels]
        leaving, home, wanted = find_transfers(problem, labels)
        moved = np.where(wanted[:, 1:], problem.to_device, 0.0).sum(axis=0)
        np.add.at(moved, home[leaving] - 1, problem.to_host[leaving, home[leaving] - 1])
        _, first = np.unique(placement.regions[placement.regions >= 0], return_index=True)
        devices = labels[placement.regions >= 0][first]
        launches = np.bincount(devices, minlength=1 + problem.devices)[1:]
        cost = cost + self.links @ moved + self.launches @ (launches * problem.launch)
        for number in placement.fusions:
            cost = cost - problem.fusions[number].saving * self._saving_factors[number]
        return np.maximum(cost, 0.0)
