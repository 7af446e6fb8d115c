"""The machine in numpy: it runs programs as isa.py says, checks every access, and counts cycles."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .access import reads, written
from .binary import line
from .cycles import Figures, Statistics, timed
from .isa import Command, End, Load, Program, Store
from .kernels import compute
from .memory import Array, ConstantMemory, FaultError, TaggedMemory, check_box
from .operand import Memory, Operand


class SimulationError(Exception):
    """A program did what the machine does not allow: the command's number, the command, and why."""


@dataclass(frozen=True, eq=False)
class Result:
    """The outputs that were asked for, in that order, as [rows, cols, channels], and what it took."""

    outputs: tuple[Array, ...]
    statistics: Statistics


class Simulator:
    """Runs one program, as often as it is asked to; each run starts with empty memories."""

    def __init__(self, program: Program, weights: bytes, figures: Figures) -> None:
        """Take a program, what its WEIGHTS hold, and how fast the machine is.

        Raises SimulationError where the program was made for other weights, or END is not its end.
        """
        ends = [number for number, command in enumerate(program.commands) if isinstance(command, End)]
        if ends != [len(program.commands) - 1]:
            raise SimulationError(
                f"END is to be the last of {len(program.commands)} commands, and no other"
            )
        if len(weights) != program.weights:
            raise SimulationError(
                f"the program is for {program.weights} bytes of weights, and there are {len(weights)}"
            )
        self._program = program
        self._weights = ConstantMemory("weights", np.frombuffer(weights, np.uint8))
        self._figures = figures

    def run(self, inputs: Sequence[tuple[Operand, Array]], outputs: Sequence[Operand]) -> Result:
        """Write the inputs into the arena, run the program, and read the outputs from there.

        Inputs are arrays [rows, cols, channels] of their operand's type. Raises SimulationError for what
        a program may not do, and where an output is not in its place at the end.
        """
        run = _Run(self._program, self._weights)
        for box, values in inputs:
            run.put(box, values)
        for number, command in enumerate(self._program.commands[:-1]):  # without END
            run.step(number, command)
        return Result(tuple(run.get(box) for box in outputs), self._statistics)

    @cached_property
    def _statistics(self) -> Statistics:
        """What each run takes, asked for when one has shown that the program is right."""
        return timed(self._program, self._figures)


class _Run:
    """The memories during one run."""

    def __init__(self, program: Program, weights: ConstantMemory) -> None:
        self._weights = weights
        self._arena = TaggedMemory("arena", program.arena)
        self._scratchpad = TaggedMemory("scratchpad", program.scratchpad)

    def put(self, box: Operand, values: Array) -> None:
        try:
            check_box("to be written", box)
            self._arena.write(box, values)
        except FaultError as fault:
            raise SimulationError(f"input tensor {box.tensor}: {fault}") from None

    def get(self, box: Operand) -> Array:
        try:
            check_box("to be read", box)
            return np.array(self._arena.read(box))
        except FaultError as fault:
            raise SimulationError(f"output tensor {box.tensor}: {fault}") from None

    def step(self, number: int, command: Command) -> None:
        try:
            self._execute(command)
        except FaultError as fault:
            raise SimulationError(f"command {number}, {line(command)}: {fault}") from None

    def _execute(self, command: Command) -> None:
        target = written(command)
        if target is None:
            raise FaultError("it has nothing to write")
        boxes = reads(command)
        for name, box in (*boxes.items(), ("to be written", target)):
            check_box(name, box)
        read = {name: self._source(command).read(box) for name, box in boxes.items()}
        values = read["source"] if isinstance(command, Load | Store) else compute(command, read)
        (self._arena if isinstance(command, Store) else self._scratchpad).write(target, values)

    def _source(self, command: Command) -> ConstantMemory:
        if not isinstance(command, Load):
            return self._scratchpad
        return self._weights if command.memory is Memory.WEIGHTS else self._arena
