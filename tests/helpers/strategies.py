"""Placements for tests: whatever is supported, the toss of a coin, and the worst fragmentation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.placement import Placement, Problem


@dataclass(frozen=True)
class Random:
    """The toss of a coin for each supported unit, the same for the same seed."""

    seed: int
    name: str = "random"

    def solve(self, problem: Problem) -> Placement:
        toss = np.random.default_rng(self.seed).integers(0, 2, problem.units)
        return Placement.from_labels(problem, np.where(_supported(problem), toss, 0).astype(np.int64))


@dataclass(frozen=True)
class Alternating:
    """Every other supported unit, the first included: as many small regions as there can be."""

    name: str = "alternating"

    def solve(self, problem: Problem) -> Placement:
        supported = _supported(problem)
        turn = np.cumsum(supported) % 2
        return Placement.from_labels(problem, np.where(supported, turn, 0).astype(np.int64))


def _supported(problem: Problem) -> NDArray[np.bool_]:
    return np.isfinite(problem.seconds[:, 1])
