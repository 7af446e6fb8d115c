"""The order of layers and the addresses of their tensors in the arena, as `byoc.memory` plans them."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from byoc.memory.plan import plan_buffers
from byoc.memory.problem import ArenaProblem, ArenaStep

from .arena import TensorAddress
from .boxes import AxisSpan
from .layers import ActivationLayer, EltwiseLayer, MachineLayer, LayerNetwork, BoundaryPort
from .tensors import LayerTensor

ARENA_ALIGNMENT = 64
"""Alignment of tensors in the arena, in bytes."""


@dataclass(frozen=True)
class LayerRows:
    """Rows of a layer that are computed together; `number` is the index of the layer in the network."""

    number: int
    rows: AxisSpan


@dataclass(frozen=True)
class LayerSchedule:
    """The order of execution, and the addresses of tensors in the arena.

    `size` is that of the arena in bytes, `bound` a lower bound on it: over all orders for whole tensors,
    for these turns with stripes.
    """

    turns: tuple[LayerRows, ...]
    places: Mapping[str, TensorAddress]
    size: int
    bound: int


def schedule_whole(network: LayerNetwork, method: str) -> LayerSchedule:
    """Return a schedule with whole tensors, by one of the methods of `byoc.memory`."""
    stored = stored_tensors(network)
    numbers = {name: number for number, name in enumerate(stored)}
    problem = ArenaProblem(
        names=tuple(stored),
        sizes=tuple(-(-tensor.nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT for tensor in stored.values()),
        steps=tuple(_memory_step(network, layer, numbers) for layer in network.layers),
        inputs=frozenset(numbers[name] for name in boundary_names(numbers, network.inputs)),
        outputs=frozenset(numbers[name] for name in boundary_names(numbers, network.outputs)),
        alignment=ARENA_ALIGNMENT,
    )
    found = plan_buffers(problem, method)
    places = {
        name: TensorAddress(number + 1, found.offsets[number], stored[name].rows)
        for name, number in numbers.items()
    }
    turns = tuple(LayerRows(n, AxisSpan(0, network.layers[n].y.rows)) for n in found.order)
    return LayerSchedule(turns, places, found.size, found.bound)


def stored_tensors(network: LayerNetwork) -> dict[str, LayerTensor]:
    """Return the tensors that need a place in the arena, by name: results, and inputs that are read."""
    read = {x.storage_name for layer in network.layers for x in layer.reads}
    read |= {port.tensor.storage_name for port in network.outputs}
    tensors = [port.tensor for port in network.inputs if port.tensor.storage_name in read]
    tensors += [layer.y for layer in network.layers]
    return {tensor.storage_name: tensor for tensor in tensors if tensor.nbytes}


def boundary_names(stored: Container[str], ports: Sequence[BoundaryPort]) -> list[str]:
    """Return the names of the storage of inputs or outputs, without those that are not stored."""
    return [n for n in dict.fromkeys(port.tensor.storage_name for port in ports) if n in stored]


def _memory_step(network: LayerNetwork, layer: MachineLayer, numbers: Mapping[str, int]) -> ArenaStep:
    reads = tuple(numbers[x.storage_name] for x in layer.reads if x.storage_name not in network.constants)
    over = tuple(numbers[x.storage_name] for x in overwritable_operands(layer) if x.storage_name not in network.constants)
    return ArenaStep(layer.y.name, tuple(dict.fromkeys(reads)), (numbers[layer.y.storage_name],), over)


def overwritable_operands(layer: MachineLayer) -> tuple[LayerTensor, ...]:
    """Return the operands that the result of a layer can overwrite, tile by tile."""
    if not isinstance(layer, ActivationLayer | EltwiseLayer):
        return ()
    y = layer.y
    return tuple(x for x in layer.reads if (x.extents, x.dtype) == (y.extents, y.dtype))
