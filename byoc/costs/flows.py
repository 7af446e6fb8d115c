"""Tensors that pass between units, with producer, consumers and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byoc.costs.task import Tasks
from byoc.costs.work import SHAPES
from byoc.graph.index import GraphIndex
from byoc.graph.walk import is_onnx
from byoc.patterns.unit import NodeGroup

# A shape is sent as one 64-bit number for each dimension.
_DIM_BYTES = 8


@dataclass(frozen=True, eq=False)
class UnitTensors:
    """The tensors that pass between units: name, producing unit (-1: host), consuming units, bytes.

    `whole` is False if only the shape of the tensor is sent.
    """

    names: list[str]
    producers: list[int]
    consumers: list[list[int]]
    sizes: list[int]
    whole: list[bool]


def find_unit_tensors(index: GraphIndex, works: Tasks, units: Sequence[NodeGroup]) -> UnitTensors:
    """Return the tensors that pass between units.

    Consumers that only ask for a tensor's shape read a small tensor of its own, `NAME:shape`: they come
    after the producer, but the data is not sent to them.
    """
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    shape_readers = {i for i, node in enumerate(index.nodes) if node.op_type in SHAPES and is_onnx(node)}
    names: list[str] = []
    producers: list[int] = []
    consumers: list[list[int]] = []
    sizes: list[int] = []
    whole: list[bool] = []
    outputs, readers, size = index.outputs, index.consumers, works.sizes.by_name
    for name, row in _produced_tensors(index, units):
        read = readers.get(name, ())
        users = {
            unit_of[node] for node in (read if not shape_readers else _exclude(shape_readers, read))
        }
        users.discard(row)
        if users or name in outputs:
            names.append(name)
            producers.append(row)
            consumers.append(sorted(users))
            sizes.append(size[name].bytes)
            whole.append(True)
        if shape_readers:
            shaped = {unit_of[node] for node in read if node in shape_readers} - users - {row}
            if shaped:
                names.append(f"{name}:shape")
                producers.append(row)
                consumers.append(sorted(shaped))
                sizes.append(_DIM_BYTES * len(size[name].shape))
                whole.append(False)
    return UnitTensors(names, producers, consumers, sizes, whole)


def _produced_tensors(index: GraphIndex, units: Sequence[NodeGroup]) -> Iterator[tuple[str, int]]:
    """Yield every tensor with its producing unit, -1 for tensors from outside."""
    for name in (*index.inputs, *index.captured_names):
        yield name, -1
    nodes = index.nodes
    for row, unit in enumerate(units):
        for node in unit.nodes:
            for name in nodes[node].output:
                if name:
                    yield name, row


def _exclude(shape_readers: set[int], nodes: Sequence[int]) -> list[int]:
    return [node for node in nodes if node not in shape_readers]
