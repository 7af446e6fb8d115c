"""From units and cost models to the partitioner's problem, which is numbers alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byoc.costs.model import CostModel
from byoc.costs.work import Sizes, Work, work
from byoc.graph.index import GraphIndex
from byoc.patterns.group import Unit
from byoc.placement import Problem

# More than any memory holds; shapes can state more than a float can hold.
_MOST_BYTES = 2**62


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


def pose(
    index: GraphIndex, units: Sequence[Unit], host: CostModel, device: CostModel, connected: bool
) -> Posed:
    """Return the placement problem of the units on a host and one accelerator.

    On the host a unit's nodes run one by one; on the accelerator a composite runs as one, so what is
    made and used inside it costs no memory traffic there.
    """
    sizes = Sizes(index.types)
    seconds = np.empty((len(units), 2))
    totals: list[Work] = []
    for row, unit in enumerate(units):
        whole = work(index, sizes, unit.nodes)
        kind = index.types.get(next(iter(index.nodes[unit.nodes[-1]].output), ""))
        dtype = kind.dtype if kind else "float32"
        seconds[row, 0] = sum(host.execution(work(index, sizes, (node,)), dtype) for node in unit.nodes)
        seconds[row, 1] = device.execution(whole, dtype) if unit.verdict else np.inf
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
    for name, row in [*((name, -1) for name in index.inputs), *made]:
        users = {unit_of[node] for node in index.consumers.get(name, ())} - {row}
        if users or name in outputs:
            names.append(name)
            producers.append(row)
            consumers.append(sorted(users))
    return names, producers, consumers


def _outputs(index: GraphIndex, unit: Unit) -> list[str]:
    return [name for node in unit.nodes for name in index.nodes[node].output if name]
