"""Scratchpad residency: which tensors stay there, so that few bytes move.

Each layer has room for its tiles, of the tiling that it would have with a part of the scratchpad. The
rest is for whole tensors, which are then neither loaded nor stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.codegen import scratchpad as levels

from .boxes import AxisSpan
from .conv_tiling import find_conv_tiling, list_conv_slots
from .layer_tensors import LayerTensor
from .layers import ConvLayer, LayerNetwork, MachineLayer, MoveLayer, RestackLayer
from .scheduling import ARENA_ALIGNMENT, LayerSchedule, TensorAddress, stored_tensors
from .tiling import (
    TileBudget,
    Tiling,
    align_size,
    find_simple_tiling,
    simple_slots,
    slot_tensors,
)

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
        _describe_layer(network.layers[turn.number], tilings[turn.number], numbers, budget)
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


def _describe_layer(
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
