"""A lower bound on the makespan."""

import math

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from byoc.placement._problem import Problem

# More than the rounding errors along a path or in a sum of one cost per unit.
_ROUNDING = 2.0**-36


def makespan_lower_bound(problem: Problem) -> float:
    """Return a lower bound in seconds on the makespan; see `_list_scheduling` for the model.
    The larger of two values: the longest path, with each unit and tensor where it is cheapest for the
    path, and the least load of the busiest device, where units may be divided between devices.
    """
    longest = max(_longest_path(problem), _least_load(problem)) * (1 - _ROUNDING)
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


def _least_load(problem: Problem) -> float:
    """Return the least time in which the devices together can run all units, none waiting.
    The linear program for unrelated machines (Lawler and Labetoulle, Journal of the ACM 25, 1978) has
    this dual: a weight of each device, 1 in all, and each unit adds its least weighted cost. Any weights
    prove such a sum, so the result is valid even if the solver stops before the optimum.
    """
    costs = problem.costs
    unit, device = np.nonzero(np.isfinite(costs))
    if not unit.size:
        return 0.0
    # Variables: the contribution of each unit, then the weights.
    row, scale = np.arange(unit.size), float(costs[unit, device].max()) or 1.0
    entries = np.append(np.ones(unit.size), -costs[unit, device] / scale)
    positions = np.append(row, row), np.append(unit, problem.units + device)
    count = problem.units + problem.devices + 1
    is_weight = np.arange(count) >= problem.units
    contribution = coo_array((entries, positions), shape=(unit.size, count)).tocsr()
    solved = milp(
        np.where(is_weight, 0.0, -1.0),
        constraints=[
            LinearConstraint(contribution, -np.inf, 0.0),
            LinearConstraint(is_weight.astype(np.float64)[np.newaxis], 1.0, 1.0),
        ],
        bounds=Bounds(0.0, np.where(is_weight, 1.0, np.inf)),
    )
    weight = np.zeros(0) if solved.x is None else np.maximum(solved.x[is_weight], 0.0)
    if not weight.sum() > 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # 0 * inf: refused in any case
        weighted = np.where(np.isfinite(costs), weight / weight.sum() * costs, np.inf)
    return math.fsum(weighted.min(axis=1))
