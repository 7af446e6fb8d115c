"""`byoc.place`: solutions of a public placement benchmark as plain data."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from byoc.errors import InputError
from byoc.placement import (
    Placement,
    Problem,
    Strategy,
    describe_ignored,
    evaluate,
    find_violation,
    normalize_placement,
    run_strategy,
    strategy_display_name,
)
from byoc.placement.strategies import ScheduledPlacement
from byoc.planning._benchmark_instance import PlacementInstance, read_instance
from byoc.support import STRATEGIES, load_plugin

Document = dict[str, Any]


def place(instance: str | Path, strategy: str = "launch-aware") -> Document:
    """Solve an instance of the placement benchmark of Tarnawski et al. (NeurIPS 2020).

    Args:
        instance: path of the instance's JSON file.
        strategy: name of a placement strategy.

    Returns:
        What `byoc place --format json` prints: `objective` (`latency` or `makespan`) and its seconds,
        a proven bound in seconds (None without one), the gap as a share of the objective, the number
        of regions, and for each device its nodes, regions, seconds and bytes.

    Raises InputError for a file that is no instance or cannot be read, an unknown strategy, and one that
    fails or gives a placement that is not valid.
    """
    given = read_instance(Path(instance))
    return solve_instance(given, load_plugin(STRATEGIES, strategy), str(instance))


def solve_instance(instance: PlacementInstance, strategy: Strategy, source: str) -> Document:
    """Solve an instance, and return the document that `byoc place --format json` prints.

    Raises InputError where the strategy fails, or its placement is not valid.
    """
    problem = instance.problem
    name, ignored = strategy_display_name(strategy), describe_ignored(strategy, problem)
    placement = run_strategy(strategy, problem)
    wrong = find_violation(problem, placement)
    if wrong or not isinstance(placement, Placement):
        raise InputError(f"strategy {name}: {wrong}")
    placement = normalize_placement(problem, placement)
    schedule = placement.schedule if isinstance(placement, ScheduledPlacement) else None
    objective = schedule.makespan if schedule else placement.cost.total
    notes = dict.fromkeys((*instance.notes, *placement.notes, *ignored))
    return {
        "instance": source,
        "strategy": name,
        "objective": "makespan" if schedule else "latency",
        "objective_seconds": objective,
        "bound_seconds": placement.bound,
        "gap": _compute_gap(objective, placement.bound),
        "regions": int(placement.regions.max(initial=-1)) + 1,
        "devices": [
            _describe_load(instance, placement, device) for device in range(problem.devices + 1)
        ],
        "notes": list(notes),
    }


def _compute_gap(objective: float, bound: float | None) -> float | None:
    """Return the largest possible distance from the optimum, as a share of the objective."""
    if bound is None:
        return None
    return max(0.0, 1 - bound / objective) if objective else 0.0


def _describe_load(instance: PlacementInstance, placement: Placement, device: int) -> Document:
    """Return the load of one device; a transfer counts for the accelerator at its end."""
    problem, here = instance.problem, placement.labels == device
    regions = np.unique(placement.regions[here & (placement.regions >= 0)])
    return {
        "device": device,
        "nodes": sorted(node for unit in np.flatnonzero(here) for node in instance.nodes[unit]),
        "regions": len(regions),
        "execution_seconds": math.fsum(problem.seconds[here, device]),
        "transfer_seconds": _sum_transfers(problem, placement, device) if device else 0.0,
        "bytes": math.fsum(problem.memory[here, device - 1]) if device else 0.0,
    }


def _sum_transfers(problem: Problem, placement: Placement, device: int) -> float:
    """Return the seconds of the transfers to and from one accelerator."""
    only = np.arange(problem.devices) == device - 1
    alone = replace(
        problem,
        to_device=np.where(only, problem.to_device, 0.0),
        to_host=np.where(only, problem.to_host, 0.0),
    )
    return evaluate(alone, placement.labels, placement.regions).transfer
