"""Vela, Arm's compiler for Ethos-U: asked in a process of its own, which may crash."""

import csv
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from byoc.codegen import CompileError, MissingRuntimeError, shorten_text

from . import vela_worker

_PATIENCE = 600.0  # seconds for a graph
_MAX_CHARACTERS = 300  # of Vela's message in a sentence
_MISSING = "ethos-u-vela is not installed (pip install 'onnx-byoc[ethos-u]')"

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
    chip, and off it.
    """

    stream: bytes
    cycles: float
    hertz: float
    sram: int
    flash: int


def vela_version() -> str:
    """Return Vela's version. Raises MissingRuntimeError where it is not installed."""
    try:
        return version("ethos-u-vela")
    except PackageNotFoundError:
        raise MissingRuntimeError(_MISSING) from None


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
        flash=_read_bytes(row, "on_chip_flash")
        + _read_bytes(row, "off_chip_flash")
        + _read_bytes(row, "dram"),
    )


def _read_bytes(row: Mapping[str, str], memory: str) -> int:
    """Return the bytes in use of a memory, which Vela states in KiB."""
    return round(float(row[f"{memory}_memory_used"]) * 1024)
