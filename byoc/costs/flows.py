"""What crosses between units: tensors with their producer, their consumers and their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.costs.task import Tasks
from byoc.costs.work import SHAPES
from byoc.graph.index import GraphIndex
from byoc.graph.walk import is_onnx
from byoc.patterns.unit import HasNodes

# A shape that crosses is a number of 64 bits for each dimension.
_DIM_BYTES = 8


@dataclass(frozen=True, eq=False)
class Flows:
    """The tensors that cross between units: name, producing unit (-1: host), consuming units, bytes."""

    names: list[str]
    producers: list[int]
    consumers: list[list[int]]
    sizes: list[int]


def flows(index: GraphIndex, works: Tasks, units: Sequence[HasNodes]) -> Flows:
    """Return what crosses between units.

    Where some of a tensor's readers only ask for its shape, they read a small tensor of its own,
    `NAME:shape`: they come after the producer, and pull none of the data across.
    """
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    asking = {i for i, node in enumerate(index.nodes) if node.op_type in SHAPES and is_onnx(node)}
    found = Flows([], [], [], [])
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
        read = readers.get(name, ())
        users = {unit_of[node] for node in (read if not asking else _not_in(asking, read))}
        users.discard(row)
        if users or name in outputs:
            _add(found, name, row, users, size[name].bytes)
        if asking:
            shaped = {unit_of[node] for node in read if node in asking} - users - {row}
            if shaped:
                _add(found, f"{name}:shape", row, shaped, _DIM_BYTES * len(size[name].shape))
    return found


def _not_in(asking: set[int], nodes: Sequence[int]) -> list[int]:
    return [node for node in nodes if node not in asking]


def _add(found: Flows, name: str, producer: int, consumers: set[int], size: int) -> None:
    found.names.append(name)
    found.producers.append(producer)
    found.consumers.append(sorted(consumers))
    found.sizes.append(size)
