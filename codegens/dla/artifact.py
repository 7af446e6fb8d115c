"""What a compiled region consists of: the program, its weights, and where inputs and outputs lie."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import Artifact, Executor, written_options
from byoc.errors import InputError

from .binary import VERSION, assemble, disassemble
from .build import Built
from .cycles import Figures
from .layers import Port
from .operand import DType, Operand
from .options import DLAOptions
from .simulator import Simulator

Array = NDArray[Any]

PROGRAM = "program.bin"
WEIGHTS = "weights.bin"
INTERFACE = "interface.json"
ISA = "isa"
"""The metadata key of the version of the instruction set."""


@dataclass(frozen=True)
class Socket:
    """An input or output of a program: its name, dtype and shape outside, and its box of the arena.

    There is no box for one without elements, nor for an input that nothing reads.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Operand | None


def packed(built: Built, options: DLAOptions) -> Artifact:
    """Return a program as an artifact."""
    statistics = built.statistics
    interface = {
        "inputs": [_told(_socket(built, port)) for port in built.network.inputs],
        "outputs": [_told(_socket(built, port)) for port in built.network.outputs],
        "layers": [
            {"name": layer.y.name, "operation": layer.operation, "nodes": layer.nodes}
            for layer in built.network.layers
        ],
    }
    metadata = {
        **written_options(options),
        ISA: str(VERSION),
        "arena": str(built.schedule.size),
        "arena_bound": str(built.schedule.bound),
        "weights": str(len(built.weights)),
        "layers": str(len(built.network.layers)),
        "cycles": str(statistics.cycles),
        "seconds": f"{statistics.seconds:.9f}",
        "loaded": str(statistics.total("loaded")),
        "stored": str(statistics.total("stored")),
    }
    text = json.dumps(interface, indent=1)
    files = {
        PROGRAM: assemble(built.program),
        WEIGHTS: built.weights,
        INTERFACE: text.encode(),
    }
    return Artifact(files, metadata)


def executor(artifact: Artifact, figures: Figures) -> Executor:
    """Return what runs an artifact on the simulator: from its bytes alone.

    Raises InputError where they are no program.
    """
    told = json.loads(artifact.files[INTERFACE])
    inputs, outputs = ([_read(each) for each in told[side]] for side in ("inputs", "outputs"))
    program = disassemble(artifact.files[PROGRAM])
    simulator = Simulator(program, artifact.files[WEIGHTS], figures)
    boxes = [socket.box for socket in outputs if socket.box is not None]

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        placed = [(s.box, _rows(given[s.name], s)) for s in inputs if s.box is not None]
        made = iter(simulator.run(placed, boxes).outputs)
        return {
            s.name: np.zeros(s.shape, s.dtype) if s.box is None else next(made).reshape(s.shape)
            for s in outputs
        }

    return run


def _rows(values: Array, socket: Socket) -> Array:
    """Return an input as the rows, columns and channels of its box."""
    box = socket.box
    assert box is not None
    if values.shape != socket.shape:
        raise InputError(f"'{socket.name}' is {values.shape}, and was compiled for {socket.shape}")
    return np.ascontiguousarray(values).reshape(box.rows, box.cols, box.channels)


def _socket(built: Built, port: Port) -> Socket:
    placed = port.tensor.held in built.arena.places and port.tensor.nbytes
    box = built.arena.whole(port.tensor) if placed else None
    return Socket(port.name, port.dtype, port.shape, box)


def _told(socket: Socket) -> dict[str, Any]:
    told = asdict(socket)
    if socket.box is not None:
        told["box"] = {**told["box"], "dtype": socket.box.dtype.name}
    return told


def _read(told: Mapping[str, Any]) -> Socket:
    box = told["box"]
    if box is not None:
        box = Operand(**{**box, "dtype": DType[box["dtype"]]})
    return Socket(told["name"], told["dtype"], tuple(told["shape"]), box)
