"""`byoc.place`: solutions of a public placement benchmark as plain data."""

import math
from collections.abc import Mapping, Sequence
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
    describe_reloads,
    evaluate,
    find_violation,
    fix_reloads,
    limit_time,
    normalize_placement,
    run_strategy,
    strategy_display_name,
)
from byoc.placement.strategies import measure_placement
from byoc.planning._benchmark_instance import InstanceObjective, PlacementInstance, read_instance
from byoc.support import (
    STRATEGIES,
    check_type,
    describe_failure,
    list_installed,
    load_plugin,
    make_with_options,
    select_options,
)

Document = dict[str, Any]

# More than sums of the same costs in different order differ by.
_ROUNDING = 1e-9


def place(  # noqa: PLR0913 - the options of the verb
    instance: str | Path,
    strategy: str | None = None,
    *,
    objective: str | None = None,
    time_limit: float | None = None,
    max_regions: int | None = None,
    strategy_options: Mapping[str, str] | None = None,
) -> Document:
    """Solve an instance of the placement benchmark of Tarnawski et al. (NeurIPS 2020), or of a model.

    Args:
        instance: path of the instance's JSON file, or of a problem that `ModelProblem.save` wrote.
        strategy: name of a placement strategy; unless given, `makespan` for the latency, `throughput`
            for the throughput and `launch-aware` for the total.
        objective: `latency` or `throughput` as the benchmark defines them, or `total`, the sum of all
            costs. Unless it is given, instances of training are for the throughput, problems of models
            for the total.
        time_limit: seconds that the strategy may take on an ordinary computer, counted by its steps;
            10 unless given.
        max_regions: largest number of regions of an accelerator, 1 for contiguous ones; 1 for the
            latency unless given.
        strategy_options: options of the strategy by `name`, or by `strategy:name`. `launch-aware` has
            the `margin` of a problem that byoc saved unless it is given here.

    Returns:
        What `byoc place --format json` prints: `objective` and its seconds, a proven bound in seconds
        (None without one), the gap as a share of the objective, the number of regions, and for each
        device its nodes, regions, seconds and bytes.

    Raises InputError for a file that is no instance or cannot be read, an objective that does not suit
    it, an unknown strategy or option, and a strategy that fails or gives a placement that is not valid.
    """
    check_type("instance", instance, str | Path)
    given = read_instance(Path(instance), objective, max_regions)
    name = strategy or given.objective.strategy
    installed = list_installed(STRATEGIES)
    own = select_options(
        strategy_options or {}, name, (name,), "strategy option", "strategy", unused=installed
    )
    if name == InstanceObjective.total.strategy and given.margin:
        own = {"margin": f"{given.margin:g}", **own}
    chosen: Strategy = load_plugin(STRATEGIES, name, lambda kind: make_with_options(kind, own))
    return solve_instance(given, limit_time(chosen, time_limit), str(instance))


def solve_instance(instance: PlacementInstance, strategy: Strategy, source: str) -> Document:
    """Solve an instance, and return the document that `byoc place --format json` prints.

    Raises InputError where the strategy fails, or its placement is not valid.
    """
    problem, objective = instance.problem, instance.objective
    name, ignored = strategy_display_name(strategy), describe_ignored(strategy, problem)
    placement = run_strategy(strategy, problem, describe_failure)
    wrong = find_violation(problem, placement)
    if wrong or not isinstance(placement, Placement):
        raise InputError(f"strategy {name}: {wrong}")
    placement = normalize_placement(problem, placement)
    if placement.measure is not objective.measure:
        ignored = (*ignored, f"strategy {name} does not minimise the {objective}")
    placement = measure_placement(problem, placement, objective.measure)
    if placement.bound is not None and placement.bound > placement.value * (1 + _ROUNDING):
        raise InputError(
            f"strategy {name}: its bound {placement.bound:g} s is above its own {placement.value:g} s"
        )
    names = [f"accelerator {1 + number}" for number in range(problem.devices)]
    fixed = fix_reloads(problem, placement.labels)
    reloads = describe_reloads(problem, fixed, placement.labels, names)
    instance = replace(instance, problem=fixed)
    notes = dict.fromkeys((*instance.notes, *placement.notes, *reloads, *ignored))
    return {
        "instance": source,
        "strategy": name,
        "objective": objective.value,
        "objective_seconds": placement.value,
        "bound_seconds": placement.bound,
        "gap": _compute_gap(placement.value, placement.bound),
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
        "kind": "core" if device in instance.cores else "accelerator",
        "nodes": _list_nodes(instance, np.flatnonzero(here).tolist()),
        "regions": len(regions),
        "execution_seconds": math.fsum(problem.seconds[here, device]),
        "transfer_seconds": _sum_transfers(problem, placement, device) if device else 0.0,
        "bytes": math.fsum(problem.memory[here, device - 1]) if device else 0.0,
    }


def _list_nodes(instance: PlacementInstance, units: Sequence[int]) -> list[int | str]:
    """Return the nodes of some units: ids in rising order, names in the order of the units."""
    nodes = [node for unit in units for node in instance.nodes[unit]]
    return nodes if any(isinstance(node, str) for node in nodes) else sorted(nodes, key=int)


def _sum_transfers(problem: Problem, placement: Placement, device: int) -> float:
    """Return the seconds of the transfers to and from one accelerator."""
    only = np.arange(problem.devices) == device - 1
    alone = replace(
        problem,
        to_device=np.where(only, problem.to_device, 0.0),
        to_host=np.where(only, problem.to_host, 0.0),
    )
    return evaluate(alone, placement.labels, placement.regions).transfer
