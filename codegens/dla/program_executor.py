"""Running the artifact of a region on the simulator."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import Artifact, Executor, InputError, Region

from .machine import MachineFigures, disassemble
from .region_artifact import INTERFACE, PROGRAM, WEIGHTS, Socket, read_interface
from .simulator import SimulationError, Simulator

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ProgramExecutor:
    """An executor that runs a program on the simulator; a decoder's cache may stay in the machine."""

    simulator: Simulator
    inputs: Sequence[Socket]
    outputs: Sequence[Socket]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name. Raises InputError for an input of another shape."""
        placed = {s.name: _to_rows(inputs[s.name], s) for s in self.inputs if s.box is not None}
        return self.read_outputs(self.run(placed))

    def run(self, placed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program on inputs as they are in its boxes; return outputs as they are in theirs.

        Both are arrays [rows, cols, channels], by the names of tensors that have boxes.
        """
        given = [(s.box, placed[s.name]) for s in self.inputs if s.box is not None]
        boxes = {s.name: s.box for s in self.outputs if s.box is not None}
        made = self.simulator.run(given, list(boxes.values())).outputs
        return dict(zip(boxes, made, strict=True))

    def read_outputs(self, made: Mapping[str, Array], without: Collection[str] = ()) -> dict[str, Array]:
        """Return the region's outputs, but those in `without`, from those of `run`."""
        return {
            s.name: np.zeros(s.shape, s.dtype) if s.box is None else made[s.name].reshape(s.shape)
            for s in self.outputs
            if s.name not in without
        }

    def allocate(self, pairs: Mapping[str, str]) -> "ProgramState | None":
        """Make room in the machine's memory for states that the program reads and makes.

        None where it has no box for one, since nothing reads it.
        """
        boxes = {s.name: s.box for s in (*self.inputs, *self.outputs)}
        if any(boxes[name] is None for pair in pairs.items() for name in pair):
            return None
        return ProgramState(self, pairs)

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Executor:
        """Return an executor that writes `outputs` where they lie, over the inputs that lie there.

        A cache that is both stays in these arrays, which stand for memory of the machine. Raises
        InputError for an array of another shape than the output has.
        """
        shapes = {socket.name: tuple(socket.shape) for socket in self.outputs}
        for name, array in outputs.items():
            if array.shape != shapes[name]:
                raise InputError(
                    f"output '{name}' is {list(shapes[name])}, its array {list(array.shape)}"
                )

        def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
            made = self({**given, **inputs})
            for name, array in outputs.items():
                array[...] = made[name]
            return {**made, **outputs}

        return run


@dataclass(frozen=True, eq=False)
class ProgramState:
    """States of a sequence in the machine's memory; `pairs` are their names as inputs and as outputs.

    They lie there as the program's boxes have them, beside the arena, where each run begins anew: the
    machine moves them in and out by itself. Its host sends them once, and gets them when it reads them.
    """

    executor: ProgramExecutor
    pairs: Mapping[str, str]
    memory: dict[str, Array] = field(default_factory=dict)
    """What lies in the machine's memory, by names of inputs: arrays [rows, cols, channels]."""

    def reset(self, values: Mapping[str, Array]) -> None:
        """Send values to the machine, by names of inputs. Raises InputError for another shape."""
        for name, socket in self._sockets.items():
            self.memory[name] = np.array(_to_rows(values[name], socket))

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program on the other inputs and return the other outputs. Raises InputError."""
        others = [s for s in self.executor.inputs if s.name not in self.pairs and s.box is not None]
        placed = {socket.name: _to_rows(inputs[socket.name], socket) for socket in others}
        made = self.executor.run({**placed, **self.memory})
        for past, present in self.pairs.items():  # their boxes may part the same elements otherwise
            self.memory[past] = made[present].reshape(self.memory[past].shape)
        return self.executor.read_outputs(made, set(self.pairs.values()))

    def read(self) -> dict[str, Array]:
        """Return copies of the states, by names of inputs."""
        return {name: self.memory[name].reshape(s.shape).copy() for name, s in self._sockets.items()}

    @cached_property
    def _sockets(self) -> Mapping[str, Socket]:
        return {socket.name: socket for socket in self.executor.inputs if socket.name in self.pairs}


def make_executor(region: Region, artifact: Artifact, figures: MachineFigures) -> ProgramExecutor:
    """Return an executor of an artifact; the region's model is not used.

    Raises InputError naming the file if a file is missing or invalid, or if its inputs and outputs are
    not those of the region.
    """
    missing = sorted({PROGRAM, WEIGHTS, INTERFACE} - set(artifact.files))
    if missing:
        raise InputError(f"the artifact has no {missing[0]}")
    try:
        program = disassemble(artifact.files[PROGRAM])
        simulator = Simulator(program, artifact.files[WEIGHTS], figures)
    except (InputError, SimulationError) as error:
        raise InputError(f"{PROGRAM}: {error}") from None
    inputs, outputs = read_interface(artifact.files[INTERFACE], region, program.arena)
    return ProgramExecutor(simulator, inputs, outputs)


def _to_rows(values: Array, socket: Socket) -> Array:
    """Return an input as an array [rows, cols, channels] of its box. Raises InputError for its shape."""
    box = socket.box
    assert box is not None
    if values.shape != socket.shape:
        raise InputError(
            f"'{socket.name}' has shape {values.shape}, but was compiled for {socket.shape}"
        )
    return np.ascontiguousarray(values).reshape(box.rows, box.cols, box.channels)
