"""rknn-toolkit2 in an interpreter of its own, whose process is kept alive over calls.

The toolkit pins numpy, onnx and protobuf to releases that byoc's environment does not have. So it is in
another environment, whose interpreter the environment variable BYOC_RKNN_PYTHON names.
"""

import atexit
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import onnx

from byoc.codegen import (
    AnyArray,
    CompileError,
    Fit,
    MissingRuntimeError,
    NotHereError,
    PipeProcess,
    ProcessEndedError,
    find_version_in,
    refuse,
    shorten_text,
)

VARIABLE = "BYOC_RKNN_PYTHON"
# Not imported here: it takes standard output from the process that it is imported in.
_WORKER = Path(__file__).with_name("sdk_worker.py")
_MISSING = (
    "rknn-toolkit2, which compiles for Rockchip's NPUs, is not here: install it into an environment "
    f"of its own (docs/vendors.md), and name its interpreter in {VARIABLE}"
)
_MAX_CHARACTERS = 300  # of the toolkit's message in a sentence
_MAX_PROTO = 2**31 - 1  # bytes of a model without files

# A row of the toolkit's table of layers, such as (one line)
# `1  ConvRelu  INT8  NPU  (1,3,16,16),(8,3,3,3),...  (1,8,16,16)  439/2304/2304  2  Conv:c`.
_ROW = re.compile(
    r"^D RKNN: \[[\d:.]+\] \d+ +(?P<op>\S+) +(?P<dtype>\S+) +(?P<target>[A-Z]+) +\S.*? "
    r"(?P<shape>\S+) +(?P<ddr>\d+)/\d+/(?P<total>\d+) +(?P<read>\d+) ",
    re.MULTILINE,
)
_WIDTHS = {"INT8": 1, "UINT8": 1, "BOOL": 1, "FLOAT16": 2, "INT16": 2, "INT64": 8}  # others have 4 bytes
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ERROR = re.compile(
    r"^(E RKNN: \[[\d:.]+\] *|E \w+: |E "
    r"|[\w.]*(?:Error|Exception|Fail|Invalid\w+|NotImplemented): )(?P<text>.+)"
)
_VIEWS = ("Reshape", "Flatten")
_NOISE = ("Traceback", "rknn-toolkit2 version", "Please feedback", "====")
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")


@dataclass(frozen=True)
class Layer:
    """A row of the toolkit's table: an operator, who runs it (NPU, CPU or GPU), and its cycles.

    `cycles` are all, `memory_cycles` those in which its `bytes` cross to and from memory; both are 0 of
    operators that the toolkit does not count.
    """

    op: str
    dtype: str
    target: str
    cycles: int
    memory_cycles: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Network:
    """A network that was built: its .rknn file, and its number in a life of the toolkit's process."""

    content: bytes
    layers: tuple[Layer, ...]
    number: int
    life: int

    @property
    def own_cpu(self) -> tuple[str, ...]:
        """The operators that the chip's CPU or GPU runs instead of the NPU, sorted."""
        return tuple(sorted({each.op for each in self.layers if each.target != "NPU"}))

    @property
    def cycles(self) -> int | None:
        """The cycles of all layers; None where the toolkit does not tell.

        It counts convolutions and products alone. Its bytes of all others cross at the rate that it has
        for those of the layers that it counts.
        """
        counted = [each for each in self.layers if each.memory_cycles]
        if self.own_cpu or not counted:
            return None
        rate = sum(each.bytes for each in counted) / sum(each.memory_cycles for each in counted)
        others = sum(each.bytes for each in self.layers if not each.cycles and each.op not in _VIEWS)
        return round(sum(each.cycles for each in counted) + others / rate)


class ToolkitProcess:
    """A process that builds and runs networks one at a time, started again where it died."""

    def __init__(self, python: str) -> None:
        """Remember the interpreter."""
        # The toolkit writes files into the folder that it is started in.
        self._process = PipeProcess(python, _WORKER, _make_work_folder())
        self._unused: list[Network] = []
        self.lock = threading.RLock()  # held while the process is looked at and asked

    def build(self, model: onnx.ModelProto, settings: Mapping[str, Any], timeout: float) -> Network:
        """Build a model, which holds its constants itself.

        Raises CompileError with the toolkit's reason where it refuses the model, and with `lasting`
        false where its process dies or takes longer than `timeout` seconds.
        """
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            path, export = Path(folder) / "region.onnx", Path(folder) / "region.rknn"
            _write_model(model, path)
            asked = {"method": "build", "model": str(path), "settings": dict(settings)}
            with self.lock:
                self._process.start()
                answer, _ = self._ask({**asked, "export": str(export)}, (), timeout)
                if answer["error"]:
                    raise CompileError(_find_reason(answer))
                layers = tuple(_read_layers(answer["log"]))
                return Network(export.read_bytes(), layers, answer["network"], self._process.life)

    def run(self, network: Network, arrays: Sequence[AnyArray], timeout: float) -> list[AnyArray]:
        """Return the outputs of a network that the process has. Raises CompileError as `build` does."""
        with self.lock:
            answer, made = self._ask({"method": "run", "network": network.number}, arrays, timeout)
        if answer["error"]:
            raise CompileError(f"the simulator fails: {_find_reason(answer)}")
        return made

    def trace(
        self,
        network: Network,
        arrays: Sequence[AnyArray],
        tensors: Sequence[Mapping[str, Any]],
        timeout: float,
    ) -> tuple[list[AnyArray], dict[str, AnyArray]]:
        """Return the outputs of a network, and the integers of those of some tensors that it computes.

        A tensor has its `name`, the names of the real values in the network (`computed`), `scale`,
        `zero_point`, `dtype` and `shape`. Raises CompileError as `build` does, and where the toolkit
        does not show them.
        """
        asked = {"method": "trace", "network": network.number, "tensors": list(tensors)}
        with self.lock:
            answer, made = self._ask(asked, arrays, timeout)
        if answer["error"]:
            raise CompileError(f"the simulator fails: {_find_reason(answer)}")
        count = len(made) - len(answer["shown"])
        return made[:count], dict(zip(answer["shown"], made[count:], strict=True))

    def has(self, network: Network) -> bool:
        """Return whether the process that built a network still lives; for as long as `lock` is held."""
        return self._process.life == network.life

    def release(self, network: Network) -> None:
        """Let the process forget a network before its next answer; may be called from a finalizer."""
        self._unused.append(network)

    def _ask(
        self, request: Mapping[str, Any], arrays: Sequence[AnyArray], timeout: float
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        """Send a request, and return the answer with its arrays. The caller has the lock."""
        try:
            while self._unused:
                unused = self._unused.pop()
                if self.has(unused):
                    self._process.ask({"method": "release", "network": unused.number}, (), timeout)
            return self._process.ask(request, arrays, timeout)
        except TimeoutError:
            what = "building" if request["method"] == "build" else "running"
            why = f"rknn-toolkit2 took longer than {timeout:g} s for {what} and was stopped"
            raise CompileError(why, lasting=False) from None
        except ProcessEndedError as error:
            why = f"rknn-toolkit2 crashes: {_describe_exit(error.code)}"
            raise CompileError(why, lasting=False) from None


class SimulatorRun:
    """A network on the simulator: built again where the process that has it died."""

    def __init__(
        self,
        toolkit: ToolkitProcess,
        model: onnx.ModelProto,
        settings: Mapping[str, Any],
        timeout: float,
    ) -> None:
        """Build the network. Raises CompileError as `ToolkitProcess.build` does."""
        self._toolkit, self.model = toolkit, model
        self._settings, self._timeout = settings, timeout
        self.network = toolkit.build(model, settings, timeout)
        self._finalizer = weakref.finalize(self, toolkit.release, self.network)

    def __call__(self, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Return the outputs, in the order of the model. Raises CompileError."""
        # A call of another thread may end the process, whose successor gives the same numbers again.
        with self._toolkit.lock:
            self._build_where_lost()
            return self._toolkit.run(self.network, arrays, self._timeout)

    def trace(
        self, arrays: Sequence[AnyArray], tensors: Sequence[Mapping[str, Any]]
    ) -> tuple[list[AnyArray], dict[str, AnyArray]]:
        """Return the outputs, and integers computed inside, as `ToolkitProcess.trace` does."""
        with self._toolkit.lock:
            self._build_where_lost()
            return self._toolkit.trace(self.network, arrays, tensors, self._timeout)

    def _build_where_lost(self) -> None:
        """Build the network again where its process ended. The caller has the lock."""
        if not self._toolkit.has(self.network):
            self._finalizer.detach()
            self.network = self._toolkit.build(self.model, self._settings, self._timeout)
            self._finalizer = weakref.finalize(self, self._toolkit.release, self.network)


def describe_toolkit() -> Fit:
    """Return whether an interpreter is named that may have the toolkit, without starting it."""
    python = os.environ.get(VARIABLE, "")
    if not python:
        return Fit("", refuse(_MISSING))
    if shutil.which(python) is None:
        return Fit("", refuse(f"{_MISSING}; there is no '{python}'"))
    return Fit(f"rknn-toolkit2 of {python}", unknown=f"whether {python} has the toolkit, and which")


def find_toolkit() -> ToolkitProcess:
    """Return the toolkit of this machine. Raises NotHereError if there is none."""
    try:
        find_version()
    except MissingRuntimeError as error:
        raise NotHereError(str(error)) from None
    return _open_toolkit(os.environ[VARIABLE])


def find_version() -> str:
    """Return the toolkit's version. Raises MissingRuntimeError with what is missing."""
    python = os.environ.get(VARIABLE, "")
    if not python:
        raise MissingRuntimeError(_MISSING)
    version = _ask_version(python)
    if not version:
        raise MissingRuntimeError(f"{_MISSING}; '{python}' lacks it")
    return version


_open_toolkit = lru_cache(ToolkitProcess)


@lru_cache
def _make_work_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="byoc-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@lru_cache
def _ask_version(python: str) -> str | None:
    return find_version_in(python, "rknn", "rknn-toolkit2")


def _write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, its large constants beside it where one file could not hold them."""
    if model.ByteSize() <= _MAX_PROTO:
        onnx.save(model, path)
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin")


def _read_layers(log: str) -> Iterator[Layer]:
    """Yield the rows of the table of layers that the toolkit printed, without inputs and outputs."""
    for row in _ROW.finditer(_COLOURS.sub("", log)):
        if row["op"] in ("InputOperator", "OutputOperator"):
            continue
        made = prod(int(extent) for extent in re.findall(r"\d+", row["shape"].partition(")")[0]))
        size = int(row["read"]) * 1024 + made * _WIDTHS.get(row["dtype"], 4)  # it reads so many KiB
        yield Layer(row["op"], row["dtype"], row["target"], int(row["total"]), int(row["ddr"]), size)


def _find_reason(answer: Mapping[str, Any]) -> str:
    """Return the toolkit's reason in a sentence: the last error that it printed."""
    for line in reversed(_COLOURS.sub("", answer["log"]).splitlines()):
        found = _ERROR.match(line.strip())
        if found and not any(word in line for word in _NOISE):
            return shorten_text(_CODE.sub("", found["text"]).strip(), _MAX_CHARACTERS)
    return shorten_text(answer["error"], _MAX_CHARACTERS)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process ended with {code}"
