"""A lower bound on the makespan."""

import math
from collections.abc import Iterator

import numpy as np

from byoc.numerics.solvers import MilpBuilder
from byoc.placement._problem import Floats, Problem

# More than the rounding errors along a path or in a sum of one cost per unit.
_ROUNDING = 2.0**-36
# Costs of a linear program that is solved exactly; else rounds of weights, and how far the first goes.
_MOST_TERMS, _ROUNDS, _STEP = 20_000, 100, 1.0


def makespan_lower_bound(problem: Problem, proven: float = 0.0) -> float:
    """Return a lower bound in seconds on the makespan; see `_list_scheduling` for the model.
    The largest of three values: the longest path, with each unit and tensor where it is cheapest for the
    path; the least load of the busiest device, where units may be divided between devices; and `proven`,
    the seconds that `bound_by_paths` proves.
    """
    longest = max(_longest_path(problem), least_load(problem), proven) * (1 - _ROUNDING)
    return max(0.0, longest - math.fsum(fusion.saving for fusion in problem.fusions))


def _longest_path(problem: Problem) -> float:
    """Return the length of the longest path, each path at its cheapest.
    `end[v, d]` is a lower bound on the end of v on device d. From a unit on another device, or the host,
    a tensor must be sent and a region launched; from one on the same device, nothing.
    """
    count = problem.devices + 1
    launch = np.append(0.0, problem.launch)
    costs = problem.costs
    transfer = np.empty((problem.tensors, count, count))
    leaving = np.column_stack([np.zeros(problem.tensors), problem.to_host])
    arriving = np.column_stack([np.zeros(problem.tensors), problem.to_device]) + launch
    transfer[:] = leaving[:, :, np.newaxis] + arriving[:, np.newaxis, :]
    transfer[:, np.arange(count), np.arange(count)] = 0.0
    end = np.empty((problem.units, count))
    arrival = np.zeros((problem.units, count)) + launch
    made_by: list[list[int]] = [[] for _ in range(problem.units)]
    for tensor, producer in enumerate(problem.producer.tolist()):
        readers = problem.consumers[problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]]
        if producer < 0:
            arrival[readers] = np.maximum(arrival[readers], transfer[tensor, 0])
        else:
            made_by[producer].append(tensor)
    finish = 0.0
    for unit in range(problem.units):
        end[unit] = arrival[unit] + costs[unit]
        finish = max(finish, float(end[unit].min()))
        for tensor in made_by[unit]:
            readers = problem.consumers[
                problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]
            ]
            reached = (end[unit][:, np.newaxis] + transfer[tensor]).min(axis=0)
            arrival[readers] = np.maximum(arrival[readers], reached)
            if problem.is_output[tensor]:
                finish = max(finish, float((end[unit] + leaving[tensor]).min()))
    return finish


def least_load(problem: Problem) -> float:
    """Return the least time in which the devices together can run all units, none waiting.
    Each core of the host counts as a device. No transfers, launches or fusions count.
    The linear program for unrelated machines (Lawler and Labetoulle, Journal of the ACM 25, 1978) has
    this dual: a weight of each device, 1 in all, and each unit adds its least weighted cost. Any weights
    prove such a sum, so the result is valid even if the solver stops before the optimum.
    """
    costs = problem.costs.copy()
    costs[:, 0] /= problem.cores
    if np.isfinite(costs).sum() > _MOST_TERMS:
        return max(_sum_least_costs(costs, weight) for weight in _iterate_weights(costs))
    weight = _find_best_weights(costs)
    return _sum_least_costs(costs, weight) if weight.sum() > 0 else 0.0


def _find_best_weights(costs: Floats) -> Floats:
    """Return the weights of devices, float64 (1 + devices,), with the greatest sum of least costs."""
    unit, device = np.nonzero(np.isfinite(costs))
    if not unit.size:
        return np.zeros(0)
    scale = float(costs[unit, device].max()) or 1.0
    program = MilpBuilder()
    contribution = program.add_columns(np.full(len(costs), -1.0), 1, False)
    weights = program.add_columns(np.zeros(costs.shape[1]), 1, False)
    program.add_rows(0, (contribution[unit], 1), (weights[device], -costs[unit, device] / scale))
    program.add_row(1, weights, 1)
    values = program.solve(0.0).values
    return np.zeros(0) if values is None else np.maximum(values[weights], 0.0)


def _iterate_weights(costs: Floats) -> Iterator[Floats]:
    """Yield weights of devices whose sums of least costs rise, in linear time.

    A device that takes more than the mean gets more weight, by factors (Plotkin, Shmoys and Tardos,
    Mathematics of Operations Research 20, 1995).
    """
    weight = np.ones(costs.shape[1])
    for number in range(_ROUNDS):
        yield weight
        chosen = _weigh(costs, weight).argmin(axis=1)
        taken = np.where(np.isfinite(costs), costs, 0.0)[np.arange(len(costs)), chosen]
        loads = np.bincount(chosen, taken, costs.shape[1])
        peak = float(loads.max())
        if not 0 < peak < np.inf:
            return
        weight = weight * np.exp((loads - loads.mean()) / peak * _STEP / math.sqrt(1 + number))


def _sum_least_costs(costs: Floats, weight: Floats) -> float:
    """Return the sum of each unit's least cost, weighted, in seconds; refused by all, infinite."""
    return math.fsum(_weigh(costs, weight).min(axis=1))


def _weigh(costs: Floats, weight: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # 0 * inf: refused in any case
        weighted: Floats = np.where(np.isfinite(costs), weight / weight.sum() * costs, np.inf)
    return weighted
