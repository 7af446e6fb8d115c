"""Time of a program in cycles: two engines, DMA and COMPUTE, that wait for one another's bytes.

A command takes operations over the peak or bytes over the bandwidth of its engine (the roofline model of
Williams, Waterman, Patterson 2009). Each engine runs its commands one after another. A command waits
until the other engine has read the bytes that it overwrites, and has written those that it reads or
overwrites. So the LOAD of the next tile runs during a computation if its place in the scratchpad is
free.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from math import ceil

import numpy as np

from byoc.codegen import InputError, Roofline, load_cost_model

from .instructions import (
    Add,
    Command,
    Conv,
    ConvFlags,
    DType,
    Function,
    Load,
    MatMul,
    MinMax,
    Mul,
    Normalize,
    Operand,
    Pool,
    Quantize,
    Scale,
    Store,
)
from .program_file import COMMANDS, Program


class Engine(Enum):
    """The two engines of the machine: DMA moves bytes, COMPUTE computes."""

    DMA = "dma"
    COMPUTE = "compute"


def engine_of(command: Command) -> Engine:
    """Return the engine that runs a command."""
    return Engine.DMA if isinstance(command, Load | Store) else Engine.COMPUTE


def read_operands(command: Command) -> Mapping[str, Operand]:
    """Return the operands that a command reads, by their fields' names.

    An ABSENT operand is left out only if the command may do without it.
    """
    unread = set(_unread_fields(command))
    return {name: getattr(command, name) for name in _SOURCES[type(command)] if name not in unread}


_SOURCES = {
    kind: tuple(
        field.name
        for field in fields(kind)
        if field.type is Operand and field.name not in ("y", "target")
    )
    for kind in COMMANDS
}
"""The fields with operands that commands of each kind may read."""
_WITH_CHANNELS = (Add, Mul, Pool, Scale)


def _unread_fields(command: Command) -> Iterator[str]:
    """Yield the operands that a command does not read, or has left out."""
    if isinstance(command, Conv):
        yield from _unread_by_conv(command)
    if isinstance(command, Normalize):
        yield from (name for name in ("scale", "bias") if not getattr(command, name).rows)
    if isinstance(command, MinMax) and not command.before.rows:
        yield "before"
    if isinstance(command, _WITH_CHANNELS) and not command.channels.rows:
        yield "channels"


def _unread_by_conv(command: Conv) -> Iterator[str]:
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    floats = command.x.dtype is DType.FLOAT32
    if first:
        yield "accumulator"
    if not last or not command.residual.rows:
        yield "residual"
    if (not first and (floats or not last)) or (floats and not command.parameters.rows):
        yield "parameters"


def written_operand(command: Command) -> Operand | None:
    """Return the operand that a command writes, None for END."""
    if isinstance(command, Load | Store):
        return command.target
    if isinstance(command, Conv) and not command.flags & ConvFlags.LAST:
        return command.accumulator
    return getattr(command, "y", None)


FREQUENCY = 500e6
"""Cycles per second."""
LINE = 64
"""Bytes of the scratchpad for which waiting is tracked together."""
# Operations of an element, about as many as the cost models count. MINMAX compares with each end.
# QUANTIZE divides, rounds, adds, limits, subtracts: of the 7 of a DynamicQuantizeLinear MINMAX has two.
_ELEMENT_OPERATIONS = {Function: 4, Normalize: 5, MinMax: 2, Quantize: 5}


@dataclass(frozen=True)
class MachineFigures:
    """Speed of the machine.

    `peak` has operations per second by type (float32, int8, int16), where a multiplication and an
    addition are two; `bandwidth` is in bytes per second to and from the large memories; `overhead` is in
    seconds for each layer, `launch` in seconds for each run; `frequency` is in cycles per second.
    """

    peak: Mapping[str, float]
    bandwidth: float
    overhead: float
    launch: float
    frequency: float = FREQUENCY


def read_figures(name: str = "dla") -> MachineFigures:
    """Return the figures of a cost model of kind roofline: a file, or the name of an installed one.

    Raises InputError if it cannot be loaded, is of another kind, or lacks one of the types.
    """
    costs = load_cost_model(name)
    if not isinstance(costs, Roofline):
        raise InputError(f"{name}: the figures of the dla must be a cost model of kind roofline")
    for dtype in ("float32", "int8", "int16"):
        if dtype not in costs.peak:
            raise InputError(
                f"{name}: peak: it must have an entry for {dtype}, in which the dla computes"
            )
    return MachineFigures(costs.peak, costs.bandwidth, costs.overhead, costs.launch)


@dataclass(frozen=True)
class LayerStatistics:
    """Time and traffic of a layer.

    `cycles` is how far its commands moved the end of the program, `computing` and `moving` are the
    cycles that the engines ran for it, `loaded` and `stored` are its bytes.
    """

    layer: int
    cycles: int
    computing: int
    moving: int
    loaded: int
    stored: int
    operations: int


@dataclass(frozen=True)
class Statistics:
    """Time and traffic of a run: the launch, and the layers in the order of their first commands."""

    launch: int
    layers: tuple[LayerStatistics, ...]
    frequency: float

    @property
    def cycles(self) -> int:
        """All cycles, with those of the launch."""
        return self.launch + sum(layer.cycles for layer in self.layers)

    @property
    def seconds(self) -> float:
        """All seconds, with those of the launch."""
        return self.cycles / self.frequency

    def total(self, field: str) -> int:
        """Return the sum of a field of the layers: `computing`, `moving`, `loaded`, `stored`, ..."""
        return sum(getattr(layer, field) for layer in self.layers)


def simulate_timing(program: Program, figures: MachineFigures) -> Statistics:
    """Return the statistics of a program; they do not depend on the data."""
    timeline = _Timeline(figures, program.scratchpad)
    for command in program.commands[:-1]:  # without END
        timeline.advance(command)
    return timeline.statistics()


class _Timeline:
    """The time in cycles as commands are taken in order; it starts at the end of the launch."""

    def __init__(self, figures: MachineFigures, scratchpad: int) -> None:
        self._figures = figures
        self._launch = _to_cycles(figures.launch, figures.frequency)
        self._free = dict.fromkeys(Engine, self._launch)  # when each engine becomes free
        lines = -(-scratchpad // LINE)
        self._written = np.zeros(lines, np.int64)  # when each line will have been written
        self._read = np.zeros(lines, np.int64)  # when each line will have been read
        self._end = self._launch
        self._layers: dict[int, LayerStatistics] = {}

    def advance(self, command: Command) -> None:
        if command.layer not in self._layers:
            self._layers[command.layer] = LayerStatistics(command.layer, 0, 0, 0, 0, 0, 0)
            self._free[Engine.COMPUTE] += _to_cycles(self._figures.overhead, self._figures.frequency)
        sources, targets = _accessed_lines(command)
        engine, taken = engine_of(command), command_cycles(command, self._figures)
        end = self._start_time(engine, sources, targets) + taken
        for lines in sources:
            np.maximum(self._read[lines], end, out=self._read[lines])
        for lines in targets:
            self._written[lines] = end
        self._free[engine] = end
        self._add_to_layer(command, taken, max(self._end, *self._free.values()))

    def statistics(self) -> Statistics:
        return Statistics(self._launch, tuple(self._layers.values()), self._figures.frequency)

    def _start_time(self, which: Engine, sources: list[slice], targets: list[slice]) -> int:
        """Return when an engine can start a command that reads and writes some lines."""
        start = self._free[which]
        for lines in (*sources, *targets):
            start = max(start, int(self._written[lines].max(initial=0)))
        for lines in targets:
            start = max(start, int(self._read[lines].max(initial=0)))
        return start

    def _add_to_layer(self, command: Command, taken: int, end: int) -> None:
        """Add a command of `taken` cycles, with which the program ends at `end`, to its layer."""
        old = self._layers[command.layer]
        dma = engine_of(command) is Engine.DMA
        self._layers[command.layer] = LayerStatistics(
            command.layer,
            cycles=old.cycles + end - self._end,
            computing=old.computing + (0 if dma else taken),
            moving=old.moving + (taken if dma else 0),
            loaded=old.loaded + (command.source.nbytes if isinstance(command, Load) else 0),
            stored=old.stored + (command.source.nbytes if isinstance(command, Store) else 0),
            operations=old.operations + count_operations(command),
        )
        self._end = end


def command_cycles(command: Command, figures: MachineFigures) -> int:
    """Return the cycles for which a command occupies its engine."""
    if isinstance(command, Load | Store):
        return _to_cycles(command.source.nbytes / figures.bandwidth, figures.frequency)
    peak = figures.peak[_find_compute_type(command)]
    return _to_cycles(count_operations(command) / peak, figures.frequency)


def _find_compute_type(command: Command) -> str:
    """Return the type whose peak a command computes at: of CONV that of what it multiplies."""
    target = written_operand(command)
    used = {value.dtype for name, value in read_operands(command).items() if name in ("x", "a", "b")}
    if target is not None and not isinstance(command, Conv):
        used.add(target.dtype)
    return "float32" if DType.FLOAT32 in used else "int16" if DType.INT16 in used else "int8"


def count_operations(command: Command) -> int:
    """Return the operations of a command, where a multiplication and an addition are two."""
    target = written_operand(command)
    if target is None or engine_of(command) is Engine.DMA:
        return 0
    box = command.x if isinstance(command, MinMax) else target
    return box.rows * box.cols * box.channels * _count_element_operations(command)


def _count_element_operations(command: Command) -> int:
    """Return the operations for each element of a result, of MINMAX for each that it reads."""
    match command:
        case Conv():
            per_group = command.x.channels // max(command.groups, 1)
            return 2 * command.kernel.rows * command.kernel.cols * per_group
        case Pool():
            return command.kernel.rows * command.kernel.cols
        case MatMul():
            return 2 * command.a.channels
        case _:
            return _ELEMENT_OPERATIONS.get(type(command), 1)


def _to_cycles(seconds: float, frequency: float) -> int:
    return ceil(round(seconds * frequency, 6))  # 1e-6 * 500e6 is 500, and not 499.99999999999994


def _accessed_lines(command: Command) -> tuple[list[slice], list[slice]]:
    """Return the lines of the scratchpad that a command reads, and those that it writes."""
    target = written_operand(command)
    sources = [] if isinstance(command, Load) else list(read_operands(command).values())
    targets = [] if isinstance(command, Store) or target is None else [target]
    return [_covered_lines(box) for box in sources], [_covered_lines(box) for box in targets]


def _covered_lines(box: Operand) -> slice:
    """Return the lines of the scratchpad from a box's first byte to its last."""
    first, rows = box.first_row % box.window, box.rows
    if first + rows > box.window:  # it wraps around
        first, rows = 0, box.window
    start = box.address + first * box.row_pitch
    size = (rows - 1) * box.row_pitch + (box.cols - 1) * box.pixel_pitch
    end = start + size + (box.channels - 1) * box.channel_pitch + box.dtype.size
    return slice(start // LINE, -(-end // LINE))
