"""The order of layers and the addresses of their tensors in the arena, as `byoc.memory` plans them."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from byoc.memory.plan import plan
from byoc.memory.problem import Problem, Step

from .arena import Place
from .boxes import Span
from .layers import Activation, Eltwise, Layer, Network, Port
from .tensors import Tensor

ALIGNMENT = 64
"""Alignment of tensors in the arena, in bytes."""


@dataclass(frozen=True)
class Turn:
    """Rows of a layer that are computed together; `number` is the index of the layer in the network."""

    number: int
    rows: Span


@dataclass(frozen=True)
class Schedule:
    """The order of execution, and the addresses of tensors in the arena.

    `size` is that of the arena in bytes, `bound` a lower bound on it: over all orders for whole tensors,
    for these turns with stripes.
    """

    turns: tuple[Turn, ...]
    places: Mapping[str, Place]
    size: int
    bound: int


def whole(network: Network, method: str) -> Schedule:
    """Return a schedule with whole tensors, by one of the methods of `byoc.memory`."""
    stored = stored_tensors(network)
    numbers = {name: number for number, name in enumerate(stored)}
    problem = Problem(
        names=tuple(stored),
        sizes=tuple(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in stored.values()),
        steps=tuple(_step(network, layer, numbers) for layer in network.layers),
        inputs=frozenset(numbers[name] for name in border_names(numbers, network.inputs)),
        outputs=frozenset(numbers[name] for name in border_names(numbers, network.outputs)),
        alignment=ALIGNMENT,
    )
    found = plan(problem, method)
    places = {
        name: Place(number + 1, found.offsets[number], stored[name].rows)
        for name, number in numbers.items()
    }
    turns = tuple(Turn(n, Span(0, network.layers[n].y.rows)) for n in found.order)
    return Schedule(turns, places, found.size, found.bound)


def stored_tensors(network: Network) -> dict[str, Tensor]:
    """Return the tensors that need a place in the arena, by name: results, and inputs that are read."""
    read = {x.held for layer in network.layers for x in layer.reads}
    read |= {port.tensor.held for port in network.outputs}
    tensors = [port.tensor for port in network.inputs if port.tensor.held in read]
    tensors += [layer.y for layer in network.layers]
    return {tensor.held: tensor for tensor in tensors if tensor.nbytes}


def border_names(stored: Container[str], ports: Sequence[Port]) -> list[str]:
    """Return the names of the storage of inputs or outputs, without those that are not stored."""
    return [n for n in dict.fromkeys(port.tensor.held for port in ports) if n in stored]


def _step(network: Network, layer: Layer, numbers: Mapping[str, int]) -> Step:
    reads = tuple(numbers[x.held] for x in layer.reads if x.held not in network.constants)
    over = tuple(numbers[x.held] for x in in_place(layer) if x.held not in network.constants)
    return Step(layer.y.name, tuple(dict.fromkeys(reads)), (numbers[layer.y.held],), over)


def in_place(layer: Layer) -> tuple[Tensor, ...]:
    """Return the operands that the result of a layer can overwrite, tile by tile."""
    if not isinstance(layer, Activation | Eltwise):
        return ()
    y = layer.y
    return tuple(x for x in layer.reads if (x.extents, x.dtype) == (y.extents, y.dtype))
