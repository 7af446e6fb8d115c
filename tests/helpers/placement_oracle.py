"""Random problems, and slow answers to them that share no code with byoc.placement."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from byoc.placement import Problem
from helpers.support import examples

# Each run tries new examples; hypothesis prints one that fails, and tries it first in the next run.
thorough = settings(max_examples=examples(300), deadline=None)

# Ties, sums that binary floats get wrong, and 18 decimal orders of magnitude.
COSTS = st.sampled_from([0.0, 1e-12, 1e-6, 0.1, 0.2, 0.3, 1.0, 2.0, 7.5, 1e6]) | st.floats(0, 4)
OFTEN_REFUSED = COSTS | st.just(inf)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most_units: int = 12,
    devices: st.SearchStrategy[int] = st.just(1),  # noqa: B008 (immutable)
    costs: st.SearchStrategy[float] = COSTS,
    launches: st.SearchStrategy[float] = COSTS,
) -> Problem:
    units, count = draw(st.integers(0, most_units)), draw(devices)
    host = draw(st.lists(costs, min_size=units, max_size=units))
    often = costs | st.just(inf)
    device = draw(st.lists(often, min_size=units * count, max_size=units * count))
    seconds = np.column_stack([host, np.reshape(device, (units, count))])
    producer = draw(st.lists(st.integers(-1, units - 1), max_size=units + 4))
    tensors = len(producer)
    ways = st.lists(costs, min_size=tensors * count, max_size=tensors * count)
    return Problem.build(
        seconds=seconds,
        producer=producer,
        consumers=[
            draw(st.lists(st.integers(made + 1, units - 1), max_size=6)) if made + 1 < units else []
            for made in producer
        ],
        is_output=[draw(st.integers(0, 3)) == 0 for _ in producer],
        to_device=np.reshape(draw(ways), (tensors, count)),
        to_host=np.reshape(draw(ways), (tensors, count)),
        launch=draw(st.lists(launches, min_size=count, max_size=count)),
        connected=draw(st.lists(st.booleans(), min_size=count, max_size=count)),
    )


@st.composite
def labelled(
    draw: st.DrawFn, *, most_units: int = 12, most_devices: int = 3
) -> tuple[Problem, np.ndarray]:
    problem = draw(problems(most_units=most_units, devices=st.integers(1, most_devices)))
    anywhere = st.integers(0, problem.devices)
    labels = draw(st.lists(anywhere, min_size=problem.units, max_size=problem.units))
    return problem, np.array(labels, np.int64)


def chain(
    host: ArrayLike, device: ArrayLike, *, down: float = 0.0, up: float = 0.0, launch: float = 0.0
) -> Problem:
    """Units in a row: tensor v goes into unit v, tensor v + 1 comes out; the last is the output."""
    units = len(np.asarray(host))
    return Problem.build(
        seconds=np.column_stack([host, device]),
        producer=range(-1, units),
        consumers=[[unit] for unit in range(units)] + [[]],
        is_output=[tensor == units for tensor in range(units + 1)],
        to_device=np.full((units + 1, 1), down),
        to_host=np.full((units + 1, 1), up),
        launch=[launch],
    )


def readers(problem: Problem, tensor: int) -> list[int]:
    start = problem.consumer_start
    return [int(unit) for unit in problem.consumers[start[tensor] : start[tensor + 1]]]


def slow_edges(problem: Problem) -> set[tuple[int, int]]:
    return {
        (made, reader)
        for tensor, made in enumerate(problem.producer.tolist())
        for reader in readers(problem, tensor)
        if made >= 0
    }


class SlowCost:
    """Execution plus transfer, one tensor and one move at a time."""

    def __init__(self, problem: Problem) -> None:
        self.seconds = problem.seconds.tolist()
        self.tensors = [
            (made, readers(problem, tensor), problem.is_output[tensor])
            for tensor, made in enumerate(problem.producer.tolist())
        ]
        self.down, self.up = problem.to_device.tolist(), problem.to_host.tolist()

    def __call__(self, labels: tuple[int, ...]) -> float:
        cost: float = sum(row[device] for row, device in zip(self.seconds, labels, strict=True))
        for tensor, (made, consumers, is_output) in enumerate(self.tensors):
            home = labels[made] if made >= 0 else 0
            places = {labels[reader] for reader in consumers} | ({0} if is_output else set())
            places.discard(home)
            if places and home:
                cost += self.up[tensor][home - 1]
            cost += sum(self.down[tensor][place - 1] for place in places if place)
        return cost


def every_labels(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All labels that no rule refuses."""
    allowed = [
        [device for device, seconds in enumerate(row) if seconds < inf]
        for row in problem.seconds.tolist()
    ]
    assert prod(map(len, allowed)) <= 2**12
    return product(*allowed)


def slow_optimum(problem: Problem) -> float:
    cost = SlowCost(problem)
    return min(cost(labels) for labels in every_labels(problem))


def slow_is_acyclic(problem: Problem, regions: list[int]) -> bool:
    """Take away nodes without a predecessor until none is left (Kahn)."""
    node = [("region", r) if r >= 0 else ("unit", unit) for unit, r in enumerate(regions)]
    edges = {(node[u], node[v]) for u, v in slow_edges(problem) if node[u] != node[v]}
    nodes = set(node)
    while nodes:
        free = nodes - {target for _, target in edges}
        if not free:
            return False
        nodes -= free
        edges = {edge for edge in edges if edge[0] not in free}
    return True


def partitions(units: list[int], labels: list[int]) -> Iterator[list[list[int]]]:
    """All ways to gather units into groups of one device each."""
    if not units:
        yield []
        return
    first, *rest = units
    for groups in partitions(rest, labels):
        yield [[first], *groups]
        for place, group in enumerate(groups):
            if labels[group[0]] == labels[first]:
                yield [*groups[:place], [first, *group], *groups[place + 1 :]]


def every_region(problem: Problem) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """All lawful labels and regions: the device of each unit, and the number of its region or -1."""
    for labels in every_labels(problem):
        if not slow_fits(problem, labels):
            continue
        placed = [unit for unit, label in enumerate(labels) if label]
        for groups in partitions(placed, list(labels)):
            if slow_regions(problem, labels, groups) == inf:
                continue
            regions = [-1] * problem.units
            for number, group in enumerate(groups):
                for unit in group:
                    regions[unit] = number
            yield labels, regions


def fewest_regions(problem: Problem, labels: list[int]) -> int:
    """The least number of regions, connected or not, whose contraction is acyclic."""
    placed = [unit for unit, device in enumerate(labels) if device]
    best = len(placed)
    for groups in partitions(placed, labels):
        if len(groups) < best:
            regions = [-1] * len(labels)
            for number, group in enumerate(groups):
                for unit in group:
                    regions[unit] = number
            if slow_is_acyclic(problem, regions):
                best = len(groups)
    return best


def slow_best(problem: Problem) -> float:
    """The least total over all labels, all acyclic regions and all fusions; inf where none is lawful."""
    cost = SlowCost(problem)
    best = inf
    for labels in every_labels(problem):
        if not slow_fits(problem, labels):
            continue
        base = cost(labels)
        if base - sum(fusion.saving for fusion in problem.fusions) >= best:
            continue
        placed = [unit for unit, label in enumerate(labels) if label]
        for groups in partitions(placed, list(labels)):
            best = min(best, base + slow_regions(problem, labels, groups))
    return best


def slow_fits(problem: Problem, labels: tuple[int, ...]) -> bool:
    """Whether units that must be on an accelerator are, and each accelerator holds what is on it."""
    if any(must and not label for must, label in zip(problem.must, labels, strict=True)):
        return False
    loads = [
        sum(row[d] for row, label in zip(problem.memory.tolist(), labels, strict=True) if label == d + 1)
        for d in range(problem.devices)
    ]
    return all(load <= room + 1e-12 for load, room in zip(loads, problem.capacity.tolist(), strict=True))


def slow_regions(problem: Problem, labels: tuple[int, ...], groups: list[list[int]]) -> float:
    """Launches less savings of some regions, inf where they break a limit or wait in a circle."""
    count = dict.fromkeys(range(1, 1 + problem.devices), 0)
    launches = 0.0
    regions = [-1] * len(labels)
    for number, members in enumerate(groups):
        device = labels[members[0]]
        nodes = sum(int(problem.size[unit]) for unit in members)
        if not problem.min_nodes[device - 1] <= nodes <= problem.max_nodes[device - 1]:
            return inf
        if problem.connected[device - 1] and not _is_connected(problem, members):
            return inf
        count[device] += 1
        launches += float(problem.launch[device - 1])
        for unit in members:
            regions[unit] = number
    if any(most < count[d] for d, most in enumerate(problem.max_regions.tolist(), 1)):
        return inf
    if not slow_is_acyclic(problem, regions):
        return inf
    return launches - slow_savings(problem, labels, regions)


def _is_connected(problem: Problem, members: list[int]) -> bool:
    inside = [edge for edge in slow_edges(problem) if set(edge) <= set(members)]
    reached = {members[0]}
    for _ in members:
        for edge in inside:
            if reached & set(edge):
                reached |= set(edge)
    return reached == set(members)


def slow_savings(problem: Problem, labels: tuple[int, ...], regions: list[int]) -> float:
    """The most that fusions save, each in one region, apart from one another and in no circle."""
    best = 0.0
    open_to = [
        fusion
        for fusion in problem.fusions
        if {labels[unit] for unit in fusion.members} == {fusion.device}
        and len({regions[unit] for unit in fusion.members}) == 1
    ]
    for choice in product((False, True), repeat=len(open_to)):
        chosen = [fusion for fusion, taken in zip(open_to, choice, strict=True) if taken]
        members = [unit for fusion in chosen for unit in fusion.members]
        saving = sum(fusion.saving for fusion in chosen)
        if saving <= best or len(set(members)) < len(members):
            continue
        groups = [-1] * len(labels)
        for number, fusion in enumerate(chosen):
            for unit in fusion.members:
                groups[unit] = number
        if slow_is_acyclic(problem, groups):
            best = saving
    return best


def ints(*values: int) -> Any:
    """Return numbers as int64 (values,), such as labels."""
    return np.array(values, np.int64)


def limited(problem: Problem, **limits: Any) -> Problem:
    """Return a problem with other limits, or other arrays, given as lists."""
    return replace(problem, **{name: np.array(value) for name, value in limits.items()})
