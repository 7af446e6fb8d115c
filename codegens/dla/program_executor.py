"""Running the artifact of a region on the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """An executor that runs a program on the simulator; a decoder's cache may be bound to arrays."""

    simulator: Simulator
    inputs: Sequence[Socket]
    outputs: Sequence[Socket]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name. Raises InputError for an input of another shape."""
        placed = [(s.box, _to_rows(inputs[s.name], s)) for s in self.inputs if s.box is not None]
        boxes = [socket.box for socket in self.outputs if socket.box is not None]
        made = iter(self.simulator.run(placed, boxes).outputs)
        return {
            s.name: np.zeros(s.shape, s.dtype) if s.box is None else next(made).reshape(s.shape)
            for s in self.outputs
        }

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
