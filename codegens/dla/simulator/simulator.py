"""The simulator: it runs programs in numpy, checks every access, and counts cycles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..machine import (
    Command,
    DType,
    End,
    Load,
    MachineFigures,
    Memory,
    Operand,
    Program,
    Statistics,
    Store,
    Unpack,
    format_command,
    read_operands,
    simulate_timing,
    split_bytes,
    written_operand,
)
from .kernels import compute
from .tagged_memory import Array, FaultError, PlainMemory, TaggedMemory, check_box, end_of

# Weights of four bits, unpacked as the machine does while it loads them.


def unpack_weights(command: Unpack, packed: Array) -> Array:
    """Return the float32 weights [1, outputs, inputs] of a command, of its bytes [1, 1, bytes].

    Raises FaultError if extents or types do not match.
    """
    target = command.target
    if command.source.dtype is not DType.UINT8 or target.dtype is not DType.FLOAT32 or target.rows != 1:
        raise FaultError("weights of four bits are one row of uint8, and become one of float32")
    if not command.block or command.has_zeros > 1:
        raise FaultError("a block of weights has no elements, or `has_zeros` is neither 0 nor 1")
    outputs, inputs = target.cols, target.channels
    blocks, width = -(-inputs // command.block), -(-inputs // 2)
    sizes = (outputs * width, 4 * outputs * blocks, command.has_zeros * outputs * blocks)
    if packed.shape != (1, 1, sum(sizes)):
        raise FaultError(
            f"{packed.size} bytes, but {sum(sizes)} are needed for {outputs} x {inputs} weights"
        )
    numbers, scales, zeros = np.split(packed.reshape(-1), np.cumsum(sizes[:2]))
    whole = split_bytes(numbers.reshape(outputs, width), inputs)
    block = np.arange(inputs) // command.block
    factors = np.ascontiguousarray(scales).view("<f4").reshape(outputs, blocks)[:, block]
    zero = zeros.reshape(outputs, blocks)[:, block] if command.has_zeros else np.float32(8)
    made: Array = (whole.astype(np.float32) - zero) * factors
    return made.astype(np.float32).reshape(1, outputs, inputs)


class SimulationError(Exception):
    """A violation of the rules of the machine: the number of the command, the command, the reason."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The outputs of a run in the order requested, as [rows, cols, channels], and its statistics."""

    outputs: tuple[Array, ...]
    statistics: Statistics


class Simulator:
    """A program ready to run any number of times; each run starts with empty memories."""

    def __init__(self, program: Program, weights: bytes, figures: MachineFigures) -> None:
        """Take a program, the content of WEIGHTS, and the speed of the machine.

        Raises SimulationError if the program is for weights of another size, or END is not its end.
        """
        ends = [number for number, command in enumerate(program.commands) if isinstance(command, End)]
        if ends != [len(program.commands) - 1]:
            raise SimulationError(
                f"END must be the last of {len(program.commands)} commands, and no other"
            )
        if len(weights) != program.weights:
            raise SimulationError(
                f"the program is for {program.weights} bytes of weights, but there are {len(weights)}"
            )
        self._program = program
        self._weights = PlainMemory("weights", np.frombuffer(weights, np.uint8))
        self._figures = figures

    def run(
        self, inputs: Sequence[tuple[Operand, Array]], outputs: Sequence[Operand]
    ) -> SimulationResult:
        """Write the inputs into the arena, run the program, and read the outputs from there.

        Inputs are arrays [rows, cols, channels] of the operand's type. Raises SimulationError for a
        violation by the program, and if an output is not in its place at the end.
        """
        borders = [box for box, _ in inputs] + list(outputs)
        run = _SimulationRun(
            self._weights, self._memory_size(Memory.ARENA, borders), self._memory_size(None, [])
        )
        for box, values in inputs:
            run.write_input(box, values)
        for number, command in enumerate(self._program.commands[:-1]):  # without END
            run.run_command(number, command)
        return SimulationResult(tuple(run.read_output(box) for box in outputs), self._statistics)

    def _memory_size(self, memory: Memory | None, borders: Sequence[Operand]) -> int:
        """Return the bytes that a run needs of the arena, or of the scratchpad if `memory` is None.

        They are the size in the header, but at most as many as operands reach, so that a header with
        gigabytes allocates none.
        """
        size = self._program.scratchpad if memory is None else self._program.arena
        return min(size, max([self._memory_ends.get(memory, 0), *map(_end_of_valid, borders)]))

    @cached_property
    def _memory_ends(self) -> Mapping[Memory | None, int]:
        """One past the last byte that commands access, by memory; None is the scratchpad."""
        found: dict[Memory | None, int] = {}
        for command in self._program.commands:
            for memory, box in _accessed_operands(command):
                found[memory] = max(found.get(memory, 0), _end_of_valid(box))
        return found

    @cached_property
    def _statistics(self) -> Statistics:
        """The statistics, which are the same for each run; computed after the first valid run."""
        return simulate_timing(
            replace(self._program, scratchpad=self._memory_size(None, [])), self._figures
        )


class _SimulationRun:
    """The memories during one run."""

    def __init__(self, weights: PlainMemory, arena: int, scratchpad: int) -> None:
        self._weights = weights
        try:
            self._arena = TaggedMemory("arena", arena)
            self._scratchpad = TaggedMemory("scratchpad", scratchpad)
        except MemoryError:
            what = f"an arena of {arena} bytes and a scratchpad of {scratchpad}"
            raise SimulationError(
                f"{what}, with their tags, do not fit into this computer's memory"
            ) from None

    def write_input(self, box: Operand, values: Array) -> None:
        try:
            check_box("to be written", box)
            self._arena.write(box, values)
        except FaultError as fault:
            raise SimulationError(f"input tensor {box.tensor}: {fault}") from None

    def read_output(self, box: Operand) -> Array:
        try:
            check_box("to be read", box)
            return np.array(self._arena.read(box))
        except FaultError as fault:
            raise SimulationError(f"output tensor {box.tensor}: {fault}") from None

    def run_command(self, number: int, command: Command) -> None:
        try:
            self._execute(command)
        except FaultError as fault:
            raise SimulationError(f"command {number}, {format_command(command)}: {fault}") from None

    def _execute(self, command: Command) -> None:
        target = written_operand(command)
        if target is None:
            raise FaultError("it has no result")
        boxes = read_operands(command)
        for name, box in (*boxes.items(), ("to be written", target)):
            check_box(name, box)
        if isinstance(command, Load | Store):
            _check_rows(command)
        read = {name: self._source(command).read(box) for name, box in boxes.items()}
        (self._arena if isinstance(command, Store) else self._scratchpad).write(
            target, _result_values(command, read)
        )

    def _source(self, command: Command) -> PlainMemory:
        if not isinstance(command, Load):
            return self._scratchpad
        return self._weights if command.memory is Memory.WEIGHTS else self._arena


def _result_values(command: Command, read: Mapping[str, Array]) -> Array:
    if isinstance(command, Unpack):
        return unpack_weights(command, read["source"])
    return read["source"] if isinstance(command, Load | Store) else compute(command, read)


def _check_rows(command: Load | Store) -> None:
    """Raise FaultError for a copy within a tensor that changes the row numbers."""
    source, target = command.source, command.target
    constant = isinstance(command, Load) and command.memory is Memory.WEIGHTS
    if not constant and source.tensor == target.tensor and source.first_row != target.first_row:
        rows = f"row {source.first_row} of tensor {source.tensor} is copied as row {target.first_row}"
        raise FaultError(f"{rows} of the same tensor")


def _accessed_operands(command: Command) -> Iterator[tuple[Memory | None, Operand]]:
    """Yield the operands of a command with the memory of each; None is the scratchpad."""
    memory = command.memory if isinstance(command, Load) else None
    yield from ((memory, box) for box in read_operands(command).values())
    target = written_operand(command)
    if target is not None:
        yield Memory.ARENA if isinstance(command, Store) else None, target


def _end_of_valid(box: Operand) -> int:
    """Return one past the last byte of a box, 0 for an invalid one, at which a run stops."""
    try:
        check_box("", box)
    except FaultError:
        return 0
    return end_of(box)
