"""From a region to a program: lowered, scheduled, cut into tiles, written as commands."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from byoc.codegen import Region

from . import emit_conv, emit_moves, emit_simple
from .arena import Arena
from .boxes import Span
from .cycles import Figures, Statistics, timed
from .emit import Machine, Step, pipelined
from .isa import Command, End, Program
from .layers import Activation, Concat, Conv, Eltwise, Layer, Move, Network, Pool, Restack
from .lower import lower
from .options import DLAOptions
from .pack import Weights
from .rules import RULES
from .schedule import Schedule, whole
from .striped import striped
from .tiles import Budget

Emitter = Callable[[Machine, int, Any, Span], Iterator[Step]]

EMITTERS: Mapping[type[Layer], Emitter] = {
    Conv: emit_conv.convolution,
    Pool: emit_simple.pool,
    Eltwise: emit_simple.eltwise,
    Activation: emit_simple.activation,
    Concat: emit_simple.concat,
    Move: emit_moves.move,
    Restack: emit_moves.restack,
}
"""What writes the commands of some rows of a layer."""


@dataclass(frozen=True, eq=False)
class Built:
    """A region as a program with its weights, and what led to it."""

    network: Network
    schedule: Schedule
    arena: Arena
    program: Program
    weights: bytes
    statistics: Statistics


def build(region: Region, options: DLAOptions, figures: Figures) -> Built:
    """Return a region's program.

    Raises CompileError for what the machine does not do, and ResourceError for what is too large.
    """
    network = lower(region, RULES)
    schedule = (striped if options.stripes else whole)(network, options.memory)
    return programmed(network, schedule, options.scratchpad, figures)


def programmed(network: Network, schedule: Schedule, scratchpad: int, figures: Figures) -> Built:
    """Return the program of layers that run and lie as a schedule says. Raises ResourceError."""
    weights = Weights()
    constants = {name: weights.add(array) for name, array in network.constants.items()}
    arena = Arena(schedule.places, constants)
    budget = Budget(scratchpad, figures)
    machine = Machine(arena, weights, budget, count(len(arena.places) + 1))
    commands = (*_commands(machine, network, schedule), End(len(network.layers)))
    content = weights.content()
    program = Program(commands, schedule.size, scratchpad, len(content))
    return Built(network, schedule, arena, program, content, timed(program, figures))


def _commands(machine: Machine, network: Network, schedule: Schedule) -> Iterator[Command]:
    for turn in schedule.turns:
        layer = network.layers[turn.number]
        yield from pipelined(EMITTERS[type(layer)](machine, turn.number, layer, turn.rows))
