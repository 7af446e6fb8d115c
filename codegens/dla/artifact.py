"""The artifact of a compiled region: program, weights, and addresses of inputs and outputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import Artifact, Executor, Region, format_options
from byoc.errors import InputError

from .binary import VERSION, assemble, disassemble
from .build import CompiledRegion
from .cycles import MachineFigures
from .interface import INTERFACE, ProgramInterface, LayerEntry, Socket, SocketEntry, make_box_entry, read_interface
from .layers import BoundaryPort
from .options import DLAOptions
from .simulator import SimulationError, Simulator

Array = NDArray[Any]

PROGRAM = "program.bin"
WEIGHTS = "weights.bin"
ISA = "isa"
"""Metadata key of the version of the instruction set."""


def make_artifact(built: CompiledRegion, options: DLAOptions) -> Artifact:
    """Return a compiled region as an artifact, with its figures as metadata."""
    statistics = built.statistics
    network = built.network
    interface = ProgramInterface(
        inputs=tuple(_socket_entry(built, port) for port in network.inputs),
        outputs=tuple(_socket_entry(built, port) for port in network.outputs),
        layers=tuple(
            LayerEntry(name=layer.y.name, operation=layer.operation, nodes=tuple(layer.nodes))
            for layer in network.layers
        ),
    )
    metadata = {
        **format_options(options),
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


def make_executor(region: Region, artifact: Artifact, figures: MachineFigures) -> Executor:
    """Return a function that runs an artifact on the simulator; the region's model is not used.

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
    boxes = [socket.box for socket in outputs if socket.box is not None]

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        placed = [(s.box, _to_rows(given[s.name], s)) for s in inputs if s.box is not None]
        made = iter(simulator.run(placed, boxes).outputs)
        return {
            s.name: np.zeros(s.shape, s.dtype) if s.box is None else next(made).reshape(s.shape)
            for s in outputs
        }

    return run


def _to_rows(values: Array, socket: Socket) -> Array:
    """Return an input as an array [rows, cols, channels] of its box. Raises InputError for its shape."""
    box = socket.box
    assert box is not None
    if values.shape != socket.shape:
        raise InputError(
            f"'{socket.name}' has shape {values.shape}, but was compiled for {socket.shape}"
        )
    return np.ascontiguousarray(values).reshape(box.rows, box.cols, box.channels)


def _socket_entry(built: CompiledRegion, port: BoundaryPort) -> SocketEntry:
    placed = port.tensor.storage_name in built.arena.addresses and port.tensor.nbytes
    box = make_box_entry(built.arena.whole_operand(port.tensor)) if placed else None
    return SocketEntry(name=port.name, dtype=port.dtype, shape=port.shape, box=box)
