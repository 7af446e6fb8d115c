"""The schedule of a network: the order of its layers, or of bands of rows, and the tensors' addresses.

`byoc.memory` plans both. In a striped schedule, rows of one layer come before rows of the next, so that
few rows of a tensor are live. This module states the rows of inputs that a row
of each layer depends on.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from byoc.codegen import arena, stripes

from ..machine import Memory, Operand
from .boxes import AxisSpan, TensorBox
from .layer_tensors import LayerTensor, dtype_of
from .layers import (
    ActivationLayer,
    BoundaryPort,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    LayerNetwork,
    MachineLayer,
    MatMulLayer,
    NormalizeLayer,
    PoolLayer,
)


@dataclass(frozen=True)
class TensorAddress:
    """Address of a tensor: row r begins at byte `offset + (r % window) * row_bytes`.

    `number` identifies the tensor in the tags of the simulated memory.
    """

    number: int
    offset: int
    window: int


@dataclass(frozen=True)
class AddressMap:
    """Places of activations, and byte offsets of constants in WEIGHTS, both by name of the storage."""

    addresses: Mapping[str, TensorAddress]
    constants: Mapping[str, int]

    def memory_of(self, tensor: LayerTensor) -> Memory:
        """Return the memory that holds a tensor."""
        return Memory.WEIGHTS if tensor.storage_name in self.constants else Memory.ARENA

    def whole_operand(self, tensor: LayerTensor) -> Operand:
        """Return the operand that covers a whole tensor."""
        extents = (tensor.rows, tensor.width, tensor.channels)
        return self.box_operand(tensor, TensorBox(*(AxisSpan(0, extent) for extent in extents)))

    def box_operand(self, tensor: LayerTensor, box: TensorBox) -> Operand:
        """Return the operand that covers a box of a tensor."""
        if tensor.storage_name in self.constants:
            place = TensorAddress(1, self.constants[tensor.storage_name], tensor.rows)
        else:
            place = self.addresses[tensor.storage_name]
        size, pixel = tensor.itemsize, tensor.channels * tensor.itemsize
        return Operand(
            tensor=place.number,
            address=place.offset + box.cols.start * pixel + box.channels.start * size,
            first_row=box.rows.start,
            window=place.window,
            rows=box.rows.count,
            cols=box.cols.count,
            channels=box.channels.count,
            row_pitch=tensor.row_bytes,
            pixel_pitch=pixel,
            channel_pitch=size,
            dtype=dtype_of(tensor),
        )


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
    problem = arena.ArenaProblem(
        names=tuple(stored),
        sizes=tuple(
            -(-tensor.nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT for tensor in stored.values()
        ),
        steps=tuple(_memory_step(network, layer, numbers) for layer in network.layers),
        inputs=frozenset(numbers[name] for name in boundary_names(numbers, network.inputs)),
        outputs=frozenset(numbers[name] for name in boundary_names(numbers, network.outputs)),
        alignment=ARENA_ALIGNMENT,
    )
    found = arena.plan_buffers(problem, method)
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


def _memory_step(
    network: LayerNetwork, layer: MachineLayer, numbers: Mapping[str, int]
) -> arena.ArenaStep:
    reads = tuple(
        numbers[x.storage_name] for x in layer.reads if x.storage_name not in network.constants
    )
    over = tuple(
        numbers[x.storage_name]
        for x in overwritable_operands(layer)
        if x.storage_name not in network.constants
    )
    return arena.ArenaStep(
        layer.y.name, tuple(dict.fromkeys(reads)), (numbers[layer.y.storage_name],), over
    )


def overwritable_operands(layer: MachineLayer) -> tuple[LayerTensor, ...]:
    """Return the operands that the result of a layer can overwrite, tile by tile."""
    if not isinstance(layer, ActivationLayer | EltwiseLayer | NormalizeLayer):
        return ()
    y = layer.y
    return tuple(x for x in layer.reads if (x.extents, x.dtype) == (y.extents, y.dtype))


RowReads = tuple[tuple[str, stripes.OperandRows], ...]


def schedule_striped(network: LayerNetwork, method: str) -> LayerSchedule:
    """Return a striped schedule; `method` finds the order of layers, as for whole tensors."""
    ordered = schedule_whole(network, method)
    if not network.layers:
        return ordered
    stored = stored_tensors(network)
    numbers = {layer.y.name: number for number, layer in enumerate(network.layers)}
    found = stripes.stripe(
        [stripes.RowTensor(name, tensor.rows, tensor.row_bytes) for name, tensor in stored.items()],
        [_describe_layer(network, network.layers[turn.number]) for turn in ordered.turns],
        boundary_names(stored, network.inputs),
        boundary_names(stored, network.outputs),
        ARENA_ALIGNMENT,
    )
    places = {
        name: TensorAddress(ordered.places[name].number, place.offset, place.window)
        for name, place in found.places.items()
    }
    turns = tuple(LayerRows(numbers[b.layer], AxisSpan(b.first_row, b.rows)) for b in found.bands)
    return LayerSchedule(turns, places, found.size, found.live)


def _describe_layer(network: LayerNetwork, layer: MachineLayer) -> stripes.RowLayer:
    """Describe a layer to the planner: the rows that it reads of tensors in the arena."""
    rows = _rows_read(layer)
    over = [
        x.storage_name for x in overwritable_operands(layer) if x.storage_name not in network.constants
    ]
    known = network.constants
    if rows is None:
        reads = tuple(
            (name, stripes.ALL_ROWS) for name in dict.fromkeys(x.storage_name for x in layer.reads)
        )
        mode: stripes.LayerMode = "whole"
    else:
        reads, mode = rows, "rows"
    reads = tuple(each for each in reads if each[0] not in known)
    return stripes.RowLayer(
        layer.y.name, reads, (layer.y.storage_name,), mode, tuple(dict.fromkeys(over))
    )


def _rows_read(layer: MachineLayer) -> RowReads | None:
    """Return the rows of each input that a row of a layer reads; None if it must run as a whole."""
    if isinstance(layer, ConvLayer | PoolLayer):
        return _window_rows(layer)
    same = ActivationLayer | MatMulLayer | NormalizeLayer
    if isinstance(layer, same) or (isinstance(layer, ConcatLayer) and layer.axis in (2, 3)):
        return tuple(dict.fromkeys((x.storage_name, stripes.SAME_ROW) for x in layer.reads))
    has_all_rows = all(x.rows == layer.y.rows for x in layer.reads)
    if isinstance(layer, EltwiseLayer) and (layer.y.images == 1 or has_all_rows):
        return tuple(
            (x.storage_name, stripes.SAME_ROW if x.rows == layer.y.rows else stripes.ALL_ROWS)
            for x in layer.reads
        )
    return None


def _window_rows(layer: ConvLayer | PoolLayer) -> RowReads | None:
    x, window = layer.x, layer.window
    if x.images > 1 and not window.is_point:
        return None  # windows end at the borders of each image
    rows = stripes.OperandRows(window.extent[0], window.strides[0], window.pads[0])
    residual = layer.residual if isinstance(layer, ConvLayer) else None
    return (
        (x.storage_name, rows),
        *(((residual.storage_name, stripes.SAME_ROW),) if residual is not None else ()),
    )
