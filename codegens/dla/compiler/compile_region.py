"""Compile a region to a program with the codegen's options: lower, schedule, cut into tiles, emit."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from typing import Any, Literal

from byoc.codegen import Bytes, Region, ResourceError
from byoc.codegen import arena as arena_planning

from ..machine import (
    Command,
    End,
    Load,
    MachineFigures,
    Memory,
    Program,
    Statistics,
    Store,
    simulate_timing,
)
from .emission import CONSTANT, EmitterState, TileStep, WeightPiece, WeightsImage, interleave_steps
from .emit_convolutions import emit_convolution
from .emit_tiles import (
    compute_activation,
    compute_eltwise,
    compute_matmul,
    compute_normalize,
    compute_pool,
    compute_quantize,
    emit_boxes,
    emit_concat,
    emit_min_max,
    emit_move,
    emit_restack,
)
from .layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    LayerNetwork,
    MachineLayer,
    MatMulLayer,
    MinMaxLayer,
    MoveLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
    RestackLayer,
)
from .lower_region import lower_region
from .scheduling import (
    Action,
    AddressMap,
    CopyTensor,
    LayerSchedule,
    RunLayer,
    plan_residency,
    schedule_striped,
    schedule_whole,
)
from .tiling import AxisSpan, TileBudget

NAME = "dla"
"""Name of the codegen, its rule file and its cost model."""

_LEAST = 1024
_MOST = 2**30  # the simulator keeps a tag of eight bytes for each byte


@dataclass(frozen=True)
class DLAOptions:
    """Options of the codegen `dla`: the size of the machine, and how its memory is planned."""

    scratchpad: Bytes = field(default=512 * 1024, metadata={"help": "bytes of the scratchpad"})
    memory: Literal["no-reuse", "best-fit", "by-size", "reordered", "exact"] = field(
        default="exact", metadata={"help": "how the arena is planned"}
    )
    resident: bool = field(
        default=True, metadata={"help": "keep tensors in the scratchpad between layers where they fit"}
    )
    stripes: bool = field(
        default=False,
        metadata={"help": "compute layers in stripes of rows, in a smaller arena"},
    )

    def __post_init__(self) -> None:
        """Raise ValueError for a scratchpad too small or large, and for an unknown method."""
        if self.scratchpad < _LEAST:
            raise ValueError(f"scratchpad is {self.scratchpad}, but must be at least {_LEAST} bytes")
        if self.scratchpad > _MOST:
            raise ValueError(f"scratchpad is {self.scratchpad}, but must be at most {_MOST} bytes")
        if self.memory not in arena_planning.METHODS:
            raise ValueError(
                f"memory is '{self.memory}', but must be one of {', '.join(arena_planning.METHODS)}"
            )


Emitter = Callable[[EmitterState, int, Any, AxisSpan], Iterator[TileStep]]

EMITTERS: Mapping[type[MachineLayer], Emitter] = {
    ConvLayer: emit_convolution,
    PoolLayer: partial(emit_boxes, compute_pool),
    EltwiseLayer: partial(emit_boxes, compute_eltwise),
    ActivationLayer: partial(emit_boxes, compute_activation),
    MatMulLayer: partial(emit_boxes, compute_matmul),
    NormalizeLayer: partial(emit_boxes, compute_normalize),
    QuantizeLayer: partial(emit_boxes, compute_quantize),
    MinMaxLayer: emit_min_max,
    ConcatLayer: emit_concat,
    MoveLayer: emit_move,
    RestackLayer: emit_restack,
}
"""By type of layer, the function that emits the commands of some of its rows."""

_ADDRESSES = 2**32  # addresses and sizes are words of 32 bits
_MAX_COMMANDS = 2**18  # the simulator takes about a minute for so many


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """A compiled region: the program with its weights, and the intermediate results of compiling."""

    network: LayerNetwork
    schedule: LayerSchedule
    arena: AddressMap
    program: Program
    weights: bytes
    pieces: Sequence[WeightPiece]
    statistics: Statistics


def compile_region(region: Region, options: DLAOptions, figures: MachineFigures) -> CompiledRegion:
    """Compile a region. With the option `resident`, return the faster of two programs.

    One of the two keeps tensors in the scratchpad between layers. Raises CompileError for what the
    machine cannot do, and ResourceError for what does not fit.
    """
    network = lower_region(region)
    schedule = (schedule_striped if options.stripes else schedule_whole)(network, options.memory)
    _check_addresses(network, schedule)
    plain = emit_program(network, schedule, options.scratchpad, figures)
    if options.stripes or not options.resident:
        return plain
    actions = plan_residency(network, schedule, TileBudget(options.scratchpad, figures))
    if actions is None:
        return plain
    other = emit_program(network, schedule, options.scratchpad, figures, actions)
    return min(plain, other, key=lambda built: built.statistics.cycles)


def emit_program(
    network: LayerNetwork,
    schedule: LayerSchedule,
    scratchpad: int,
    figures: MachineFigures,
    actions: Sequence[Action] | None = None,
) -> CompiledRegion:
    """Emit the program of a network for a schedule.

    `actions` keep tensors in the scratchpad between layers; without them, none stays there. Raises
    ResourceError for a layer that does not fit.
    """
    weights = WeightsImage()
    constants = {name: weights.add(array) for name, array in network.constants.items()}
    arena = AddressMap(schedule.places, constants)
    budget = TileBudget(scratchpad, figures)
    machine = EmitterState(arena, weights, budget, count(len(arena.addresses) + 1), scratchpad)
    for number, name in enumerate(constants):
        machine.pieces.append(WeightPiece(constants[name], CONSTANT, number))
    if actions is None:
        actions = [RunLayer(turn.number, {}, None, turn.rows) for turn in schedule.turns]
    done = chain.from_iterable(_action_commands(machine, network, action) for action in actions)
    commands = _check_count(network, done)
    content = weights.content()
    program = Program((*commands, End(len(network.layers))), schedule.size, scratchpad, len(content))
    statistics = simulate_timing(program, figures)
    return CompiledRegion(network, schedule, arena, program, content, machine.pieces, statistics)


def _check_addresses(network: LayerNetwork, schedule: LayerSchedule) -> None:
    """Raise ResourceError, with the nodes of the largest result, for an arena of 2**32 bytes or more."""
    if schedule.size >= _ADDRESSES:
        largest = max(network.layers, key=lambda layer: layer.y.nbytes)
        what = f"its arena has {schedule.size} bytes, but must have fewer than {_ADDRESSES}"
        raise ResourceError(what, largest.nodes)


def _check_count(network: LayerNetwork, commands: Iterator[Command]) -> Sequence[Command]:
    """Return the commands. Raises ResourceError, with the nodes of the longest layer, for too many."""
    found = list(islice(commands, _MAX_COMMANDS + 1))
    if len(found) <= _MAX_COMMANDS:
        return found
    longest = network.layers[Counter(command.layer for command in found).most_common(1)[0][0]]
    what = f"its program has more than {_MAX_COMMANDS} commands, most of them for '{longest.y.name}'"
    raise ResourceError(what, longest.nodes)


def _action_commands(machine: EmitterState, network: LayerNetwork, action: Action) -> Iterator[Command]:
    """Yield the commands of an action: of some rows of a layer, or of copying a whole tensor."""
    if isinstance(action, CopyTensor):
        far = machine.arena.whole_operand(action.tensor)
        near = AddressMap({action.tensor.storage_name: action.near}, {}).whole_operand(action.tensor)
        if action.is_load:
            yield Load(action.number, Memory.ARENA, far, near)
        else:
            yield Store(action.number, near, far)
        return
    layer = network.layers[action.number]
    machine.near, machine.area = action.near, action.area
    machine.budget = TileBudget(action.room or machine.scratchpad, machine.budget.figures)
    machine.set_tiling(action.number, action.rows.count, action.tiling)
    yield from interleave_steps(EMITTERS[type(layer)](machine, action.number, layer, action.rows))
