"""The weights of a program as bytes, tile after tile in the order of their loads.

Emission of commands: tiles are loaded into the scratchpad, computed, and stored.

Each layer is a sequence of steps, one for each tile. The loads of a step precede the stores of the step
before it in the program, so they run while the machine computes.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from math import prod
from typing import Any, TypeVar

import numpy as np

from byoc.codegen import ResourceError

from ..machine import Command, DType, Load, Memory, Operand, Store, Unpack
from .layers import ConvLayer, Int4Weights, LayerNetwork, MachineLayer
from .output_shapes import Array, LayerTensor, dtype_of
from .scheduling import AddressMap, TensorAddress
from .tiling import LayerSlots, SlotNeed, TensorBox, TileBudget, Tiling, dense_operand, slot_tensors

# The pieces of the WEIGHTS memory, so that a program can have the weights of a region that is
# alike.
#
# Programs in float32 depend on the shapes of weights alone. So for each piece it is written down
# which part of which weights it is; from another region of the same structure the memory can be
# filled anew.

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


_ALIGNMENT = 16  # bytes, of each tensor among the weights


class WeightsImage:
    """The content of the WEIGHTS memory under construction; equal tiles are stored once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: Array) -> int:
        """Append the bytes of an array, and return the byte at which it begins."""
        content = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            self._places[digest] = self._size
            padding = -len(content) % _ALIGNMENT
            self._parts += [content, bytes(padding)]
            self._size += len(content) + padding
        return self._places[digest]

    def content(self) -> bytes:
        """Return all bytes."""
        return b"".join(self._parts)


LayerT = TypeVar("LayerT", bound=MachineLayer)


@dataclass
class TileStep:
    """The commands of one tile."""

    loads: list[Load] = field(default_factory=list)
    computes: list[Command] = field(default_factory=list)
    stores: list[Command] = field(default_factory=list)


def interleave_steps(steps: Iterable[TileStep]) -> Iterator[Command]:
    """Yield the commands of steps, with each tile loaded before the previous tile is stored."""
    stores: list[Command] = []
    for step in steps:
        yield from step.loads
        yield from stores
        yield from step.computes
        stores = step.stores
    yield from stores


@dataclass(eq=False)
class EmitterState:
    """The state that the emitters of all layers share: addresses, weights so far, numbers of tiles."""

    arena: AddressMap
    weights: WeightsImage
    budget: TileBudget
    numbers: "count[int]"
    scratchpad: int
    near: Mapping[str, TensorAddress] = field(default_factory=dict)
    """Tensors that are in the scratchpad while the current layer runs, by name of the storage."""
    area: int = 0
    """First byte of the scratchpad for the tiles of the current layer."""
    _tilings: dict[tuple[int, int], Tiling | None] = field(default_factory=dict)
    pieces: list[WeightPiece] = field(default_factory=list)
    """What stands where in WEIGHTS, in the order in which it was added."""
    _packed: dict[Hashable, int] = field(default_factory=dict)

    def find_tiling(
        self,
        find: Callable[[LayerT, int, TileBudget], Tiling | None],
        number: int,
        layer: LayerT,
        rows: int,
    ) -> Tiling:
        """Return the tiling of so many rows of a layer, from `find` or from the calls before.

        Raises ResourceError if there is none.
        """
        key = (number, rows)
        if key not in self._tilings:
            self._tilings[key] = find(layer, rows, self.budget)
        return require_tiling(self._tilings[key], layer, self.budget)

    def set_tiling(self, number: int, rows: int, tiling: Tiling | None) -> None:
        """Set the tiling for so many rows of a layer."""
        if tiling is not None:
            self._tilings[number, rows] = tiling

    def pack_constants(
        self, number: int, slot: str, key: Hashable, array: Callable[[], Array], span: tuple[int, ...]
    ) -> int:
        """Return the address of a layer's constants in WEIGHTS; they are added the first time.

        `span` is as in `WeightPiece`.
        """
        whole = (number, slot, key)
        if whole not in self._packed:
            self._packed[whole] = self.weights.add(array())
            self.pieces.append(WeightPiece(self._packed[whole], slot, number, span))
        return self._packed[whole]


@dataclass(eq=False)
class LayerEmission:
    """The emission of one layer: its number, its slots, and the current step."""

    machine: EmitterState
    number: int
    layer: MachineLayer
    scratchpad: LayerSlots
    step: TileStep = field(default_factory=TileStep)

    def begin_step(self) -> TileStep:
        """Begin the next step."""
        self.step = TileStep()
        return self.step

    def load(self, slot: str, tensor: LayerTensor, box: TensorBox) -> Operand:
        """Return a tile with a box of a tensor; load it unless it is there."""
        if self.is_near(tensor):
            return self._near_operand(tensor, box)
        arena = self.machine.arena
        source = arena.box_operand(tensor, box)
        return self.fetch(slot, (tensor, box), source, arena.memory_of(tensor))

    def constant(  # noqa: PLR0913, PLR0917 - a tile, and what it is made of
        self,
        slot: str,
        key: Hashable,
        array: Callable[[], Array],
        count: int,
        dtype: DType,
        span: tuple[int, ...] = (),
    ) -> Operand:
        """Return a tile with `count` constants, which become weights; load it unless it is there.

        `span` says which of the layer's weights or parameters they are.
        """
        address = self.machine.pack_constants(self.number, slot, key, array, span)
        source = dense_operand(1, address, (1, 1, count), dtype)
        return self.fetch(slot, key, source, Memory.WEIGHTS)

    def unpack(
        self,
        key: Hashable,
        packed: Array,
        extents: tuple[int, int, int],
        weights: Int4Weights,
        span: tuple[int, ...],
    ) -> Operand:
        """Return a tile with weights of four bits as CONV reads them; load it unless it is there.

        `packed` are its bytes, `extents` are 1, its outputs and its inputs; `span` is as in `constant`.
        """
        found = self.scratchpad.slots[WEIGHTS].find(key)
        if found is not None:
            return found
        address = self.machine.pack_constants(self.number, WEIGHTS, key, lambda: packed, span)
        source = dense_operand(1, address, (1, 1, packed.size), DType.UINT8)
        tile = self.scratchpad.new_tile(WEIGHTS, key, (1, 1, prod(extents)), DType.FLOAT32)
        target = dense_operand(tile.tensor, tile.address, extents, DType.FLOAT32)
        zeros = int(weights.zeros is not None)
        self.step.loads.append(Unpack(self.number, Memory.WEIGHTS, source, target, weights.block, zeros))
        return tile

    def fetch(self, slot: str, key: Hashable, source: Operand, memory: Memory) -> Operand:
        """Return a tile with a copy of `source`; load it unless it is there under that key."""
        found = self.scratchpad.slots[slot].find(key)
        if found is not None:
            return found
        extents = (source.rows, source.cols, source.channels)
        tile = self.scratchpad.new_tile(slot, key, extents, source.dtype)
        self.step.loads.append(Load(self.number, memory, source, tile))
        return tile

    def new_tile(self, slot: str, extents: tuple[int, int, int], dtype: DType) -> Operand:
        """Return a new tile for a result."""
        return self.scratchpad.new_tile(slot, object(), extents, dtype)

    def result_operand(self, tensor: LayerTensor, box: TensorBox) -> Operand:
        """Return the operand for a box of the result: a new tile, or its place in the scratchpad."""
        if self.is_near(tensor):
            return self._near_operand(tensor, box)
        extents = (box.rows.count, box.cols.count, box.channels.count)
        return self.new_tile("y", extents, dtype_of(tensor))

    def is_near(self, tensor: LayerTensor) -> bool:
        """Whether a whole tensor is in the scratchpad."""
        return tensor.storage_name in self.machine.near

    def _near_operand(self, tensor: LayerTensor, box: TensorBox) -> Operand:
        return AddressMap(self.machine.near, {}).box_operand(tensor, box)

    def add_command(self, command: Command) -> None:
        """Append a command that computes to the current step."""
        self.step.computes.append(command)

    def store(self, tile: Operand, tensor: LayerTensor, box: TensorBox) -> None:
        """Append the store of a tile to a box of a tensor, unless the tensor is in the scratchpad."""
        if not self.is_near(tensor):
            target = self.machine.arena.box_operand(tensor, box)
            self.add_stores([Store(self.number, tile, target)])

    def add_stores(self, stores: Iterable[Store]) -> None:
        """Append stores; if tiles have only one place, they precede the loads of the next step."""
        late = self.step.stores if self.scratchpad.doubled else self.step.computes
        late.extend(stores)


def begin_layer(
    machine: EmitterState, number: int, layer: MachineLayer, needs: dict[str, SlotNeed], tiling: Tiling
) -> LayerEmission:
    """Return the emission of a layer, with slots for the tensors that are not in the scratchpad."""
    near = {slot for slot, tensor in slot_tensors(layer).items() if tensor.storage_name in machine.near}
    wanted = {slot: need for slot, need in needs.items() if slot not in near}
    return LayerEmission(
        machine, number, layer, LayerSlots(wanted, machine.numbers, tiling.doubled, machine.area)
    )


def require_tiling(tiling: Tiling | None, layer: MachineLayer, budget: TileBudget) -> Tiling:
    """Return a tiling. Raises ResourceError if it is None."""
    if tiling is None:
        what = f"no tile of '{layer.y.name}' fits into a scratchpad of {budget.scratchpad} bytes"
        raise ResourceError(what, layer.nodes)
    return tiling
