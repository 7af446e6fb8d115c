"""The artifact of a compiled region: program, weights, and addresses of inputs and outputs.

`interface.json` has the addresses with names, types and shapes, and for people the layers.
`interface.bin` has the addresses alone, for the driver in C: the magic bytes DLAI, the version, the
numbers of inputs and outputs, and for each a word that is 0 or 1 and the words of its box, all
little-endian. `layers.bin` has the names of layers and nodes for the driver's events
(driver/dla_layers.h).
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from byoc.codegen import (
    SRAM,
    SRAM_LIMIT,
    Artifact,
    CompileError,
    Cycles,
    Executor,
    InputError,
    OperatorTime,
    Region,
    StrictModel,
    TensorContract,
    escape_line,
    format_options,
    parse_strict_json,
    quote_name,
)

from .compiler import (
    BoundaryPort,
    CompiledRegion,
    LayerNetwork,
    WeightPiece,
    boundary_shape,
    fill_weights,
    have_same_program,
)
from .compiler.compile_region import lower_region
from .dla_options import ISA, DLAOptions
from .machine import DType, MachineFigures, Operand, assemble, disassemble, find_version
from .simulator import FaultError, SimulationError, Simulator, check_box, end_of, find_memory_ends

INTERFACE = "interface.json"
DRIVER_INTERFACE = "interface.bin"
DRIVER_LAYERS = "layers.bin"
_Word = Annotated[int, Field(ge=0, lt=2**32)]


class BoxEntry(StrictModel):
    """A box of the arena; the fields are those of `Operand`."""

    tensor: _Word
    address: _Word
    first_row: _Word
    window: _Word
    rows: _Word
    cols: _Word
    channels: _Word
    row_pitch: _Word
    pixel_pitch: _Word
    channel_pitch: _Word
    dtype: Literal["FLOAT32", "INT8", "UINT8", "INT32", "INT16"]

    def operand(self) -> Operand:
        """Return the box as commands have them."""
        return Operand(**{**dict(self), "dtype": DType[self.dtype]})


class SocketEntry(StrictModel):
    """An input or output of a program: name, dtype and shape on the host, and its box of the arena.

    A tensor without elements has no box, nor has an input that nothing reads.
    """

    name: str
    dtype: Literal["float32", "int8", "uint8", "int32", "int16"]
    shape: tuple[_Word, ...]
    box: BoxEntry | None


class TensorEntry(StrictModel):
    """A tensor of the region that is in a layer's result, with its shape in ONNX; an image is NHWC."""

    name: str
    shape: tuple[_Word, ...]
    image: bool


class LayerEntry(StrictModel):
    """A layer, for people and for traces: its result, its operation, the nodes in it, its cycles.

    `box` is where the result is when the layer has run, in the scratchpad where it is `near`; `tensors`
    are those of the region that are there.
    """

    name: str
    operation: str
    nodes: tuple[str, ...]
    cycles: int = Field(0, ge=0)
    box: BoxEntry | None = None
    near: bool = False
    tensors: tuple[TensorEntry, ...] = ()


class ProgramInterface(StrictModel):
    """The content of the file."""

    inputs: tuple[SocketEntry, ...]
    outputs: tuple[SocketEntry, ...]
    layers: tuple[LayerEntry, ...]


@dataclass(frozen=True)
class Socket:
    """An input or output of a program that was loaded."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Operand | None


def make_box_entry(box: Operand) -> BoxEntry:
    """Return a box as an entry of the file."""
    return BoxEntry(**{**vars(box), "dtype": box.dtype.name})


def read_interface(
    content: bytes, region: Region, arena: int
) -> tuple[Sequence[Socket], Sequence[Socket]]:
    """Return the inputs and outputs of a region's program.

    `arena` is the size of its arena in bytes. Raises InputError with the location in the file if it is
    invalid, has inputs or outputs other than those of the region, or a box that cannot hold its tensor.
    """
    content_read = _parse_interface(content)
    inputs = _check_sockets("inputs", content_read.inputs, region.inputs, arena)
    outputs = _check_sockets("outputs", content_read.outputs, region.outputs, arena)
    for number, socket in enumerate(outputs):
        if socket.box is None and 0 not in socket.shape:
            raise _location_error(
                f"outputs.{number}.box", f"{quote_name(socket.name)} has no address in the arena"
            )
    return inputs, outputs


def _parse_interface(content: bytes) -> ProgramInterface:
    try:
        parse_strict_json(content)  # refuses duplicate keys and NaN
        return ProgramInterface.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _location_error(escape_line(".".join(map(str, first["loc"]))), first["msg"]) from None
    except ValueError as error:
        raise InputError(f"{INTERFACE}: {error}") from None


def _check_sockets(
    side: str, entries: Sequence[SocketEntry], contracts: Sequence[TensorContract], arena: int
) -> Sequence[Socket]:
    """Return the inputs or outputs of the file, checked against contracts and boxes."""
    if len(entries) != len(contracts):
        raise _location_error(side, f"there are {len(entries)}, but the region has {len(contracts)}")
    sockets = []
    for number, (each, contract) in enumerate(zip(entries, contracts, strict=True)):
        location = f"{side}.{number}"
        stated = (each.name, each.dtype, each.shape)
        expected = (contract.name, contract.type.dtype, boundary_shape(contract))
        if stated != expected:
            raise _location_error(
                location, f"{_format_socket(*stated)}, but the region has {_format_socket(*expected)}"
            )
        box = None if each.box is None else each.box.operand()
        if box is not None:
            _check_box(f"{location}.box", each, box, arena)
        sockets.append(Socket(each.name, each.dtype, each.shape, box))
    return sockets


def _check_box(location: str, each: SocketEntry, box: Operand, arena: int) -> None:
    """Raise InputError if a box is outside the arena, or differs from its tensor in type or size."""
    if box.dtype.name.lower() != each.dtype or box.rows * box.cols * box.channels != prod(each.shape):
        extents = f"{box.dtype.name.lower()} of {box.rows} x {box.cols} x {box.channels}"
        raise _location_error(
            location, f"{extents}, for {_format_socket(each.name, each.dtype, each.shape)}"
        )
    try:
        check_box(each.name, box)
    except FaultError as fault:
        raise _location_error(location, str(fault)) from None
    if end_of(box) > arena:
        raise _location_error(
            location, f"it ends at byte {end_of(box)}, but the arena has {arena} bytes"
        )


def _format_socket(name: str, dtype: str, shape: object) -> str:
    return f"{quote_name(name)} {dtype} {shape}"


def _location_error(location: str, reason: str) -> InputError:
    return InputError(f"{INTERFACE}: {location}: {reason}" if location else f"{INTERFACE}: {reason}")


Array = NDArray[Any]

PROGRAM = "program.bin"
WEIGHTS = "weights.bin"
PIECES = "pieces.json"
_PIECE_LIST = TypeAdapter(list[WeightPiece])
_CYCLES = "cycles"


def make_artifact(built: CompiledRegion, options: DLAOptions) -> Artifact:
    """Return a compiled region as an artifact, with its figures as metadata."""
    statistics = built.statistics
    network = built.network
    interface = ProgramInterface(
        inputs=tuple(_socket_entry(built, port) for port in network.inputs),
        outputs=tuple(_socket_entry(built, port) for port in network.outputs),
        layers=_list_layers(built),
    )
    metadata = {
        **format_options(options),
        ISA: str(find_version(built.program)),
        "arena": str(built.schedule.size),
        "arena_bound": str(built.schedule.bound),
        "weights": str(len(built.weights)),
        SRAM: str(find_memory_ends(built.program.commands).get(None, 0)),
        SRAM_LIMIT: str(built.program.scratchpad),
        "layers": str(len(built.network.layers)),
        _CYCLES: str(statistics.cycles),
        "seconds": f"{statistics.seconds:.9f}",
        "bytes_loaded": str(statistics.total("loaded")),
        "bytes_stored": str(statistics.total("stored")),
    }
    files = {
        PROGRAM: assemble(built.program),
        WEIGHTS: built.weights,
        INTERFACE: interface.model_dump_json(indent=1).encode(),
        DRIVER_INTERFACE: _encode_addresses(interface),
        DRIVER_LAYERS: _encode_layers(interface),
        PIECES: _PIECE_LIST.dump_json(list(built.pieces)),
    }
    return Artifact(files, metadata)


def read_cycles(artifact: Artifact, figures: MachineFigures) -> Cycles:
    """Return the cycles of one run that an artifact's metadata has, at the clock of the machine.

    Raises CompileError where it has none.
    """
    text = artifact.metadata.get(_CYCLES, "")
    if not text.isdecimal():
        raise CompileError("the artifact's metadata has no cycles")
    return Cycles(int(text), figures.frequency)


def exchange_weights(region: Region, first: Region, artifact: Artifact) -> Artifact | None:
    """Return the artifact of `first` with the weights and names of a region that is like it.

    Returns None where the two do not become the same program. Raises CompileError as compiling does.
    """
    network = lower_region(region)
    if not have_same_program(network, lower_region(first)):
        return None
    pieces = _PIECE_LIST.validate_json(artifact.files[PIECES])
    weights = fill_weights(network, pieces, len(artifact.files[WEIGHTS]))
    if weights is None:
        return None
    was = _parse_interface(artifact.files[INTERFACE])
    interface = ProgramInterface(
        inputs=_rename_sockets(was.inputs, network.inputs),
        outputs=_rename_sockets(was.outputs, network.outputs),
        layers=_rename_layers(was.layers, network),
    )
    changed = {
        WEIGHTS: weights,
        INTERFACE: interface.model_dump_json(indent=1).encode(),
        DRIVER_LAYERS: _encode_layers(interface),
    }
    return Artifact({**artifact.files, **changed}, artifact.metadata)


def _rename_sockets(
    entries: Sequence[SocketEntry], ports: Sequence[BoundaryPort]
) -> tuple[SocketEntry, ...]:
    pairs = zip(entries, ports, strict=True)
    return tuple(entry.model_copy(update={"name": port.name}) for entry, port in pairs)


def _list_layers(built: CompiledRegion) -> tuple[LayerEntry, ...]:
    cycles = {each.layer: each.cycles for each in built.statistics.layers}
    tensors = _list_tensors(built.network)
    return tuple(
        LayerEntry(
            name=layer.y.name,
            operation=layer.operation,
            nodes=tuple(layer.nodes),
            cycles=cycles.get(number, 0),
            box=make_box_entry(result.box),
            near=result.near,
            tensors=tensors.get(layer.y.storage_name, ()),
        )
        for number, (layer, result) in enumerate(zip(built.network.layers, built.results, strict=True))
    )


def _rename_layers(entries: Sequence[LayerEntry], network: LayerNetwork) -> tuple[LayerEntry, ...]:
    """Return the layers of a program with the names of another region."""
    tensors = _list_tensors(network)
    pairs = zip(entries, network.layers, strict=True)
    return tuple(
        entry.model_copy(
            update={
                "name": layer.y.name,
                "nodes": tuple(layer.nodes),
                "tensors": tensors.get(layer.y.storage_name, ()),
            }
        )
        for entry, layer in pairs
    )


def _list_tensors(network: LayerNetwork) -> dict[str, tuple[TensorEntry, ...]]:
    """Return the tensors of the region in each layer's result, by the name of its storage."""
    found: dict[str, tuple[TensorEntry, ...]] = {}
    for each in network.results:
        entry = TensorEntry(name=each.name, shape=each.shape, image=each.image)
        found[each.storage] = (*found.get(each.storage, ()), entry)
    return found


def _encode_addresses(interface: ProgramInterface) -> bytes:
    """Return the addresses of inputs and outputs for the driver."""
    parts = [struct.pack("<4sIII", b"DLAI", 1, len(interface.inputs), len(interface.outputs))]
    for socket in (*interface.inputs, *interface.outputs):
        words = [0] * 11 if socket.box is None else [*vars(socket.box.operand()).values()]
        parts.append(struct.pack("<12I", socket.box is not None, *words))
    return b"".join(parts)


def _encode_layers(interface: ProgramInterface) -> bytes:
    """Return the names of layers and nodes for the driver."""
    counts = [len(layer.nodes) for layer in interface.layers]
    head = struct.pack("<4sIII", b"DLAL", 1, len(counts), sum(counts))
    names = [name for layer in interface.layers for name in (layer.name, *layer.nodes)]
    texts = b"".join(name.encode().replace(b"\0", b"") + b"\0" for name in names)
    return head + struct.pack(f"<{len(counts)}I", *counts) + texts


def _socket_entry(built: CompiledRegion, port: BoundaryPort) -> SocketEntry:
    placed = port.tensor.storage_name in built.arena.addresses and port.tensor.nbytes
    box = make_box_entry(built.arena.whole_operand(port.tensor)) if placed else None
    return SocketEntry(name=port.name, dtype=port.dtype, shape=port.shape, box=box)


# Running the artifact of a region on the simulator.


@dataclass(frozen=True, eq=False)
class ProgramExecutor:
    """An executor that runs a program on the simulator; a decoder's cache may stay in the machine."""

    simulator: Simulator
    inputs: Sequence[Socket]
    outputs: Sequence[Socket]
    layers: Sequence[LayerEntry] = ()

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name. Raises InputError for an input of another shape."""
        return self.read_outputs(self.run(self._place(inputs)))

    def trace(self, region: Region, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the tensors of the region that layers compute, by name, as ONNX has them.

        Raises InputError for an input of another shape.
        """
        shown = self._trace_layers(inputs)
        left = [each for each in region.outputs if each.inner not in shown]
        made = self(inputs) if left else {}  # views of inputs, in the layout of the boundary
        for each in left:
            order = (0, 3, 1, 2) if each.layout == "NHWC" else range(made[each.name].ndim)
            shown[each.inner] = made[each.name].transpose(order)
        return shown

    def _trace_layers(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        placed = self._place(inputs)
        given = [(s.box, placed[s.name]) for s in self.inputs if s.box is not None]
        stored = [layer for layer in self.layers if layer.box is not None]
        if len(stored) != len(self.layers):
            return {}  # an artifact of an older compiler
        results = [(layer.box.operand(), layer.near) for layer in stored if layer.box is not None]
        made = self.simulator.trace(given, results)
        return {
            tensor.name: _to_onnx_order(values, tensor)
            for layer, values in zip(stored, made, strict=True)
            if values is not None
            for tensor in layer.tensors
        }

    def profile(self, frequency: float) -> list[OperatorTime]:
        """Return the cycles of each layer, which the simulator counted when the program was compiled."""
        return [
            OperatorTime(layer.nodes, Cycles(layer.cycles, frequency), layer.name)
            for layer in self.layers
        ]

    def _place(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return inputs as they are in their boxes. Raises InputError for one of another shape."""
        return {s.name: _to_rows(inputs[s.name], s) for s in self.inputs if s.box is not None}

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
    content = artifact.files[INTERFACE]
    inputs, outputs = read_interface(content, region, program.arena)
    return ProgramExecutor(simulator, inputs, outputs, _parse_interface(content).layers)


def _to_onnx_order(values: Array, tensor: TensorEntry) -> Array:
    """Return a tensor as ONNX has it, from an array [rows, cols, channels] of the machine's memory."""
    if not tensor.image:
        return values.reshape(tensor.shape)
    images, channels, height, width = tensor.shape
    return values.reshape(images, height, width, channels).transpose(0, 3, 1, 2)


def _to_rows(values: Array, socket: Socket) -> Array:
    """Return an input as an array [rows, cols, channels] of its box. Raises InputError for its shape."""
    box = socket.box
    assert box is not None
    if values.shape != socket.shape:
        raise InputError(
            f"'{socket.name}' has shape {values.shape}, but was compiled for {socket.shape}"
        )
    return np.ascontiguousarray(values).reshape(box.rows, box.cols, box.channels)
