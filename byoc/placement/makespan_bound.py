"""What no makespan can fall below."""

import math

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from byoc.placement.problem import Problem

# More than the roundings along a path or in a sum of one cost per unit.
_ROUNDING = 2.0**-36


def lower_bound(problem: Problem) -> float:
    """Return seconds that no makespan can fall below, in the model of `byoc.placement.makespan`.

    The larger of the longest path, with each unit and tensor where the path is shortest, and the least
    load of the busiest device, where units may be divided between devices.
    """
    longest = max(_longest_path(problem), _least_load(problem)) * (1 - _ROUNDING)
    return max(0.0, longest - math.fsum(fusion.saving for fusion in problem.fusions))


def _longest_path(problem: Problem) -> float:
    """Return the longest path, each path at its cheapest.

    `end[v, d]`: v on device d ends no earlier. From a unit on another device, or the host, a tensor
    has to come and a region has to be launched; from one on the same device, nothing.
    """
    count = problem.devices + 1
    launch = np.append(0.0, problem.launch)
    costs = problem.costs
    moving = np.empty((problem.tensors, count, count))
    away = np.column_stack([np.zeros(problem.tensors), problem.to_host])
    there = np.column_stack([np.zeros(problem.tensors), problem.to_device]) + launch
    moving[:] = away[:, :, np.newaxis] + there[:, np.newaxis, :]
    moving[:, np.arange(count), np.arange(count)] = 0.0
    end = np.empty((problem.units, count))
    arrival = np.zeros((problem.units, count)) + launch
    by_maker: list[list[int]] = [[] for _ in range(problem.units)]
    for tensor, producer in enumerate(problem.producer.tolist()):
        readers = problem.consumers[problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]]
        if producer < 0:
            arrival[readers] = np.maximum(arrival[readers], moving[tensor, 0])
        else:
            by_maker[producer].append(tensor)
    finish = 0.0
    for unit in range(problem.units):
        end[unit] = arrival[unit] + costs[unit]
        finish = max(finish, float(end[unit].min()))
        for tensor in by_maker[unit]:
            readers = problem.consumers[
                problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]
            ]
            reached = (end[unit][:, np.newaxis] + moving[tensor]).min(axis=0)
            arrival[readers] = np.maximum(arrival[readers], reached)
            if problem.is_output[tensor]:
                finish = max(finish, float((end[unit] + away[tensor]).min()))
    return finish


def _least_load(problem: Problem) -> float:
    """Return the least time in which the devices together can do all units, none waiting.

    The linear program for unrelated machines (Lawler and Labetoulle, Journal of the ACM 25, 1978) has
    this dual: a price of each device, 1 in all, and each unit adds its cost where that is the cheapest
    at those prices. Any prices prove such a sum, so that what is returned holds even where the solver
    stops short of the best ones.
    """
    costs = problem.costs
    unit, device = np.nonzero(np.isfinite(costs))
    if not unit.size:
        return 0.0
    # Variables: what each unit adds, then the prices.
    row, scale = np.arange(unit.size), float(costs[unit, device].max()) or 1.0
    entries = np.append(np.ones(unit.size), -costs[unit, device] / scale)
    places = np.append(row, row), np.append(unit, problem.units + device)
    count = problem.units + problem.devices + 1
    prices = np.arange(count) >= problem.units
    added = coo_array((entries, places), shape=(unit.size, count)).tocsr()
    solved = milp(
        np.where(prices, 0.0, -1.0),
        constraints=[
            LinearConstraint(added, -np.inf, 0.0),
            LinearConstraint(prices.astype(np.float64)[np.newaxis], 1.0, 1.0),
        ],
        bounds=Bounds(0.0, np.where(prices, 1.0, np.inf)),
    )
    price = np.zeros(0) if solved.x is None else np.maximum(solved.x[prices], 0.0)
    if not price.sum() > 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # 0 * inf: refused all the same
        priced = np.where(np.isfinite(costs), price / price.sum() * costs, np.inf)
    return math.fsum(priced.min(axis=1))
