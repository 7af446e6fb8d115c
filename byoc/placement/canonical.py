"""One order for units and tensors, whatever the file's: the same arrays give the same labels."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from byoc.placement.problem import Fusion, Ints, Problem
from byoc.placement.strategy import Placement


def canonical(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    """Return the problem in its canonical order, and which unit stands where, int64 (units,).

    `keys` name the units, distinct (the first output, say). Units come in topological order, of
    those that may come next the one with the smallest key (Kahn, Communications of the ACM 5,
    1962). Tensors come by producer, consumers and costs: two that agree in all of it are alike.
    Unit `i` of the new problem is unit `order[i]` of the old one. Raises ValueError where keys are
    not distinct, or not one for each unit.
    """
    if len(keys) != problem.units or len(set(keys)) < len(keys):
        raise ValueError(f"one distinct key for each of {problem.units} units is needed")
    order = np.array(_kahn(problem, keys), np.int64)
    place = np.empty(problem.units, np.int64)
    place[order] = np.arange(problem.units)
    moved = np.append(place, -1)[problem.producer]
    start = problem.consumer_start.tolist()
    readers = place[problem.consumers].tolist()
    consumers = [tuple(sorted(readers[a:b])) for a, b in pairwise(start)]
    ways = np.hstack([problem.to_device, problem.to_host]).tolist()
    content = list(zip(moved.tolist(), consumers, problem.is_output.tolist(), ways, strict=True))
    tensors = sorted(range(problem.tensors), key=content.__getitem__)
    ordered = Problem.build(
        seconds=problem.seconds[order],
        producer=moved[tensors],
        consumers=[consumers[tensor] for tensor in tensors],
        is_output=problem.is_output[tensors],
        to_device=problem.to_device[tensors],
        to_host=problem.to_host[tensors],
        launch=problem.launch,
        connected=problem.connected,
        must=problem.must[order],
        size=problem.size[order],
        min_nodes=problem.min_nodes,
        max_nodes=problem.max_nodes,
        max_regions=problem.max_regions,
        memory=problem.memory[order],
        capacity=problem.capacity,
        fusions=[_moved(problem.fusions[number], place) for number in _fusions(problem, place)],
    )
    return ordered, order


def placed_back(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Return a placement of the canonical problem as one of the problem it was made from."""
    labels, regions = np.empty_like(placement.labels), np.empty_like(placement.regions)
    labels[order], regions[order] = placement.labels, placement.regions
    place = np.empty(problem.units, np.int64)
    place[order] = np.arange(problem.units)
    numbers = _fusions(problem, place)
    fusions = tuple(sorted(numbers[number] for number in placement.fusions))
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def _kahn(problem: Problem, keys: Sequence[str]) -> list[int]:
    source, target = problem.edges
    waits = np.bincount(target, minlength=problem.units).tolist()
    begin = np.searchsorted(source, np.arange(problem.units + 1)).tolist()
    following = target.tolist()
    ready = [(keys[unit], unit) for unit in range(problem.units) if not waits[unit]]
    heapq.heapify(ready)
    order = []
    while ready:
        unit = heapq.heappop(ready)[1]
        order.append(unit)
        for after in following[begin[unit] : begin[unit + 1]]:
            waits[after] -= 1
            if not waits[after]:
                heapq.heappush(ready, (keys[after], after))
    return order


def _moved(fusion: Fusion, place: Ints) -> Fusion:
    return Fusion(tuple(sorted(place[list(fusion.members)].tolist())), fusion.device, fusion.saving)


def _fusions(problem: Problem, place: Ints) -> list[int]:
    """Return the fusions in canonical order."""
    moved = [_moved(fusion, place) for fusion in problem.fusions]
    return sorted(range(len(moved)), key=lambda i: (moved[i].members, moved[i].device, moved[i].saving))
