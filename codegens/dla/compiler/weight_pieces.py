"""The pieces of the WEIGHTS memory, so that a program can have the weights of a region that is alike.

Programs in float32 depend on the shapes of weights alone. So for each piece it is written down which
part of which weights it is; from another region of the same structure the memory can be filled anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .int4_weights import Int4Weights
from .layer_tensors import LayerTensor
from .layers import Array, ConvLayer, LayerNetwork, MachineLayer

CONSTANT, WEIGHTS, PARAMETERS = "constant", "weights", "parameters"
_FOR_PEOPLE = ("name", "nodes")


@dataclass(frozen=True)
class WeightPiece:
    """A piece: its address, what it is part of, and which part.

    Of a `constant` operand, `number` is its position among the network's; of `weights` and `parameters`
    that of the layer. `span` are the first and the last output channel but one, for weights those of the
    input channels, too.
    """

    address: int
    kind: str
    number: int
    span: tuple[int, ...] = ()


def fill_weights(network: LayerNetwork, pieces: Sequence[WeightPiece], size: int) -> bytes | None:
    """Return the content of WEIGHTS for a network; None where equal pieces have become different."""
    content = bytearray(size)
    filled: dict[int, bytes] = {}
    for piece in pieces:
        part = np.ascontiguousarray(_read_piece(network, piece)).tobytes()
        if filled.setdefault(piece.address, part) != part:
            return None
        content[piece.address : piece.address + len(part)] = part
    return bytes(content) if len(content) == size else None


def _read_piece(network: LayerNetwork, piece: WeightPiece) -> Array:
    if piece.kind == CONSTANT:
        return list(network.constants.values())[piece.number]
    layer = network.layers[piece.number]
    assert isinstance(layer, ConvLayer)
    if piece.kind == PARAMETERS:
        return layer.bias[slice(*piece.span)].astype("<f4")
    return layer.take_weights(slice(*piece.span[:2]), slice(*piece.span[2:]))


def have_same_program(one: LayerNetwork, other: LayerNetwork) -> bool:
    """Return whether two networks become the same program: in float32, weights and names apart."""
    return _describe_network(one) == _describe_network(other) and not any(
        tensor.is_integer for layer in one.layers for tensor in (layer.y, *layer.reads)
    )


def _describe_network(network: LayerNetwork) -> list[object]:
    ports = [(port.dtype, port.shape, port.tensor) for port in (*network.inputs, *network.outputs)]
    names: dict[str, int] = {"": 0}
    for name in network.constants:
        names.setdefault(name, len(names))
    return [
        [(dtype, shape, _describe_value(tensor, names)) for dtype, shape, tensor in ports],
        len(network.inputs),
        [_describe_value(array, names) for array in network.constants.values()],
        [_describe_layer(layer, names) for layer in network.layers],
    ]


def _describe_layer(layer: MachineLayer, names: dict[str, int]) -> list[object]:
    values = ((each.name, getattr(layer, each.name)) for each in fields(layer))
    described = [_describe_value(value, names) for name, value in values if name not in _FOR_PEOPLE]
    return [type(layer), *described]


def _describe_value(value: Any, names: dict[str, int]) -> object:
    """Return a value with numbers in the place of names, and of arrays their shapes alone."""
    if isinstance(value, LayerTensor):
        numbers = [names.setdefault(name, len(names)) for name in (value.name, value.storage)]
        return (*numbers, value.extents, value.dtype, value.scale, value.zero)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str
    if isinstance(value, Int4Weights):
        return value.shape, value.block, value.zeros is None
    if isinstance(value, tuple):
        return [_describe_value(each, names) for each in value]
    return value
