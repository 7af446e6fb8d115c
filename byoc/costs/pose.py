"""From units and cost models to the partitioner's problem, which is numbers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.border import Wants
from byoc.boundary.crossing import own_quantization
from byoc.costs.conversions import Moving, moving
from byoc.costs.flows import Flows, flows
from byoc.costs.model import CostModel, Policy, Price
from byoc.costs.objective import LATENCY, Objective
from byoc.costs.prices import (
    Prices,
    device_prices,
    host_prices,
    launch_price,
    node_prices,
    policed,
)
from byoc.costs.task import Tasks, tasks
from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe
from byoc.patterns.joint import JointUnit
from byoc.patterns.unit import Unit
from byoc.placement import UNLIMITED, Fusion, Problem

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Device:
    """An accelerator as the problem sees it: what things cost there, what its regions must be.

    `connected` says whether a region must hang together; the limits are nodes of a region, regions, and
    bytes of constants that all units there may have together; `wants` is what has to be done to tensors
    at its borders.
    """

    name: str
    costs: CostModel
    connected: bool = False
    min_nodes: int = 0
    max_nodes: int = UNLIMITED
    max_regions: int = UNLIMITED
    memory: float = inf
    wants: Wants = field(default_factory=Wants)


@dataclass(frozen=True, slots=True)
class BodyCost:
    """What the bodies of a node cost for one run of the node, their trips counted.

    `host` is for the node on the host, where regions may have formed in the bodies; `devices` for all of
    it on each accelerator.
    """

    host: Price
    devices: tuple[Price, ...]
    operations: float


@dataclass(frozen=True, eq=False)
class Alternative:
    """Units, by number, that an accelerator (1 on) may run as one composite: the placement decides."""

    device: int
    rows: tuple[int, ...]
    unit: Unit


@dataclass(frozen=True, eq=False)
class Posed:
    """A problem and what its rows stand for.

    `problem` is in the units of the objective, `latency` the same in seconds and `energy` in joules,
    None where some price has none. `tensors` names the problem's tensors; `x:shape` is what crosses
    where only the shape of `x` is asked for. `operations` (float64, one per unit) is the compute of each
    unit, `estimated` counts the units with a cost that is a guess, as it was not known; `kept` has for
    each accelerator those, by number, that may not run there for that, with the reason. `sizes`
    (int64, (tensors, devices)) are the bytes that cross, `willing` (float64, (units, devices)) what each
    accelerator would take in the units of the objective, units that it refuses included; infinite or not
    a number where that is not known. `alternatives` are the composites behind the problem's fusions, one
    each.
    """

    problem: Problem
    latency: Problem
    energy: Problem | None
    tensors: tuple[str, ...]
    operations: NDArray[np.float64]
    estimated: int
    kept: tuple[Mapping[int, str], ...]
    sizes: NDArray[np.int64]
    willing: NDArray[np.float64]
    alternatives: tuple[Alternative, ...] = ()


def pose(  # noqa: PLR0913, PLR0917 - what costs where
    index: GraphIndex,
    units: Sequence[JointUnit],
    host: CostModel,
    devices: Sequence[Device],
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
    objective: Objective = LATENCY,
    alternatives: Sequence[Alternative] = (),
) -> Posed:
    """Return the placement problem of the units on a host and some accelerators.

    On the host a unit's nodes run one by one; on an accelerator a composite or a QDQ group runs as one,
    so what is made and used inside it costs no memory traffic there. What byoc put in to quantize costs
    nothing on the host: it is gone where both sides are there, and a conversion where a tensor crosses;
    such conversions are part of the transfers. `bodies` has the cost of each node
    with bodies, by its number. Raises InputError under `Policy.refuse` when a cost is not known, and
    when the objective counts joules and a cost model gives none.
    """
    works = tasks(index)
    there_works = [tasks(index, d.wants.compute) if d.wants.compute else works for d in devices]
    quantizing = own_quantization(index)
    own = host_prices(host, works, units, quantizing)
    inner = np.array([unit.nodes[0] in bodies for unit in units], np.bool_)
    names = [unit.name for unit in units]
    if unknown is Policy.refuse:
        own.require(np.flatnonzero(~inner), names)
    columns = [(own.seconds, own.joules)]
    kept: list[Mapping[int, str]] = []
    rough = own.unknown & ~inner
    willing = np.empty((len(units), len(devices)))
    for number, device in enumerate(devices):
        there = _on_device(device.costs, there_works[number], units, number)
        willing[:, number] = objective.of(there.seconds, there.joules)
        taken = np.array([unit.taken(number) for unit in units], np.bool_)
        if unknown is Policy.refuse:
            there.require(np.flatnonzero(taken & ~inner), names)
        kept.append(policed(there, unknown, (taken & ~inner).tolist()))
        taken[list(kept[-1])] = False
        rough |= there.unknown & taken & ~inner
        columns.append((np.where(taken, there.seconds, inf), np.where(taken, there.joules, inf)))
    seconds, joules = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
    operations = works.unit_operations(units, quantizing)
    willing[inner] = inf
    for row in np.flatnonzero(inner).tolist():
        body = bodies[units[row].nodes[0]]
        for column, price in enumerate((body.host, *body.devices)):
            if np.isfinite(seconds[row, column]) or not column:
                seconds[row, column], joules[row, column] = price.seconds, price.joules
        operations[row] = body.operations
    moved = flows(index, works, units)
    crossing = [moving(host, each.costs, each.wants, works, quantizing, moved) for each in devices]
    starting = [launch_price(device.costs) for device in devices]
    latency = _problem(index, units, devices, moved, seconds)
    latency = _priced(latency, seconds, crossing, 0, [p.seconds for p in starting])
    launches = [p.joules for p in starting]
    sides = (side[:, 1] for each in crossing for side in (each.to_device, each.to_host))
    known = not any(np.isnan(part).any() for part in (joules, *sides, np.array(launches)))
    energy = _priced(latency, joules, crossing, 1, launches) if known else None
    problem = _combined(latency, energy, objective, (host, *(device.costs for device in devices)))
    fused = [
        (each, device_prices(devices[at].costs, there_works[at], [each.unit]))
        for each in alternatives
        for at in (each.device - 1,)
    ]
    left_open = [
        (alternative, float(prices.seconds[0]), float(prices.joules[0]))
        for alternative, prices in fused
        if _saving(problem, alternative, objective.of(prices.seconds[0], prices.joules[0])) > 0
    ]
    return Posed(
        problem=_fusing(problem, [(a, objective.of(s, j)) for a, s, j in left_open]),
        latency=_fusing(latency, [(a, s) for a, s, _ in left_open]),
        energy=None if energy is None else _fusing(energy, [(a, j) for a, _, j in left_open]),
        alternatives=tuple(alternative for alternative, _, _ in left_open),
        tensors=tuple(moved.names),
        operations=operations,
        estimated=int(rough.sum()),
        kept=tuple(kept),
        sizes=_columns([each.sizes for each in crossing], np.zeros((len(moved.names), 0), np.int64)),
        willing=willing,
    )


def _saving(problem: Problem, alternative: Alternative, fused: float) -> float:
    """Return what running some units as one saves; nothing where one of them may not run there."""
    saving = float(problem.seconds[list(alternative.rows), alternative.device].sum()) - fused
    return saving if saving < inf else 0.0


def _fusing(problem: Problem, priced: Sequence[tuple[Alternative, float]]) -> Problem:
    """Return a problem with the composites that are left to the placement, at the prices given."""
    if not priced:
        return problem
    fusions = [
        Fusion(each.rows, each.device, max(0.0, _saving(problem, each, price))) for each, price in priced
    ]
    return replace(problem, fusions=tuple(fusions))


def _on_device(costs: CostModel, works: Tasks, units: Sequence[JointUnit], number: int) -> Prices:
    """Return the price of each joint unit on an accelerator: those of its units there, added up."""
    parts = [unit.on[number] for unit in units]
    each = device_prices(costs, works, [part for group in parts for part in group])
    if all(len(group) == 1 for group in parts):
        return each
    row = np.repeat(np.arange(len(parts)), [len(group) for group in parts])
    why: list[str] = [""] * len(parts)
    for place, reason in zip(row.tolist(), each.why, strict=True):
        why[place] = why[place] or reason
    return Prices(
        each.model,
        np.bincount(row, each.seconds, len(parts)).astype(np.float64),
        np.bincount(row, each.joules, len(parts)).astype(np.float64),
        np.array([bool(reason) for reason in why], np.bool_),
        why,
    )


def _problem(
    index: GraphIndex,
    units: Sequence[JointUnit],
    devices: Sequence[Device],
    moved: Flows,
    seconds: NDArray[np.float64],
) -> Problem:
    """Return the problem with its limits; transfers and launches are free as yet."""
    outputs = index.outputs
    held = any(device.memory < inf for device in devices)
    constants = np.array([_constant_bytes(index, unit) if held else 0.0 for unit in units], np.float64)
    free = np.zeros((len(moved.names), len(devices)))
    size = np.array([len(unit.nodes) for unit in units], np.int64)
    some = any(part.must for unit in units for parts in unit.on for part in parts)
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
        is_output=[name in outputs for name in moved.names],
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
    )


def _constant_bytes(index: GraphIndex, unit: JointUnit) -> float:
    """Return the bytes of the constants that a unit reads, each once."""
    names = dict.fromkeys(name for node in unit.nodes for name in index.reads[node])
    kinds = [index.types.get(name) for name in names if index.is_constant(name)]
    return float(sum(kind.bytes or 0 for kind in kinds if kind is not None))


def _priced(
    problem: Problem,
    execution: NDArray[np.float64],
    crossing: Sequence[Moving],
    part: int,
    launch: Sequence[float],
) -> Problem:
    """Return a problem with other costs; `part` is 0 for the seconds of what crosses, 1 for joules."""
    return replace(
        problem,
        seconds=execution,
        to_device=_columns([each.to_device[:, part] for each in crossing], problem.to_device),
        to_host=_columns([each.to_host[:, part] for each in crossing], problem.to_host),
        launch=np.array(launch),
    )


def _columns(columns: Sequence[NDArray[_T]], none: NDArray[_T]) -> NDArray[_T]:
    """Return columns side by side, `none` where there are none."""
    return np.stack(columns, axis=1) if columns else none


def _combined(
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
        seconds=_weighted(objective, latency.seconds, energy.seconds),
        to_device=_weighted(objective, latency.to_device, energy.to_device),
        to_host=_weighted(objective, latency.to_host, energy.to_host),
        launch=_weighted(objective, latency.launch, energy.launch),
    )


def _weighted(
    objective: Objective, seconds: NDArray[np.float64], joules: NDArray[np.float64]
) -> NDArray[np.float64]:
    refused = np.isinf(seconds)
    value = objective.of(np.where(refused, 0, seconds), np.where(refused, 0, joules))
    return np.where(refused, inf, value)


def alone(
    index: GraphIndex, device: CostModel, unknown: Policy = Policy.estimate
) -> tuple[Price, float]:
    """Return the price and the operations of a graph all of whose nodes run on a device one by one.

    Nodes with bodies are left out; their cost is the caller's to add. What byoc put in to quantize costs
    nothing. Where a cost is not known,
    `Policy.refuse` raises InputError, and `Policy.host` gives infinity; for the host pass
    `unknown.on_host`.
    """
    works = tasks(index)
    prices = node_prices(device, works)
    left = index.bodies.keys() | own_quantization(index)
    rows = [i for i in range(len(index.nodes)) if works.of[i] >= 0 and i not in left]
    if unknown is Policy.refuse:
        prices.require(rows, [describe(node) for node in index.nodes])
    operations = float(works.operations[rows].sum())
    if unknown is Policy.host and prices.unknown[rows].any():
        return Price(inf, inf), operations
    return Price(float(prices.seconds[rows].sum()), float(prices.joules[rows].sum())), operations
