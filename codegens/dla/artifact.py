"""What a compiled region consists of: the program, its weights, and where inputs and outputs lie."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import Artifact, Executor, Region, written_options
from byoc.errors import InputError

from .binary import VERSION, assemble, disassemble
from .build import Built
from .cycles import Figures
from .interface import INTERFACE, Interface, LayerEntry, Socket, SocketEntry, box_entry, read_interface
from .layers import Port
from .options import DLAOptions
from .simulator import SimulationError, Simulator

Array = NDArray[Any]

PROGRAM = "program.bin"
WEIGHTS = "weights.bin"
ISA = "isa"
"""The metadata key of the version of the instruction set."""


def packed(built: Built, options: DLAOptions) -> Artifact:
    """Return a program as an artifact."""
    statistics = built.statistics
    network = built.network
    interface = Interface(
        inputs=tuple(_entry(built, port) for port in network.inputs),
        outputs=tuple(_entry(built, port) for port in network.outputs),
        layers=tuple(
            LayerEntry(name=layer.y.name, operation=layer.operation, nodes=tuple(layer.nodes))
            for layer in network.layers
        ),
    )
    metadata = {
        **written_options(options),
        ISA: str(VERSION),
        "arena": str(built.schedule.size),
        "arena_bound": str(built.schedule.bound),
        "weights": str(len(built.weights)),
        "layers": str(len(built.network.layers)),
        "cycles": str(statistics.cycles),
        "seconds": f"{statistics.seconds:.9f}",
        "bytes_loaded": str(statistics.total("loaded")),
        "bytes_stored": str(statistics.total("stored")),
    }
    files = {
        PROGRAM: assemble(built.program),
        WEIGHTS: built.weights,
        INTERFACE: interface.model_dump_json(indent=1).encode(),
    }
    return Artifact(files, metadata)


def executor(region: Region, artifact: Artifact, figures: Figures) -> Executor:
    """Return what runs an artifact of a region on the simulator; the region's model is not asked.

    Raises InputError with the file where they are no program, or none with the region's inputs and
    outputs.
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


def _entry(built: Built, port: Port) -> SocketEntry:
    placed = port.tensor.held in built.arena.places and port.tensor.nbytes
    box = box_entry(built.arena.whole(port.tensor)) if placed else None
    return SocketEntry(name=port.name, dtype=port.dtype, shape=port.shape, box=box)
