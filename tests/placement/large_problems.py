"""Large random problems with several accelerators and little memory: too large for integer programs.

As a program, `python tests/placement/large_problems.py` solves some and prints cost, bound and gap.
"""

import sys
import time

import numpy as np

from byoc.placement import Problem
from byoc.placement.strategies import LaunchAware


def layered_problem(
    seed: int, units: int, devices: int, *, share: float = 0.5, launch: float = 0.0
) -> Problem:
    """Units that read one or two of the eight before; the accelerators hold a share of their memory."""
    rng = np.random.default_rng(seed)
    consumers: list[list[int]] = [[] for _ in range(units + 1)]
    consumers[0] = [0]
    for unit in range(1, units):
        for _ in range(rng.integers(1, 3)):
            consumers[1 + int(rng.integers(max(0, unit - 8), unit))].append(unit)
    host = rng.lognormal(0, 1, units) * 4
    seconds = host[:, np.newaxis] / rng.lognormal(1.2, 0.6, (units, devices))
    seconds[rng.random((units, devices)) < 0.15] = np.inf
    moving = rng.lognormal(0, 1, units + 1)[:, np.newaxis] * rng.uniform(0.3, 1.0, devices)
    memory = rng.lognormal(0, 1, units)
    return Problem.build(
        seconds=np.column_stack([host, seconds]),
        producer=range(-1, units),
        consumers=consumers,
        is_output=[not readers for readers in consumers],
        to_device=moving,
        to_host=moving,
        launch=[launch] * devices,
        memory=np.repeat(memory[:, np.newaxis], devices, axis=1),
        capacity=[share * float(memory.sum()) / devices] * devices,
    )


CASES = (
    (0, 2000, 3, 0.5, 0.0),
    (1, 2000, 3, 0.5, 1.0),
    (2, 2000, 3, np.inf, 1.0),
    (3, 1700, 3, 0.8, 0.2),
    (4, 600, 12, 0.6, 0.0),
    (5, 6000, 2, 0.5, 0.5),
)
"""Seed, units, accelerators, the share of the memory that they hold, seconds for a launch."""


def main() -> None:
    sys.stdout.write(
        f"{'units':>6} {'devices':>8} {'share':>6} {'launch':>7}   cost      bound     gap      s\n"
    )
    for seed, units, devices, share, launch in CASES:
        problem = layered_problem(seed, units, devices, share=share, launch=launch)
        began = time.process_time()
        found = LaunchAware().solve(problem)
        seconds = time.process_time() - began
        assert found.bound is not None
        total, gap = found.cost.total, 1 - found.bound / found.cost.total
        sys.stdout.write(
            f"{units:6} {devices:8} {share:6} {launch:7} {total:9.1f} {found.bound:9.1f}"
            f" {gap:7.2%} {seconds:6.1f}\n"
        )


if __name__ == "__main__":
    main()
