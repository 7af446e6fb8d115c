"""Random graphs with costs of one magnitude, and the same problem in another order."""

import random
from dataclasses import replace
from math import inf

import numpy as np

from byoc.placement import Problem
from helpers.placement_oracle import readers, slow_edges


def random_problem(
    seed: int, units: int, devices: int = 1, *, tree: bool = False, launch: float = 0.0
) -> Problem:
    """A graph input feeds unit 0; every other unit reads one or (unless a tree) two of those before."""
    rng = random.Random(seed)
    consumers: list[list[int]] = [[] for _ in range(units + 1)]
    consumers[0] = [0]
    for unit in range(1, units):
        for _ in range(1 if tree else rng.choice([1, 1, 2])):
            consumers[1 + rng.randrange(max(0, unit - 4), unit)].append(unit)
    seconds = [
        [rng.uniform(1, 10), *(rng.choice([inf, rng.uniform(0.1, 5)]) for _ in range(devices))]
        for _ in range(units)
    ]
    ways = [[[rng.uniform(0, 4) for _ in range(devices)] for _ in consumers] for _ in range(2)]
    return Problem.build(
        seconds=seconds,
        producer=range(-1, units),
        consumers=consumers,
        is_output=[not reading for reading in consumers],
        to_device=ways[0],
        to_host=ways[1],
        launch=[launch] * devices,
    )


def limited(problem: Problem, seed: int) -> Problem:
    """The same with a few units that must be on an accelerator, memory, and caps on regions."""
    rng = random.Random(seed)
    anywhere = np.isfinite(problem.seconds[:, 1:]).any(axis=1)
    return replace(
        problem,
        must=anywhere & np.array([rng.random() < 0.1 for _ in range(problem.units)]),
        memory=np.array([[rng.uniform(0, 4)] * problem.devices for _ in range(problem.units)]),
        capacity=np.full(problem.devices, rng.choice([inf, 4.0 + problem.units])),
        max_regions=np.full(problem.devices, rng.choice([2, 2**62]), np.int64),
        min_nodes=np.full(problem.devices, rng.choice([0, 2]), np.int64),
    )


def reordered(problem: Problem, seed: int) -> tuple[Problem, list[int]]:
    """Shuffle the tensors, and the units as far as they may; return the new place of each unit."""
    rng = random.Random(seed)
    edges = slow_edges(problem)
    order: list[int] = []
    waiting = set(range(problem.units))
    while waiting:
        free = sorted(waiting - {target for source, target in edges if source in waiting})
        order.append(rng.choice(free))
        waiting.remove(order[-1])
    place = [order.index(unit) for unit in range(problem.units)]
    tensors = rng.sample(range(problem.tensors), problem.tensors)
    other = Problem.build(
        seconds=problem.seconds[order],
        producer=[place[p] if p >= 0 else -1 for p in problem.producer[tensors].tolist()],
        consumers=[[place[unit] for unit in readers(problem, tensor)] for tensor in tensors],
        is_output=problem.is_output[tensors],
        to_device=problem.to_device[tensors],
        to_host=problem.to_host[tensors],
        launch=problem.launch,
    )
    return other, place


def hub(devices: int, readers: int) -> Problem:
    """A unit whose result as many others read, each fast on an accelerator of its own."""
    seconds = np.full((1 + readers, 1 + devices), 100.0)
    seconds[0] = 1.0
    for unit in range(1, 1 + readers):
        seconds[unit, unit] = 1.0
    return Problem.build(
        seconds=seconds,
        producer=[0],
        consumers=[range(1, 1 + readers)],
        is_output=[False],
        to_device=np.full((1, devices), 1.0),
        to_host=np.full((1, devices), 1.0),
        launch=[0.0] * devices,
    )
