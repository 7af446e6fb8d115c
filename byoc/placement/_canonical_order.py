"""A canonical order of units and tensors, so that results do not depend on the order in the file."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from byoc.numerics import sort_topologically
from byoc.placement._problem import Fusion, Ints, Problem
from byoc.placement._strategy import Placement


def order_canonically(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    """Return the problem in canonical order, and that order of its units, int64 (units,).

    `keys` are distinct names of the units (the first output, for example). Units are in topological
    order, the smallest key first; tensors are sorted by producer, consumers and costs, and two that
    agree in all of these are interchangeable. Unit `i` of the new problem is unit `order[i]` of the old
    one. Raises ValueError unless there is one distinct key for each unit.
    """
    if len(keys) != problem.units or len(set(keys)) < len(keys):
        raise ValueError(f"one distinct key for each of {problem.units} units is needed")
    before: list[list[int]] = [[] for _ in range(problem.units)]
    for source, target in zip(*(side.tolist() for side in problem.edges), strict=True):
        before[target].append(source)
    order = np.array(sort_topologically(before, keys), np.int64)
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    producer = np.append(position, -1)[problem.producer]
    start = problem.consumer_start.tolist()
    readers = position[problem.consumers].tolist()
    consumers = [tuple(sorted(readers[a:b])) for a, b in pairwise(start)]
    transfers = np.hstack([problem.to_device, problem.to_host]).tolist()
    content = list(zip(producer.tolist(), consumers, problem.is_output.tolist(), transfers, strict=True))
    tensors = sorted(range(problem.tensors), key=content.__getitem__)
    ordered = Problem.build(
        seconds=problem.seconds[order],
        producer=producer[tensors],
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
        fusions=[
            _renumber(problem.fusions[number], position) for number in _fusion_order(problem, position)
        ],
        occupies=problem.occupies,
        cores=problem.cores,
    )
    return ordered, order


def restore_order(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Convert a placement of the canonical problem to the original `problem` and its unit order."""
    labels, regions = np.empty_like(placement.labels), np.empty_like(placement.regions)
    labels[order], regions[order] = placement.labels, placement.regions
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    numbers = _fusion_order(problem, position)
    fusions = tuple(sorted(numbers[number] for number in placement.fusions))
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def _renumber(fusion: Fusion, position: Ints) -> Fusion:
    return Fusion(tuple(sorted(position[list(fusion.members)].tolist())), fusion.device, fusion.saving)


def _fusion_order(problem: Problem, position: Ints) -> list[int]:
    """Return the numbers of the fusions in canonical order."""
    fusions = [_renumber(fusion, position) for fusion in problem.fusions]
    content = [(fusion.members, fusion.device, fusion.saving) for fusion in fusions]
    return sorted(range(len(content)), key=content.__getitem__)
