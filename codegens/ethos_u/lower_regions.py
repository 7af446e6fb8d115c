"""Lower a region to TOSA, operation by operation, from its inputs to its outputs."""

import csv
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import onnx

from byoc.codegen import (
    YES,
    CompileError,
    MissingRuntimeError,
    Operation,
    Quantization,
    Region,
    TensorContract,
    TensorType,
    Verdict,
    install_command,
    read_region,
    refuse,
    shorten_text,
)

from . import vela_worker
from .lower_elementwise import choose_source_quantization, lower_function, split_function
from .lowering import IMAGE, LOWERINGS, STORED, Lowering, Value, arrange, read_shape

# Vela, Arm's compiler for Ethos-U: asked in a process of its own, which may crash.

_PATIENCE = 600.0  # seconds for a graph
_MAX_CHARACTERS = 300  # of Vela's message in a sentence

Accelerator = Literal[
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256",
    "ethos-u65-256", "ethos-u65-512",
    "ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048",
]  # fmt: skip

_SYSTEMS: Mapping[str, tuple[str, str]] = {
    "ethos-u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u65": ("Ethos_U65_High_End", "Dedicated_Sram"),
    "ethos-u85": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}
"""System configuration and memory mode of each family unless others are asked for."""


@dataclass(frozen=True)
class EthosUOptions:
    """Options of the codegen `ethos_u`, which are Vela's.

    `system_config` and `memory_mode` are sections of Vela's configuration file; without them those are
    taken that Vela takes.
    """

    accelerator: Accelerator = field(
        default="ethos-u55-256", metadata={"help": "the NPU and its multiply-accumulates in a cycle"}
    )
    system_config: str = field(
        default="", metadata={"help": "clock and memories, by Vela's name; empty is Vela's choice"}
    )
    memory_mode: str = field(
        default="", metadata={"help": "which memory holds what, by Vela's name; empty is Vela's choice"}
    )
    optimise: Literal["Size", "Performance"] = field(
        default="Performance", metadata={"help": "whether to use little memory or little time"}
    )

    def __post_init__(self) -> None:
        """Raise ValueError for names that are no names of sections."""
        for name in ("system_config", "memory_mode"):
            value = getattr(self, name)
            if value and not value.replace("_", "").isalnum():
                raise ValueError(f"{name} is '{value}', but must be a name of Vela's configuration file")

    @property
    def arguments(self) -> list[str]:
        """Vela's arguments."""
        system, mode = _SYSTEMS[self.accelerator.rpartition("-")[0]]
        return [
            "--accelerator-config", self.accelerator,
            "--config", "Arm/vela.ini",
            "--system-config", self.system_config or system,
            "--memory-mode", self.memory_mode or mode,
            "--optimise", self.optimise,
            "--output-format", "raw",
        ]  # fmt: skip


class TooSlowError(CompileError):
    """Vela had not compiled a graph when the processor time that it was given was spent."""


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """A graph compiled by Vela: the command stream with its weights, and Vela's summary.

    `cycles` is its estimate of one run at a clock of `hertz`. `sram` and `flash` are bytes in use on the
    chip, and off it. `sram_limit` is the size of that memory where the memory mode states it.
    """

    stream: bytes
    cycles: float
    hertz: float
    sram: int
    sram_limit: int | None
    flash: int


def vela_version() -> str:
    """Return Vela's version. Raises MissingRuntimeError where it is not installed."""
    try:
        return version("ethos-u-vela")
    except PackageNotFoundError:
        raise MissingRuntimeError(
            f"ethos-u-vela is not installed ({install_command('ethos-u')})"
        ) from None


def compile_graph(graph: bytes, options: EthosUOptions) -> CompiledGraph:
    """Compile a TOSA graph. Raises CompileError with Vela's reason."""
    (result,) = compile_graphs([graph], options)
    if isinstance(result, CompileError):
        raise result
    return result


def compile_graphs(
    graphs: Sequence[bytes], options: EthosUOptions, limit: float = 0.0
) -> list[CompiledGraph | CompileError]:
    """Compile TOSA graphs one after the other in one process; return each result, or Vela's reason.

    The process is started again behind a graph at which it crashes. With `limit`, a graph that takes
    more seconds of processor time is given up, and its result is a TooSlowError. Raises
    MissingRuntimeError.
    """
    vela_version()
    with tempfile.TemporaryDirectory(prefix="byoc-") as name:
        folder = Path(name)
        for number, graph in enumerate(graphs):
            (folder / f"{number}.tosa").write_bytes(graph)
        reasons: list[str | None] = []
        while len(reasons) < len(graphs):
            reasons += _run_worker(folder, len(reasons), len(graphs), options, limit)
        return [
            TooSlowError(f"Vela gave no answer in {limit:g} s of processor time", lasting=False)
            if why is None
            else CompileError(shorten_text(f"Vela refuses it: {why}", _MAX_CHARACTERS))
            if why
            else _read_result(folder / str(number))
            for number, why in enumerate(reasons)
        ]


def _run_worker(
    folder: Path, first: int, count: int, options: EthosUOptions, limit: float
) -> list[str | None]:
    """Return Vela's reasons for graphs from `first` on, as far as it came.

    "" is one that it compiled, None one that took too long.
    """
    command = [
        sys.executable,
        "-P",
        str(Path(vela_worker.__file__)),
        str(folder),
        str(first),
        str(count),
        str(limit),
    ]
    patience = _PATIENCE + 2 * (count - first)
    try:
        ran = subprocess.run(
            [*command, *options.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"Vela gave no answer in {patience:g} s", lasting=False) from None
    found: list[str | None] = [
        json.loads(line) for line in ran.stdout.splitlines() if line.startswith('"')
    ]
    if limit and first + len(found) < count and ran.returncode == -signal.SIGPROF:
        found.append(None)
    elif first + len(found) < count:
        found.append(f"it crashes: its process ended with {ran.returncode}")
    return found


def _read_result(folder: Path) -> CompiledGraph:
    (stream,) = folder.glob("*_vela.npz")
    (summary,) = folder.glob("*_summary_*.csv")
    with summary.open(encoding="utf-8", newline="") as file:
        row = list(csv.DictReader(file))[-1]
    return CompiledGraph(
        stream=stream.read_bytes(),
        cycles=float(row["cycles_total"]),
        hertz=float(row["core_clock"]),
        sram=_read_bytes(row, "sram"),
        # Vela's default is all that can be addressed, 4 GiB or more.
        sram_limit=cache if (cache := round(float(row["arena_cache_size"]) * 1024)) < 2**32 else None,
        flash=_read_bytes(row, "on_chip_flash")
        + _read_bytes(row, "off_chip_flash")
        + _read_bytes(row, "dram"),
    )


def _read_bytes(row: Mapping[str, str], memory: str) -> int:
    """Return the bytes in use of a memory, which Vela states in KiB."""
    return round(float(row[f"{memory}_memory_used"]) * 1024)


_ORDERS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "": lambda rank: tuple(range(rank)),
    "NHWC": lambda _: IMAGE,
}


def lower_region(region: Region) -> tuple[bytes, list[int]]:
    """Return the TOSA graph of a region, and the positions of the region's inputs that it reads.

    Raises CompileError naming all nodes for which there are no TOSA operators.
    """
    operations = region.operations(quantized=True)
    lowering = Lowering(region)
    read = {name for each in operations for name in each.inputs} | {
        each.inner for each in region.outputs
    }
    positions = [place for place, each in enumerate(region.inputs) if each.inner in read]
    for place in positions:
        contract = region.inputs[place]
        readers = [each.name for each in operations if contract.inner in each.inputs]
        lowering.values[contract.inner] = _enter_input(lowering, contract, readers)
    errors = [error for each in operations for error in lower_operation(lowering, each)]
    if errors:
        others = f", and {len(errors) - 1} more are not taken" if len(errors) > 1 else ""
        raise CompileError(f"{errors[0]}{others}", [name for error in errors for name in error.nodes])
    for contract in region.outputs:
        makers = [each.name for each in operations if contract.inner in each.outputs]
        _add_output(lowering, contract, makers)
    return lowering.graph.write(), positions


def lower_alone(region: Region, operation: Operation) -> bytes:
    """Return the TOSA graph of one operation of a region. Raises CompileError as `lower_region` does.

    Images are NHWC there, inputs and outputs alike; all else has the order of ONNX.
    """
    lowering = Lowering(region)
    for name in dict.fromkeys(filter(None, operation.inputs)):
        if name not in operation.constants:
            lowering.values[name] = _enter_tensor(lowering, name, region.type(name), [operation.name])
    for error in lower_operation(lowering, operation):
        raise error
    for name in filter(lowering.values.__contains__, operation.outputs):
        value = lowering.values[name]
        lowering.graph.add_output(arrange(lowering.graph, value, _usual_order(value.rank)).tensor)
    return lowering.graph.write()


def lower_operation(lowering: Lowering, operation: Operation) -> list[CompileError]:
    """Lower an operation, or those inside a composite; return the error where it is not taken, or none.

    The error names the node. The results are then new inputs of the graph, so that what follows can be
    tried.
    """
    try:
        if operation.inner:
            _lower_composite(lowering, operation)
        else:
            _lower_single(lowering, operation)
    except CompileError as error:
        error.nodes = (operation.name,) if operation.inner else error.nodes or (operation.name,)
        for name in filter(None, operation.outputs):
            kind = lowering.region.type(name)
            if kind is not None and kind.dtype in STORED:
                lowering.values[name] = _enter_tensor(lowering, name, kind, error.nodes)
        return [error]
    return []


def _lower_single(lowering: Lowering, operation: Operation) -> None:
    function = LOWERINGS.find(operation)
    if function is None:
        raise CompileError(f"no TOSA operators are written for {operation.op}")
    function(operation, lowering)


def _lower_composite(lowering: Lowering, operation: Operation) -> None:
    """Lower the operations inside one by one; a function at the end, not quantized inside, by a table.

    If the tensor that the function reads is made inside and not quantized, it gets 16 bits.
    """
    before, function = split_function(operation.inner)
    for each in before:
        if function is None or function.source not in each.outputs:
            _lower_single(lowering, each)
        else:
            fine = choose_source_quantization(function, lowering)
            _lower_single(lowering, _quantize_result(each, fine, operation.output_types[0]))
    if function is not None:
        lower_function(function, lowering)


def _quantize_result(operation: Operation, wanted: Quantization, kind: TensorType | None) -> Operation:
    """Return an operation with its result quantized as wanted, and of the shape in type `kind`."""
    return replace(
        operation,
        output_quantization=(wanted,),
        output_limits=(wanted.limits,),
        find_type=lambda name: kind if name in operation.outputs else operation.find_type(name),
    )


def _enter_input(lowering: Lowering, contract: TensorContract, readers: Sequence[str]) -> Value:
    """Return the value of an input. Raises CompileError naming its readers."""
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", readers)
    extents = _read_extents(contract.name, contract.type, readers)
    tensor = lowering.graph.add_input(contract.type.dtype, extents)
    return Value(tensor, _ORDERS[contract.layout](len(extents)))


def _enter_tensor(lowering: Lowering, name: str, kind: TensorType | None, nodes: Sequence[str]) -> Value:
    """Return a tensor's value as a new input of the graph. Raises CompileError naming the nodes."""
    extents = _read_extents(name, kind, nodes)
    assert kind is not None
    order = _usual_order(len(extents))
    return Value(lowering.graph.add_input(kind.dtype, [extents[axis] for axis in order]), order)


def _read_extents(name: str, kind: TensorType | None, nodes: Sequence[str]) -> list[int]:
    """Return the extents of a tensor of integers. Raises CompileError naming the nodes."""
    if kind is None or kind.dtype not in STORED:
        raise CompileError(f"'{name}' is {kind}, and no integer of 8 or 16 bits", nodes)
    return read_shape(name, kind, nodes) or [1]


def _add_output(lowering: Lowering, contract: TensorContract, makers: Sequence[str]) -> None:
    """Make a value an output. Raises CompileError naming what makes it."""
    value = lowering.values.get(contract.inner)
    if value is None:
        raise CompileError(f"'{contract.name}' is not made", makers)
    if contract.type.dtype != value.tensor.dtype:
        raise CompileError(
            f"'{contract.name}' is {contract.type}, and no integer of 8 or 16 bits", makers
        )
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", makers)
    order = _ORDERS[contract.layout](value.rank)
    lowering.graph.add_output(arrange(lowering.graph, value, order).tensor)


def _usual_order(rank: int) -> tuple[int, ...]:
    return IMAGE if rank == 4 else tuple(range(rank))


# Ask Vela about each quantized operation of a model, alone.

_PREFIX = "byoc."


def check_nodes(model: onnx.ModelProto, options: EthosUOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether Vela compiles the operation that it is part of.

    A DequantizeLinear is taken wherever what reads it is. Raises MissingRuntimeError without Vela.
    """
    vela_version()
    target = next(
        (
            each.domain.removeprefix(_PREFIX)
            for each in model.functions
            if each.domain.startswith(_PREFIX)
        ),
        "checked",
    )
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        stored = onnx.ModelProto()
        stored.CopyFrom(model)  # saving changes it
        onnx.save(stored, path, save_as_external_data=True, location="weights.bin")
        region = read_region(path, "checked", target)
        refused = {
            name: why
            for operation, why in _ask(region, options)
            for node in (operation, *operation.fused)
            for name in node.node.output
        }
    return [
        next((refuse(refused[name]) for name in node.output if name in refused), YES)
        for node in model.graph.node
    ]


def find_refused(region: Region, options: EthosUOptions) -> list[str]:
    """Return the names of the operations of a region that Vela refuses alone."""
    return [operation.name for operation, _ in _ask(region, options)]


def _ask(region: Region, options: EthosUOptions) -> Iterator[tuple[Operation, str]]:
    """Yield the operations that are not taken, each with the reason."""
    graphs: dict[bytes, list[Operation]] = {}
    for operation in region.operations(quantized=True):
        try:
            graphs.setdefault(lower_alone(region, operation), []).append(operation)
        except CompileError as error:
            yield operation, str(error)
    for operations, result in zip(graphs.values(), compile_graphs(list(graphs), options), strict=True):
        if isinstance(result, CompileError):
            yield from zip(operations, [str(result)] * len(operations), strict=True)
