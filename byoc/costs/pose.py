"""From units and cost models to the partitioner's problem, which is numbers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.crossing import own_quantization
from byoc.costs.conversions import moving
from byoc.costs.flows import flows
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
from byoc.costs.problem import Device, combined, limited, priced, side_by_side
from byoc.costs.task import Tasks, tasks
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe
from byoc.patterns.joint import JointUnit
from byoc.patterns.unit import Unit
from byoc.placement import Fusion, Problem


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
    each accelerator those, by number, that may not run there for that, or because its codegen refused
    them, with the reason. `sizes`
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
    refused: Sequence[Mapping[int, str]] = (),
) -> Posed:
    """Return the placement problem of the units on a host and some accelerators.

    On the host a unit's nodes run one by one; on an accelerator a composite or a QDQ group runs as one,
    so what is made and used inside it costs no memory traffic there. What byoc put in to quantize costs
    nothing on the host: it is gone where both sides are there, and a conversion where a tensor crosses;
    such conversions are part of the transfers. `bodies` has the cost of each node
    with bodies, by its number. `refused` has for each accelerator the units, by number, that it turned
    out not to take, with the reason. Raises InputError under `Policy.refuse` when a cost is not known,
    and when the objective counts joules and a cost model gives none.
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
        out = {row: why for row, why in refused[number].items() if taken[row]} if refused else {}
        taken[list(out)] = False
        if unknown is Policy.refuse:
            there.require(np.flatnonzero(taken & ~inner), names)
        kept.append(out | policed(there, unknown, (taken & ~inner).tolist()))
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
    latency = limited(index, units, devices, moved, seconds)
    latency = priced(latency, seconds, crossing, 0, [p.seconds for p in starting])
    launches = [p.joules for p in starting]
    sides = (side[:, 1] for each in crossing for side in (each.to_device, each.to_host))
    known = not any(np.isnan(part).any() for part in (joules, *sides, np.array(launches)))
    energy = priced(latency, joules, crossing, 1, launches) if known else None
    problem = combined(latency, energy, objective, (host, *(device.costs for device in devices)))
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
        sizes=side_by_side([each.sizes for each in crossing], np.zeros((len(moved.names), 0), np.int64)),
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
