"""Placement at 100,000 units: seconds, memory of the solver, gap.

`python benchmarks/placement_scale.py [units]`
"""

import resource
import sys
import time
import tracemalloc
from collections.abc import Callable

from graphs import layered, transformer

from byoc.placement import Placement, Problem
from byoc.placement.strategies import LaunchAware
from byoc.placement.strategies._optimizing import MinCut

GRAPHS: tuple[Callable[[int], Problem], ...] = (layered, transformer)


def main(units: int) -> None:
    """Print a row for each graph and strategy."""
    head = f"{'graph':12} {'strategy':14} {'seconds':>8} {'of cpu':>7}"
    print(f"{head} {'peak MB':>8} {'total s':>9} {'gap':>9}")
    for make in GRAPHS:
        problem = make(units)
        _ = problem.edges, problem.allowed, problem.costs  # the problem's own arrays, not the solver's
        for strategy in (MinCut(), LaunchAware()):
            wall, cpu = time.perf_counter(), time.process_time()
            placement = strategy.solve(problem)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            peak = memory(lambda strategy=strategy, problem=problem: strategy.solve(problem))
            print(
                f"{make.__name__:12} {strategy.name:14} {wall:8.2f} {cpu:7.2f} {peak / 2**20:8.1f} "
                f"{placement.cost.total:9.4f} {gap(placement):9.4%}"
            )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"resident at most: {most:.0f} MB, with the interpreter, its libraries and the problems")


def memory(solve: Callable[[], Placement]) -> int:
    """Return the most bytes that a call held at once (numpy reports its arrays to tracemalloc)."""
    tracemalloc.start()
    try:
        solve()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def gap(placement: Placement) -> float:
    """Return what is not proven, as a share of the total."""
    bound = placement.bound or 0.0
    return 1 - bound / placement.cost.total


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
