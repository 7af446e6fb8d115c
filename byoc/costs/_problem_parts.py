"""Parts of the placement problem: its limits, and its costs in seconds, joules or objective units."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import BoundaryFormat
from byoc.costs._cost_model import CostModel
from byoc.costs._objective import LATENCY, Objective
from byoc.costs._price_query import ask_link_occupancy
from byoc.costs._transfer_costs import TransferCosts, UnitTensors
from byoc.errors import InputError
from byoc.model import GraphIndex
from byoc.patterns import JointUnit
from byoc.placement import UNLIMITED, Problem

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class PlacementDevice:
    """An accelerator in the placement problem: its costs and its limits on regions.

    `connected` states whether a region must be connected. The limits are nodes per region, regions, and
    bytes of constants of all units together. `wants` lists the conversions needed at its boundary.
    `keeps_state` says that a decoder's state stays on it between calls.
    """

    name: str
    costs: CostModel
    connected: bool = False
    min_nodes: int = 0
    max_nodes: int = UNLIMITED
    max_regions: int = UNLIMITED
    memory: float = inf
    wants: BoundaryFormat = field(default_factory=BoundaryFormat)
    keeps_state: bool = False


def build_unpriced_problem(  # noqa: PLR0913, PLR0917 - the parts of a problem
    index: GraphIndex,
    units: Sequence[JointUnit],
    devices: Sequence[PlacementDevice],
    moved: UnitTensors,
    seconds: NDArray[np.float64],
    needed: Collection[str],
) -> Problem:
    """Return the problem with its limits; transfers and launches are still free.

    `needed` are the outputs of the graph that the host has to get.
    """
    held = any(device.memory < inf for device in devices)
    constants = np.array([_constant_bytes(index, unit) if held else 0.0 for unit in units], np.float64)
    free = np.zeros((len(moved.names), len(devices)))
    size = np.array([len(unit.nodes) for unit in units], np.int64)
    some = any(part.must for unit in units for parts in unit.on_device for part in parts)
    must = np.array([some and unit.must for unit in units], np.bool_)
    must &= np.isfinite(seconds[:, 1:]).any(axis=1)
    fits = [
        (size <= device.max_nodes) & (constants <= device.memory) & (device.max_regions > 0)
        for device in devices
    ]
    taken = np.isfinite(seconds[:, 1:]) & np.stack(fits, axis=1) if fits else np.zeros((len(units), 0))
    for row in np.flatnonzero(must & ~taken.any(axis=1)).tolist():
        raise InputError(
            f"unit '{units[row].name}' has to be on an accelerator (level: must) and is above the "
            f"limits of {' and '.join(device.name for device in devices)}"
        )
    return Problem.build(
        seconds=seconds,
        producer=moved.producers,
        consumers=moved.consumers,
        is_output=[name in needed for name in moved.names],
        to_device=free,
        to_host=free,
        launch=np.zeros(len(devices)),
        connected=[device.connected for device in devices],
        must=must,
        size=size,
        min_nodes=[device.min_nodes for device in devices],
        max_nodes=[device.max_nodes for device in devices],
        max_regions=[device.max_regions for device in devices],
        memory=np.repeat(constants.reshape(-1, 1), len(devices), axis=1),
        capacity=[device.memory for device in devices],
        occupies=[ask_link_occupancy(device.costs) for device in devices],
    )


def _constant_bytes(index: GraphIndex, unit: JointUnit) -> float:
    """Return the bytes of the constants that a unit reads, each counted once."""
    names = dict.fromkeys(name for node in unit.nodes for name in index.reads[node])
    kinds = [index.types.get(name) for name in names if index.is_constant(name)]
    return float(sum(kind.bytes or 0 for kind in kinds if kind is not None))


def set_costs(
    problem: Problem,
    execution: NDArray[np.float64],
    crossing: Sequence[TransferCosts],
    part: int,
    launch: Sequence[float],
) -> Problem:
    """Return a problem with other costs; `part` is 0 for seconds and 1 for joules of transfers."""
    return replace(
        problem,
        seconds=execution,
        to_device=stack_columns([each.to_device[:, part] for each in crossing], problem.to_device),
        to_host=stack_columns([each.to_host[:, part] for each in crossing], problem.to_host),
        launch=np.array(launch),
    )


def stack_columns(each: Sequence[NDArray[_T]], none: NDArray[_T]) -> NDArray[_T]:
    """Stack columns; return `none` if there are none."""
    return np.stack(each, axis=1) if each else none


def weigh_costs(
    latency: Problem, energy: Problem | None, objective: Objective, models: Sequence[CostModel]
) -> Problem:
    """Return the problem in the units of the objective."""
    if objective == LATENCY:
        return latency
    if energy is None and not objective.energy:
        energy = latency
    if energy is None:
        names = ", ".join(dict.fromkeys(model.name for model in models))
        raise InputError(f"objective {objective}: not all of the cost models {names} give joules")
    return replace(
        latency,
        seconds=_weigh(objective, latency.seconds, energy.seconds),
        to_device=_weigh(objective, latency.to_device, energy.to_device),
        to_host=_weigh(objective, latency.to_host, energy.to_host),
        launch=_weigh(objective, latency.launch, energy.launch),
    )


def _weigh(
    objective: Objective, seconds: NDArray[np.float64], joules: NDArray[np.float64]
) -> NDArray[np.float64]:
    refused = np.isinf(seconds)
    value = objective.combine(np.where(refused, 0, seconds), np.where(refused, 0, joules))
    return np.where(refused, inf, value)
