"""A lower bound on the makespan."""

import math

import numpy as np

from byoc.numerics.solvers import MilpBuilder
from byoc.placement._problem import Problem

# More than the rounding errors along a path or in a sum of one cost per unit.
_ROUNDING = 2.0**-36


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
    unit, device = np.nonzero(np.isfinite(costs))
    if not unit.size:
        return 0.0
    scale = float(costs[unit, device].max()) or 1.0
    program = MilpBuilder()
    contribution = program.add_columns(np.full(problem.units, -1.0), 1, False)
    weights = program.add_columns(np.zeros(problem.devices + 1), 1, False)
    program.add_rows(0, (contribution[unit], 1), (weights[device], -costs[unit, device] / scale))
    program.add_row(1, weights, 1)
    values = program.solve(0.0).values
    weight = np.zeros(0) if values is None else np.maximum(values[weights], 0.0)
    if not weight.sum() > 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # 0 * inf: refused in any case
        weighted = np.where(np.isfinite(costs), weight / weight.sum() * costs, np.inf)
    return math.fsum(weighted.min(axis=1))
