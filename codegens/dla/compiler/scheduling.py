"""The schedule of a network: the order of its layers, or of bands of rows, and the tensors' addresses.

`byoc.memory` plans both. In a striped schedule, rows of one layer come before rows of the next, so that
few rows of a tensor are live. This module states the rows of inputs that a row
of each layer depends on.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.codegen import arena, stripes
from byoc.codegen import scratchpad as levels

from ..machine import Memory, Operand
from .layers import (
    ActivationLayer,
    BoundaryPort,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    LayerNetwork,
    MachineLayer,
    MatMulLayer,
    MoveLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
    RestackLayer,
)
from .output_shapes import LayerTensor, dtype_of
from .tiling import (
    AxisSpan,
    TensorBox,
    TileBudget,
    Tiling,
    align_size,
    find_conv_tiling,
    find_simple_tiling,
    list_conv_slots,
    simple_slots,
    slot_tensors,
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
    if not isinstance(layer, ActivationLayer | EltwiseLayer | NormalizeLayer | QuantizeLayer):
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
    if isinstance(layer, QuantizeLayer):
        limits = layer.limits.storage_name, stripes.ALL_ROWS
        return ((layer.x.storage_name, stripes.SAME_ROW), limits)
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
    limits = layer.limits if isinstance(layer, ConvLayer) else None
    return (
        (x.storage_name, rows),
        *(((residual.storage_name, stripes.SAME_ROW),) if residual is not None else ()),
        *(((limits.storage_name, stripes.ALL_ROWS),) if limits is not None else ()),
    )


# Scratchpad residency: which tensors stay there, so that few bytes move.
#
# Each layer has room for its tiles, of the tiling that it would have with a part of the scratchpad.
# The rest is for whole tensors, which are then neither loaded nor stored.

_TILES = 2  # tiles are cut for this part of the scratchpad first: one half
_SECONDS = 10.0  # of search, counted by its steps: the program depends on no computer's speed


@dataclass(frozen=True)
class CopyTensor:
    """A copy of a whole tensor from the arena to the scratchpad, or back, on behalf of a layer."""

    number: int
    tensor: LayerTensor
    near: TensorAddress
    is_load: bool


@dataclass(frozen=True)
class RunLayer:
    """The computation of rows of a layer; `near` are tensors in the scratchpad by name of the storage.

    Tiles begin at byte `area` and have `room` bytes, 0 for all. A `tiling` that is not None is fixed.
    """

    number: int
    near: Mapping[str, TensorAddress]
    tiling: Tiling | None
    rows: AxisSpan
    area: int = 0
    room: int = 0


Action = CopyTensor | RunLayer


def plan_residency(
    network: LayerNetwork, schedule: LayerSchedule, budget: TileBudget
) -> Sequence[Action] | None:
    """Return the actions in order, or None if there is nothing to keep, or the search takes too long.

    Each tensor has its place in the arena as well, for when it is not in the scratchpad.
    """
    stored = stored_tensors(network)
    fixed = {
        x.storage_name for layer in network.layers if _only_moves(layer) for x in (*layer.reads, layer.y)
    }
    names = [name for name, tensor in stored.items() if name not in fixed]
    if not names or not schedule.turns:
        return None
    numbers = {name: number for number, name in enumerate(names)}
    tilings = {turn.number: _find_tiling(network.layers[turn.number], budget) for turn in schedule.turns}
    if any(tiling is None for n, tiling in tilings.items() if not _only_moves(network.layers[n])):
        return None
    turns = tuple(
        _describe_step(network.layers[turn.number], tilings[turn.number], numbers, budget)
        for turn in schedule.turns
    )
    plan = levels.plan_scratchpad(
        levels.AccessSchedule(
            tuple(names),
            tuple(align_size(stored[name].nbytes) for name in names),
            turns,
            frozenset(
                numbers[p.tensor.storage_name]
                for p in network.inputs
                if p.tensor.storage_name in numbers
            ),
            frozenset(
                numbers[p.tensor.storage_name]
                for p in network.outputs
                if p.tensor.storage_name in numbers
            ),
            ARENA_ALIGNMENT,
        ),
        budget.scratchpad,
        seconds=_SECONDS,
    )
    if not plan.is_exact:
        return None
    return list(_translate_actions(plan, [stored[name] for name in names], schedule, tilings))


def _only_moves(layer: MachineLayer) -> bool:
    """Whether a layer runs by DMA alone, and so works on the arena."""
    return isinstance(layer, MoveLayer | RestackLayer)


def _find_tiling(layer: MachineLayer, budget: TileBudget) -> Tiling | None:
    """Return a tiling for a part of the scratchpad, or for all of it if none fits into the part."""
    if _only_moves(layer):
        return None
    find = find_conv_tiling if isinstance(layer, ConvLayer) else find_simple_tiling
    part = TileBudget(budget.scratchpad // _TILES, budget.figures)
    return find(layer, layer.y.rows, part) or find(layer, layer.y.rows, budget)  # type: ignore[arg-type]


def _describe_step(
    layer: MachineLayer, tiling: Tiling | None, numbers: Mapping[str, int], budget: TileBudget
) -> levels.ScheduledStep:
    """Return the accesses of a layer, and the room that its tiles take."""
    if tiling is None:
        room = budget.scratchpad // _TILES // ARENA_ALIGNMENT * ARENA_ALIGNMENT
        return levels.ScheduledStep(layer.y.name, (), room)
    needs = (
        list_conv_slots(layer, tiling.tile)
        if isinstance(layer, ConvLayer)
        else simple_slots(layer, tiling.tile)
    )
    held_in = {slot: tensor.storage_name for slot, tensor in slot_tensors(layer).items()}
    staging: dict[int, int] = {}
    own = 0
    for slot, need in needs.items():
        size = align_size(need.size) * (2 if tiling.doubled and need.twice else 1)
        number = numbers.get(held_in.get(slot, ""))
        if number is None:
            own += size
        else:
            staging[number] = staging.get(number, 0) + size
    made = numbers.get(layer.y.storage_name)
    accesses = (levels.Access(n, writes=n == made, staging=size) for n, size in staging.items())
    return levels.ScheduledStep(layer.y.name, tuple(accesses), own)


def _translate_actions(
    plan: levels.ScratchpadPlan,
    stored: Sequence[LayerTensor],
    schedule: LayerSchedule,
    tilings: Mapping[int, Tiling | None],
) -> Iterator[Action]:
    """Yield the actions of a plan in terms of layers and tensors."""

    def near(buffer: int, address: int) -> TensorAddress:
        tensor = stored[buffer]
        return TensorAddress(schedule.places[tensor.name].number, address, tensor.rows)

    now = schedule.turns[0].number
    for action in plan.actions:
        match action:
            case levels.LoadAction():
                number = schedule.turns[action.needed].number
                place = near(action.buffer, action.address)
                yield CopyTensor(number, stored[action.buffer], place, is_load=True)
            case levels.StoreAction():
                place = near(action.buffer, action.address)
                yield CopyTensor(now, stored[action.buffer], place, is_load=False)
            case levels.RunAction():
                now = schedule.turns[action.turn].number
                accesses = plan.schedule.turns[action.turn].accesses
                there = {
                    stored[access.buffer].name: near(access.buffer, address)
                    for access, address in zip(accesses, action.addresses, strict=True)
                    if address is not None
                }
                yield RunLayer(
                    now,
                    there,
                    tilings[now],
                    schedule.turns[action.turn].rows,
                    action.area,
                    action.staging,
                )
