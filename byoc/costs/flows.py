"""What crosses between units: tensors with their producer, their consumers and their bytes."""

from collections.abc import Iterator, Sequence
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
    """The tensors that cross between units: name, producing unit (-1: host), consuming units, bytes.

    `whole` is False where only the shape crosses.
    """

    names: list[str]
    producers: list[int]
    consumers: list[list[int]]
    sizes: list[int]
    whole: list[bool]


def flows(index: GraphIndex, works: Tasks, units: Sequence[HasNodes]) -> Flows:
    """Return what crosses between units.

    Where some of a tensor's readers only ask for its shape, they read a small tensor of its own,
    `NAME:shape`: they come after the producer, and pull none of the data across.
    """
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    asking = {i for i, node in enumerate(index.nodes) if node.op_type in SHAPES and is_onnx(node)}
    names: list[str] = []
    producers: list[int] = []
    consumers: list[list[int]] = []
    sizes: list[int] = []
    whole: list[bool] = []
    outputs, readers, size = index.outputs, index.consumers, works.sizes.by_name
    for name, row in _made(index, units):
        read = readers.get(name, ())
        users = {unit_of[node] for node in (read if not asking else _not_in(asking, read))}
        users.discard(row)
        if users or name in outputs:
            names.append(name)
            producers.append(row)
            consumers.append(sorted(users))
            sizes.append(size[name].bytes)
            whole.append(True)
        if asking:
            shaped = {unit_of[node] for node in read if node in asking} - users - {row}
            if shaped:
                names.append(f"{name}:shape")
                producers.append(row)
                consumers.append(sorted(shaped))
                sizes.append(_DIM_BYTES * len(size[name].shape))
                whole.append(False)
    return Flows(names, producers, consumers, sizes, whole)


def _made(index: GraphIndex, units: Sequence[HasNodes]) -> Iterator[tuple[str, int]]:
    """Yield every tensor with the unit that makes it, -1 for what comes from outside."""
    for name in (*index.inputs, *index.captured):
        yield name, -1
    nodes = index.nodes
    for row, unit in enumerate(units):
        for node in unit.nodes:
            for name in nodes[node].output:
                if name:
                    yield name, row


def _not_in(asking: set[int], nodes: Sequence[int]) -> list[int]:
    return [node for node in nodes if node not in asking]
