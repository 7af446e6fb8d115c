"""Compile a region to a program: lower, schedule, cut into tiles, emit commands."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

from byoc.codegen import Region, ResourceError

from .arena import Arena
from .boxes import Span
from .cycles import Figures, Statistics, timed
from .emit import Machine, Step, pipelined
from .emit_conv import emit_convolution
from .emit_moves import emit_move, emit_restack
from .emit_simple import emit_activation, emit_concat, emit_eltwise, emit_pool
from .isa import Command, End, Load, Program, Store
from .layers import Activation, Concat, Conv, Eltwise, Layer, Move, Network, Pool, Restack
from .operand import Memory
from .options import DLAOptions
from .oracle import lower_region
from .pack import Weights
from .resident import Action, Copy, Run, resident
from .schedule import Schedule, whole
from .striped import striped
from .tiles import Budget

Emitter = Callable[[Machine, int, Any, Span], Iterator[Step]]

EMITTERS: Mapping[type[Layer], Emitter] = {
    Conv: emit_convolution,
    Pool: emit_pool,
    Eltwise: emit_eltwise,
    Activation: emit_activation,
    Concat: emit_concat,
    Move: emit_move,
    Restack: emit_restack,
}
"""By type of layer, the function that emits the commands of some of its rows."""

_ADDRESSES = 2**32  # addresses and sizes are words of 32 bits
_MOST_COMMANDS = 2**18  # the simulator takes about a minute for so many


@dataclass(frozen=True, eq=False)
class Built:
    """A compiled region: the program with its weights, and the intermediate results of compiling."""

    network: Network
    schedule: Schedule
    arena: Arena
    program: Program
    weights: bytes
    statistics: Statistics


def build_region(region: Region, options: DLAOptions, figures: Figures) -> Built:
    """Compile a region. With the option `resident`, return the faster of two programs.

    One of the two keeps tensors in the scratchpad between layers. Raises CompileError for what the
    machine cannot do, and ResourceError for what does not fit.
    """
    network = lower_region(region)
    schedule = (striped if options.stripes else whole)(network, options.memory)
    _check_addresses(network, schedule)
    plain = build_scheduled(network, schedule, options.scratchpad, figures)
    if options.stripes or not options.resident:
        return plain
    actions = resident(network, schedule, Budget(options.scratchpad, figures))
    if actions is None:
        return plain
    other = build_scheduled(network, schedule, options.scratchpad, figures, actions)
    return min(plain, other, key=lambda built: built.statistics.cycles)


def build_scheduled(
    network: Network,
    schedule: Schedule,
    scratchpad: int,
    figures: Figures,
    actions: Sequence[Action] | None = None,
) -> Built:
    """Emit the program of a network for a schedule.

    `actions` keep tensors in the scratchpad between layers; without them, none stays there. Raises
    ResourceError for a layer that does not fit.
    """
    weights = Weights()
    constants = {name: weights.add(array) for name, array in network.constants.items()}
    arena = Arena(schedule.places, constants)
    budget = Budget(scratchpad, figures)
    machine = Machine(arena, weights, budget, count(len(arena.places) + 1), scratchpad)
    if actions is None:
        actions = [Run(turn.number, {}, None, turn.rows) for turn in schedule.turns]
    done = chain.from_iterable(_commands(machine, network, action) for action in actions)
    commands = _counted(network, done)
    content = weights.content()
    program = Program((*commands, End(len(network.layers))), schedule.size, scratchpad, len(content))
    return Built(network, schedule, arena, program, content, timed(program, figures))


def _check_addresses(network: Network, schedule: Schedule) -> None:
    """Raise ResourceError, with the nodes of the largest result, for an arena of 2**32 bytes or more."""
    if schedule.size >= _ADDRESSES:
        largest = max(network.layers, key=lambda layer: layer.y.nbytes)
        what = f"its arena has {schedule.size} bytes, but must have fewer than {_ADDRESSES}"
        raise ResourceError(what, largest.nodes)


def _counted(network: Network, commands: Iterator[Command]) -> Sequence[Command]:
    """Return the commands. Raises ResourceError, with the nodes of the longest layer, for too many."""
    found = list(islice(commands, _MOST_COMMANDS + 1))
    if len(found) <= _MOST_COMMANDS:
        return found
    longest = network.layers[Counter(command.layer for command in found).most_common(1)[0][0]]
    what = f"its program has more than {_MOST_COMMANDS} commands, most of them for '{longest.y.name}'"
    raise ResourceError(what, longest.nodes)


def _commands(machine: Machine, network: Network, action: Action) -> Iterator[Command]:
    """Yield the commands of an action: of some rows of a layer, or of copying a whole tensor."""
    if isinstance(action, Copy):
        far = machine.arena.whole(action.tensor)
        near = Arena({action.tensor.held: action.near}, {}).whole(action.tensor)
        if action.is_load:
            yield Load(action.number, Memory.ARENA, far, near)
        else:
            yield Store(action.number, near, far)
        return
    layer = network.layers[action.number]
    machine.near, machine.area = action.near, action.area
    machine.budget = Budget(action.room or machine.scratchpad, machine.budget.figures)
    machine.fix(action.number, action.rows.count, action.tiling)
    yield from pipelined(EMITTERS[type(layer)](machine, action.number, layer, action.rows))
