"""Small random problems with any of the features, by seed."""

from dataclasses import replace

import numpy as np

from byoc.placement import Fusion, Occupancy, Problem

FEATURES = (
    "launch",
    "must",
    "capacity",
    "region count",
    "region size",
    "fusions",
    "connected",
    "two devices",
    "three devices",
    "four devices",
)


def count_devices(features: frozenset[str]) -> int:
    """The number of accelerators that features ask for: the largest of those named, else one."""
    names = ("two devices", "three devices", "four devices")
    return max((2 + place for place, name in enumerate(names) if name in features), default=1)


def random_problem(seed: int, most_units: int, features: frozenset[str]) -> Problem:
    rng = np.random.default_rng(seed)
    devices = count_devices(features)
    units = int(rng.integers(1, most_units + 1))
    seconds = np.column_stack([rng.uniform(0.5, 3, units), rng.uniform(0.1, 2, (units, devices))])
    seconds[:, 1:][rng.random((units, devices)) < 0.2] = np.inf
    tensors = int(rng.integers(1, units + 4))
    producer = rng.integers(-1, units, tensors)
    consumers = [_later(rng, made, units) for made in producer.tolist()]
    scale = 10.0 ** rng.uniform(-1.5, 0.3)
    must = np.zeros(units, np.bool_)
    if "must" in features:
        must = (rng.random(units) < 0.2) & np.isfinite(seconds[:, 1:]).any(axis=1)
    size = rng.integers(1, 4, units)
    memory = rng.uniform(0, 2, (units, devices))
    sized = "region size" in features
    return Problem.build(
        seconds=seconds,
        producer=producer,
        consumers=consumers,
        is_output=rng.random(tensors) < 0.3,
        to_device=rng.uniform(0, scale, (tensors, devices)),
        to_host=rng.uniform(0, scale, (tensors, devices)),
        launch=rng.uniform(0, 1.5, devices) if "launch" in features else np.zeros(devices),
        connected=np.full(devices, "connected" in features),
        must=must,
        size=size,
        min_nodes=rng.integers(0, 5, devices) if sized else None,
        max_nodes=rng.integers(4, 10, devices) if sized else None,
        max_regions=rng.integers(1, 3, devices) if "region count" in features else None,
        memory=memory,
        # Any one unit fits, so that what must be on an accelerator can be.
        capacity=np.maximum(rng.uniform(0.3, 0.8) * memory.sum(axis=0), memory.max(axis=0))
        if "capacity" in features
        else None,
        fusions=_fusions(rng, seconds, producer, consumers) if "fusions" in features else (),
    )


def alike(problem: Problem) -> Problem:
    """The same with accelerators like the first, whose transfers occupy them."""
    count = problem.devices
    return replace(
        problem,
        seconds=np.repeat(problem.seconds[:, [0, 1]], [1, count], axis=1),
        memory=np.repeat(problem.memory[:, :1], count, axis=1),
        to_device=np.repeat(problem.to_device[:, :1], count, axis=1),
        to_host=np.repeat(problem.to_host[:, :1], count, axis=1),
        occupies=(Occupancy.device,) * count,
    )


def _later(rng: np.random.Generator, made: int, units: int) -> list[int]:
    if made + 1 >= units:
        return []
    near = made + 1 + rng.geometric(0.4, rng.integers(0, 4)) - 1
    return sorted({int(unit) for unit in near if unit < units})


def _fusions(
    rng: np.random.Generator, seconds: np.ndarray, producer: np.ndarray, consumers: list[list[int]]
) -> list[Fusion]:
    """Pairs and triples along edges, some of which overlap, wait for each other, or go round."""
    found = []
    edges = [(made, to) for made, ends in zip(producer.tolist(), consumers, strict=True) for to in ends]
    edges = sorted({(made, to) for made, to in edges if made >= 0})
    for made, to in edges:
        device = int(rng.integers(1, seconds.shape[1]))
        members = {made, to} | {end for begin, end in edges if begin == to and rng.random() < 0.4}
        apart = seconds[sorted(members), device].sum()
        if np.isfinite(apart) and rng.random() < 0.6:
            found.append(Fusion(tuple(sorted(members)), device, float(apart * rng.uniform(0, 0.9))))
    return found[:6]
