"""Scratchpad residency: `byoc.memory.levels` chooses tensors that stay there, so that few bytes move.

Each layer has room for its tiles, of the tiling that it would have with a part of the scratchpad. The
rest is for whole tensors, which are then neither loaded nor stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.memory import levels

from .arena import Place
from .boxes import Span
from .layers import Conv, Layer, Move, Network, Restack
from .schedule import ALIGNMENT, Schedule, stored_tensors
from .slots import aligned
from .tensors import Tensor
from .tiles import (
    Budget,
    Tiling,
    conv_needs,
    conv_tiling,
    simple_needs,
    simple_tiling,
    slots_of,
)

_TILES = 2  # tiles are cut for this part of the scratchpad first: one half
_SECONDS = 10.0  # of search; a plan that is not exact by then would depend on the computer


@dataclass(frozen=True)
class Copy:
    """A copy of a whole tensor from the arena to the scratchpad, or back, on behalf of a layer."""

    number: int
    tensor: Tensor
    near: Place
    is_load: bool


@dataclass(frozen=True)
class Run:
    """The computation of rows of a layer; `near` are tensors in the scratchpad by name of the storage.

    Tiles begin at byte `area` and have `room` bytes, 0 for all. A `tiling` that is not None is fixed.
    """

    number: int
    near: Mapping[str, Place]
    tiling: Tiling | None
    rows: Span
    area: int = 0
    room: int = 0


Action = Copy | Run


def resident(network: Network, schedule: Schedule, budget: Budget) -> Sequence[Action] | None:
    """Return the actions in order, or None if there is nothing to keep, or the search takes too long.

    Each tensor has its place in the arena as well, for when it is not in the scratchpad.
    """
    stored = stored_tensors(network)
    fixed = {x.held for layer in network.layers if _only_moves(layer) for x in (*layer.reads, layer.y)}
    names = [name for name, tensor in stored.items() if name not in fixed]
    if not names or not schedule.turns:
        return None
    numbers = {name: number for number, name in enumerate(names)}
    tilings = {turn.number: _tiling(network.layers[turn.number], budget) for turn in schedule.turns}
    if any(tiling is None for n, tiling in tilings.items() if not _only_moves(network.layers[n])):
        return None
    turns = tuple(
        _turn(network.layers[turn.number], tilings[turn.number], numbers, budget)
        for turn in schedule.turns
    )
    plan = levels.plan_levels(
        levels.Schedule(
            tuple(names),
            tuple(aligned(stored[name].nbytes) for name in names),
            turns,
            frozenset(numbers[p.tensor.held] for p in network.inputs if p.tensor.held in numbers),
            frozenset(numbers[p.tensor.held] for p in network.outputs if p.tensor.held in numbers),
            ALIGNMENT,
        ),
        budget.scratchpad,
        seconds=_SECONDS,
    )
    if not plan.is_exact:
        return None
    return list(_actions(plan, [stored[name] for name in names], schedule, tilings))


def _only_moves(layer: Layer) -> bool:
    """Whether a layer runs by DMA alone, and so works on the arena."""
    return isinstance(layer, Move | Restack)


def _tiling(layer: Layer, budget: Budget) -> Tiling | None:
    """Return a tiling for a part of the scratchpad, or for all of it if none fits into the part."""
    if _only_moves(layer):
        return None
    find = conv_tiling if isinstance(layer, Conv) else simple_tiling
    part = Budget(budget.scratchpad // _TILES, budget.figures)
    return find(layer, layer.y.rows, part) or find(layer, layer.y.rows, budget)  # type: ignore[arg-type]


def _turn(
    layer: Layer, tiling: Tiling | None, numbers: Mapping[str, int], budget: Budget
) -> levels.Turn:
    """Return the accesses of a layer, and the room that its tiles take."""
    if tiling is None:
        room = budget.scratchpad // _TILES // ALIGNMENT * ALIGNMENT
        return levels.Turn(layer.y.name, (), room)
    needs = (
        conv_needs(layer, tiling.tile) if isinstance(layer, Conv) else simple_needs(layer, tiling.tile)
    )
    held_in = {slot: tensor.held for slot, tensor in slots_of(layer).items()}
    staging: dict[int, int] = {}
    own = 0
    for slot, need in needs.items():
        size = aligned(need.size) * (2 if tiling.doubled and need.twice else 1)
        number = numbers.get(held_in.get(slot, ""))
        if number is None:
            own += size
        else:
            staging[number] = staging.get(number, 0) + size
    made = numbers.get(layer.y.held)
    accesses = (levels.Access(n, writes=n == made, staging=size) for n, size in staging.items())
    return levels.Turn(layer.y.name, tuple(accesses), own)


def _actions(
    plan: levels.Levels,
    stored: Sequence[Tensor],
    schedule: Schedule,
    tilings: Mapping[int, Tiling | None],
) -> Iterator[Action]:
    """Yield the actions of a plan in terms of layers and tensors."""

    def near(buffer: int, address: int) -> Place:
        tensor = stored[buffer]
        return Place(schedule.places[tensor.name].number, address, tensor.rows)

    now = schedule.turns[0].number
    for action in plan.actions:
        match action:
            case levels.Load():
                number = schedule.turns[action.needed].number
                place = near(action.buffer, action.address)
                yield Copy(number, stored[action.buffer], place, is_load=True)
            case levels.Store():
                place = near(action.buffer, action.address)
                yield Copy(now, stored[action.buffer], place, is_load=False)
            case levels.Run():
                now = schedule.turns[action.turn].number
                accesses = plan.schedule.turns[action.turn].accesses
                there = {
                    stored[access.buffer].name: near(access.buffer, address)
                    for access, address in zip(accesses, action.places, strict=True)
                    if address is not None
                }
                yield Run(
                    now,
                    there,
                    tilings[now],
                    schedule.turns[action.turn].rows,
                    action.area,
                    action.staging,
                )
