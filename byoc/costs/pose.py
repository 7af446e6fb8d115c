"""From units and cost models to the partitioner's problem, which is numbers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.costs.model import CostModel, Policy
from byoc.costs.prices import (
    device_prices,
    host_prices,
    launch_price,
    node_prices,
    policed,
    transfer_prices,
)
from byoc.costs.task import Tasks, tasks
from byoc.costs.work import SHAPES
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe, is_onnx
from byoc.patterns.group import Unit
from byoc.placement import Problem

# A shape that crosses is a number of 64 bits for each dimension.
_DIM_BYTES = 8


@dataclass(frozen=True, slots=True)
class BodyCost:
    """What the bodies of a node cost for one run of the node, their trips counted.

    `host` are the seconds with the node on the host, where regions may have formed in the bodies;
    `device` those with all of it on the accelerator.
    """

    host: float
    device: float
    operations: float


@dataclass(frozen=True, eq=False)
class Posed:
    """A problem and what its rows stand for.

    `tensors` names the problem's tensors; `x:shape` is what crosses where only the shape of `x` is asked
    for. `operations` (float64, one per unit) is the compute of each unit, `estimated` counts the units
    with a cost that is a guess, as it was not known; `kept` has those, by number, that stay on the host
    for that, with the reason.
    """

    problem: Problem
    tensors: tuple[str, ...]
    operations: NDArray[np.float64]
    estimated: int
    kept: Mapping[int, str] = field(default_factory=dict)


def pose(  # noqa: PLR0913, PLR0917 - what costs where
    index: GraphIndex,
    units: Sequence[Unit],
    host: CostModel,
    device: CostModel,
    connected: bool,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> Posed:
    """Return the placement problem of the units on a host and one accelerator.

    On the host a unit's nodes run one by one; on the accelerator a composite runs as one, so what is
    made and used inside it costs no memory traffic there. `bodies` has the cost of each node with
    bodies, by its number. Raises InputError under `Policy.refuse` when a cost is not known.
    """
    works = tasks(index)
    own = host_prices(host, works, units)
    there = device_prices(device, works, units)
    taken = np.array([bool(unit.verdict) for unit in units], np.bool_)
    inner = np.array([unit.nodes[0] in bodies for unit in units], np.bool_)
    if unknown is Policy.refuse:
        names = [unit.name for unit in units]
        own.require(np.flatnonzero(~inner), names)
        there.require(np.flatnonzero(taken & ~inner), names)
    kept = policed(there, unknown, (taken & ~inner).tolist())
    taken[list(kept)] = False
    seconds = np.stack([own.seconds, np.where(taken, there.seconds, np.inf)], axis=1)
    operations = works.unit_operations(units)
    for row in np.flatnonzero(inner).tolist():
        body = bodies[units[row].nodes[0]]
        seconds[row] = body.host, body.device if taken[row] else np.inf
        operations[row] = body.operations
    flows = _flows(index, works, units)
    transfer = transfer_prices(device, flows.sizes)[0].reshape(-1, 1)
    outputs = set(index.outputs)
    problem = Problem.build(
        seconds=seconds,
        producer=flows.producers,
        consumers=flows.consumers,
        is_output=[name in outputs for name in flows.names],
        to_device=transfer,
        to_host=transfer,
        launch=[launch_price(device).seconds],
        connected=[connected],
    )
    rough = (own.unknown | (there.unknown & taken)) & ~inner
    return Posed(problem, tuple(flows.names), operations, int(rough.sum()), kept)


@dataclass(frozen=True, eq=False)
class _Flows:
    """The tensors that cross between units: name, producing unit (-1: host), consuming units, bytes."""

    names: list[str]
    producers: list[int]
    consumers: list[list[int]]
    sizes: list[int]


def _flows(index: GraphIndex, works: Tasks, units: Sequence[Unit]) -> _Flows:
    """Return what crosses between units.

    Where some of a tensor's readers only ask for its shape, they read a small tensor of its own,
    `NAME:shape`: they come after the producer, and pull none of the data across.
    """
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    asking = {i for i, node in enumerate(index.nodes) if node.op_type in SHAPES and is_onnx(node)}
    flows = _Flows([], [], [], [])
    outputs, readers = index.outputs, index.consumers
    size = works.sizes.by_name
    made = [
        (name, row)
        for row, unit in enumerate(units)
        for node in unit.nodes
        for name in index.nodes[node].output
        if name
    ]
    for name, row in [*((name, -1) for name in (*index.inputs, *index.captured)), *made]:
        users = {unit_of[node] for node in readers.get(name, ()) if node not in asking} - {row}
        if users or name in outputs:
            _add(flows, name, row, users, size[name].bytes)
        if asking:
            shaped = {unit_of[node] for node in readers.get(name, ()) if node in asking} - users - {row}
            if shaped:
                _add(flows, f"{name}:shape", row, shaped, _DIM_BYTES * len(size[name].shape))
    return flows


def _add(flows: _Flows, name: str, producer: int, consumers: set[int], size: int) -> None:
    flows.names.append(name)
    flows.producers.append(producer)
    flows.consumers.append(sorted(consumers))
    flows.sizes.append(size)


def alone(
    index: GraphIndex, device: CostModel, unknown: Policy = Policy.estimate
) -> tuple[float, float]:
    """Return seconds and operations of a graph all of whose nodes run on a device one by one.

    Nodes with bodies are left out; their cost is the caller's to add. Where a cost is not known,
    `Policy.refuse` raises InputError, and `Policy.host` gives infinity; for the host pass
    `unknown.on_host`.
    """
    works = tasks(index)
    prices = node_prices(device, works)
    rows = [i for i in range(len(index.nodes)) if works.of[i] >= 0 and i not in index.bodies]
    if unknown is Policy.refuse:
        prices.require(rows, [describe(node) for node in index.nodes])
    seconds = float(prices.seconds[rows].sum())
    if unknown is Policy.host and prices.unknown[rows].any():
        seconds = inf
    return seconds, float(works.operations[rows].sum())
