"""A canonical order of units and tensors, so that results do not depend on the order in the file."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from byoc.numerics import sort_topologically
from byoc.placement._problem import Fusion, Ints, Problem
from byoc.placement._strategy import Placement


def order_canonically(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    """Return the problem in canonical order, and that order of its units, int64 (units,).

    `keys` are distinct names of the units (the first output, for example). Units are in topological
    order, the smallest key first; tensors are sorted by producer, consumers and costs, and two that
    agree in all of these are interchangeable. Unit `i` of the new problem is unit `order[i]` of the old
    one. The order of a problem is found once, however often it is asked for. Raises ValueError unless
    there is one distinct key for each unit.
    """
    known = _ORDERS.get(problem)
    if known is None or known[0] != list(keys):
        known = _ORDERS[problem] = (list(keys), *_order(problem, keys))
    return known[1:]


_ORDERS: "WeakKeyDictionary[Problem, tuple[list[str], Problem, Ints]]" = WeakKeyDictionary()


def _order(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    if len(keys) != problem.units or len(set(keys)) < len(keys):
        raise ValueError(f"one distinct key for each of {problem.units} units is needed")
    source, target = problem.edges
    reader = np.argsort(target, kind="stable")
    producers = source[reader].tolist()
    starts = np.searchsorted(target[reader], np.arange(problem.units + 1)).tolist()
    before = [producers[first:last] for first, last in pairwise(starts)]
    order = np.array(sort_topologically(before, keys), np.int64)
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    tensors = _order_tensors(problem, position)
    rank = np.empty(problem.tensors, np.int64)
    rank[tensors] = np.arange(problem.tensors)
    readers = position[problem.consumers]
    start = np.zeros(problem.tensors + 1, np.int64)
    np.cumsum(np.diff(problem.consumer_start)[tensors], out=start[1:])
    ordered = replace(
        problem,
        seconds=problem.seconds[order],
        producer=np.append(position, -1)[problem.producer][tensors],
        consumer_start=start,
        consumers=readers[np.lexsort((readers, rank[problem.consumed]))],
        is_output=problem.is_output[tensors],
        to_device=problem.to_device[tensors],
        to_host=problem.to_host[tensors],
        must=problem.must[order],
        size=problem.size[order],
        memory=problem.memory[order],
        fusions=tuple(
            _renumber(problem.fusions[number], position) for number in _fusion_order(problem, position)
        ),
    )
    return ordered, order


def _order_tensors(problem: Problem, position: Ints) -> Ints:
    """Return the tensors sorted by producer, consumers and costs, by the new numbers of units."""
    producer = np.append(position, -1)[problem.producer]
    order = np.argsort(producer, kind="stable")
    starts = np.flatnonzero(np.diff(producer[order], prepend=-2, append=problem.units))

    def describe(tensor: int) -> tuple[object, ...]:
        read = problem.consumers[problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]]
        transfers = [*problem.to_device[tensor].tolist(), *problem.to_host[tensor].tolist()]
        return sorted(position[read].tolist()), bool(problem.is_output[tensor]), transfers

    for first, last in pairwise(starts.tolist()):
        if last - first > 1:  # most units make one tensor
            order[first:last] = sorted(order[first:last].tolist(), key=describe)
    return order


def restore_order(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Convert a placement of the canonical problem to the original `problem` and its unit order."""
    labels, regions = np.empty_like(placement.labels), np.empty_like(placement.regions)
    labels[order], regions[order] = placement.labels, placement.regions
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    numbers = _fusion_order(problem, position)
    fusions = tuple(sorted(numbers[number] for number in placement.fusions))
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def reorder_placement(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Convert a placement of a problem to its canonical order, the inverse of `restore_order`."""
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    number_of = {number: new for new, number in enumerate(_fusion_order(problem, position))}
    fusions = tuple(sorted(number_of[number] for number in placement.fusions))
    labels, regions = placement.labels[order], placement.regions[order]
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def _renumber(fusion: Fusion, position: Ints) -> Fusion:
    return Fusion(tuple(sorted(position[list(fusion.members)].tolist())), fusion.device, fusion.saving)


def _fusion_order(problem: Problem, position: Ints) -> list[int]:
    """Return the numbers of the fusions in canonical order."""
    fusions = [_renumber(fusion, position) for fusion in problem.fusions]
    content = [(fusion.members, fusion.device, fusion.saving) for fusion in fusions]
    return sorted(range(len(content)), key=content.__getitem__)
