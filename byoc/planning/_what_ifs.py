"""Gains of supporting more operators: the placement solved again with refused units allowed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from byoc.errors import ByocError
from byoc.model import get_operator_name, is_inserted
from byoc.placement import Problem, Strategy, solve_problem
from byoc.placement.strategies import LaunchAware
from byoc.planning._graph_placement import name_units
from byoc.planning._plan_data import GraphPlan, WhatIf

_MAX_TRIED = 24
_MAX_UNITS = 2_000
_SHOWN = 10


# Minimum cuts with prices: integer programs may take long, and there are many to solve.
_QUICK = LaunchAware(small=0)


def estimate_gains(plan: GraphPlan, strategy: Strategy = _QUICK) -> list[WhatIf]:
    """Return the ten best answers to "what if it were supported", the largest gain first.

    Units that are refused for the same reason count together. Those with the most time on the host, and
    what is moved for them, are tried, 24 at most, in graphs of up to 2,000 units; none that gains
    nothing is told. What a refused unit would take is what its device's cost model says of it.
    """
    if len(plan.units) > _MAX_UNITS:
        return []
    names = name_units(plan.index, plan.units)
    problem = plan.graph_problem.problem
    candidates = sorted(_find_candidates(plan), key=lambda each: -each[1])[:_MAX_TRIED]
    if not candidates:
        return []
    try:
        base = solve_problem(problem, strategy, names)
    except ByocError:
        return []
    found = []
    for (device, operator, reason, rows), _ in candidates:
        try:
            placement = solve_problem(_allow_units(plan, rows, device), strategy, names)
        except ByocError:
            continue
        gain = base.cost.total - placement.cost.total
        if gain > 1e-9 * base.cost.total:
            more = problem.size[placement.labels > 0].sum() - problem.size[base.labels > 0].sum()
            nodes = sum(len(plan.units[row].nodes) for row in rows)
            target = plan.targets[device - 1].name
            found.append(WhatIf(target, operator, reason, nodes, gain, int(more)))
    return sorted(found, key=lambda each: (-each.gain, each.operator, each.reason))[:_SHOWN]


_Candidate = tuple[int, str, str, list[int]]


def _find_candidates(plan: GraphPlan) -> Iterable[tuple[_Candidate, float]]:
    """Yield the units that a device refuses for a reason, and the time that is at stake."""
    groups: dict[tuple[int, str, str], list[int]] = {}
    nodes = plan.index.nodes
    for row, unit in enumerate(plan.units):
        if all(is_inserted(nodes[number]) for number in unit.nodes):
            continue  # what byoc puts at borders costs nothing by itself, and goes with its neighbours
        for device, verdict in enumerate(unit.verdicts, 1):
            if not verdict and np.isfinite(plan.graph_problem.device_cost[row, device - 1]):
                key = device, _name_unit(plan, row, device), str(verdict)
                groups.setdefault(key, []).append(row)
    moving = _cost_moves(plan.graph_problem.problem)
    for (device, operator, reason), rows in groups.items():
        stake = float(plan.graph_problem.problem.seconds[rows, 0].sum() + moving[rows, device - 1].sum())
        yield (device, operator, reason, rows), stake


def _cost_moves(problem: Problem) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return the cost of moving all that a unit reads and makes, float64 (units, devices)."""
    cost = np.zeros((problem.units, problem.devices))
    crossing = np.where(np.isfinite(problem.to_device), problem.to_device, 0.0)
    np.add.at(cost, problem.consumers, crossing[problem.consumed])
    made = problem.producer >= 0
    back = np.where(np.isfinite(problem.to_host), problem.to_host, 0.0)
    np.add.at(cost, problem.producer[made], back[made])
    return cost


def _name_unit(plan: GraphPlan, row: int, device: int) -> str:
    """Return the composite of a unit on a device, or the operators that it is made of there."""
    names = []
    for unit in plan.units[row].on_device[device - 1]:
        node = plan.index.nodes[unit.nodes[-1]]
        names.append(unit.composite or get_operator_name(node))
    return " and ".join(dict.fromkeys(names))


def _allow_units(plan: GraphPlan, rows: Sequence[int], device: int) -> Problem:
    """Return the problem with some units allowed on a device, at the cost that its model gives."""
    problem = plan.graph_problem.problem
    seconds = problem.seconds.copy()
    seconds[rows, device] = plan.graph_problem.device_cost[rows, device - 1]
    return replace(problem, seconds=seconds)
