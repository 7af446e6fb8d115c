"""From units and cost models to the partitioner's problem, which is numbers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.costs.model import CostModel
from byoc.costs.work import Sizes, Work, work
from byoc.graph.index import GraphIndex
from byoc.graph.unshare import is_dequantize, is_quantize
from byoc.patterns.unit import Unit
from byoc.placement import Problem

# More than any memory holds; shapes can state more than a float can hold.
_MOST_BYTES = 2**62


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

    `tensors` names the problem's tensors, `operations` (float64, one per unit) is the compute of each
    unit, `estimated` counts units whose operator or shapes were not known exactly.
    """

    problem: Problem
    tensors: tuple[str, ...]
    operations: NDArray[np.float64]
    estimated: int


def pose(  # noqa: PLR0913, PLR0917 - what costs where
    index: GraphIndex,
    units: Sequence[Unit],
    host: CostModel,
    device: CostModel,
    connected: bool,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
) -> Posed:
    """Return the placement problem of the units on a host and one accelerator.

    On the host a unit's nodes run one by one; on the accelerator a composite or a QDQ group runs as one,
    so what is made and used inside it costs no memory traffic there. `bodies` has the cost of each node
    with bodies, by its number.
    """
    sizes = Sizes(index.types)
    seconds = np.empty((len(units), 2))
    totals: list[Work] = []
    for row, unit in enumerate(units):
        inner = bodies.get(unit.nodes[0])
        if inner is not None:
            seconds[row] = inner.host, inner.device if unit.verdict else np.inf
            totals.append(Work(inner.operations, 0.0))
            continue
        whole = work(index, sizes, unit.nodes)
        seconds[row, 0] = sum(_host_seconds(index, sizes, unit, node, host) for node in unit.nodes)
        seconds[row, 1] = device.execution(whole, _unit_dtype(index, unit)) if unit.verdict else np.inf
        totals.append(whole)
    tensors, producer, consumers = _flows(index, units)
    crossing = [device.transfer(min(sizes.bytes(name), _MOST_BYTES)) for name in tensors]
    transfer = np.array(crossing, np.float64).reshape(-1, 1)
    outputs = set(index.outputs)
    problem = Problem.build(
        seconds=seconds,
        producer=producer,
        consumers=consumers,
        is_output=[name in outputs for name in tensors],
        to_device=transfer,
        to_host=transfer,
        launch=[device.launch],
        connected=[connected],
    )
    return Posed(
        problem,
        tuple(tensors),
        np.array([total.operations for total in totals], dtype=np.float64),
        sum(total.estimated for total in totals),
    )


def _flows(index: GraphIndex, units: Sequence[Unit]) -> tuple[list[str], list[int], list[list[int]]]:
    """Return the tensors that cross between units: name, producing unit (-1: host), consuming units."""
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    names, producers, consumers = [], [], []
    outputs = set(index.outputs)
    made = [(name, row) for row, unit in enumerate(units) for name in _outputs(index, unit)]
    given = [*index.inputs, *index.captured]
    for name, row in [*((name, -1) for name in given), *made]:
        users = {unit_of[node] for node in index.consumers.get(name, ())} - {row}
        if users or name in outputs:
            names.append(name)
            producers.append(row)
            consumers.append(sorted(users))
    return names, producers, consumers


def _outputs(index: GraphIndex, unit: Unit) -> list[str]:
    return [name for node in unit.nodes for name in index.nodes[node].output if name]


def _host_seconds(index: GraphIndex, sizes: Sizes, unit: Unit, node: int, host: CostModel) -> float:
    """Return the seconds of one node of a unit; those of a QDQ group compute in floats on the host."""
    computed = node if unit.kind == "qdq" else unit.nodes[-1]
    return host.execution(work(index, sizes, (node,)), _dtype(index, computed))


def _unit_dtype(index: GraphIndex, unit: Unit) -> str:
    """Return the dtype that a unit computes in on the accelerator: of a QDQ group, that outside."""
    if unit.kind != "qdq":
        return _dtype(index, unit.nodes[-1])
    nodes = [index.nodes[number] for number in unit.nodes]
    outside = [node.input[0] for node in nodes if is_dequantize(node)]
    outside += [node.output[0] for node in nodes if is_quantize(node)]
    return next((index.types[name].dtype for name in outside if name in index.types), "int8")


def _dtype(index: GraphIndex, number: int) -> str:
    """Return the dtype that a node computes in: its first result's, float32 where that is not known."""
    kind = index.types.get(next(iter(index.nodes[number].output), ""))
    return kind.dtype if kind else "float32"


def alone(index: GraphIndex, device: CostModel) -> tuple[float, float]:
    """Return seconds and operations of a graph all of whose nodes run on a device one by one.

    Nodes with bodies are left out; their cost is the caller's to add.
    """
    sizes = Sizes(index.types)
    seconds, operations = 0.0, 0.0
    for i in range(len(index.nodes)):
        if i in index.constant_nodes or i in index.bodies:
            continue
        done = work(index, sizes, (i,))
        seconds += device.execution(done, _dtype(index, i))
        operations += done.operations
    return seconds, operations
