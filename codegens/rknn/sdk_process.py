"""rknn-toolkit2 in an interpreter of its own, whose process is kept alive over calls.

The toolkit pins numpy, onnx and protobuf to releases that byoc's environment does not have. So it is in
another environment, whose interpreter the environment variable BYOC_RKNN_PYTHON names.
"""

import atexit
import contextlib
import json
import os
import re
import selectors
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from byoc.codegen import (
    AnyArray,
    CompileError,
    Fit,
    MissingRuntimeError,
    NotHereError,
    refuse,
    shorten_text,
)

from . import sdk_worker

VARIABLE = "BYOC_RKNN_PYTHON"
_MISSING = (
    "rknn-toolkit2, which compiles for Rockchip's NPUs, is not here: install it into an environment "
    f"of its own (docs/codegens.md), and name its interpreter in {VARIABLE}"
)
_MAX_CHARACTERS = 300  # of the toolkit's message in a sentence
_MAX_PROTO = 2**31 - 1  # bytes of a model without files
_STOP_SECONDS = 1.0  # for a process that is asked to end before it is killed
_CHUNK = 1 << 20

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
    """A network that was built: its .rknn file, and its number in the process that built it."""

    content: bytes
    layers: tuple[Layer, ...]
    number: int
    process: "subprocess.Popen[bytes]"

    @property
    def own_cpu(self) -> tuple[str, ...]:
        """The operators that the chip's CPU runs, sorted."""
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
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._unused: list[Network] = []
        self._lock = threading.Lock()

    def build(self, model: onnx.ModelProto, settings: Mapping[str, Any], timeout: float) -> Network:
        """Build a model, which holds its constants itself.

        Raises CompileError with the toolkit's reason where it refuses the model, and with `lasting`
        false where its process dies or takes longer than `timeout` seconds.
        """
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            path, export = Path(folder) / "region.onnx", Path(folder) / "region.rknn"
            _write_model(model, path)
            asked = {"method": "build", "model": str(path), "settings": dict(settings)}
            with self._lock:
                answer, _ = self._ask({**asked, "export": str(export)}, (), timeout)
                if answer["error"]:
                    raise CompileError(_find_reason(answer))
                assert self._process is not None
                layers = tuple(_read_layers(answer["log"]))
                return Network(export.read_bytes(), layers, answer["number"], self._process)

    def run(self, network: Network, arrays: Sequence[AnyArray], timeout: float) -> list[AnyArray]:
        """Return a network's outputs on the simulator. Raises CompileError as `build` does."""
        with self._lock:
            answer, made = self._ask({"method": "run", "network": network.number}, arrays, timeout)
        if answer["error"]:
            raise CompileError(f"the simulator fails: {_find_reason(answer)}")
        return made

    def has(self, network: Network) -> bool:
        """Return whether the process that built a network still lives."""
        return self._process is network.process and network.process.poll() is None

    def release(self, network: Network) -> None:
        """Let the process forget a network before its next answer; may be called from a finalizer."""
        self._unused.append(network)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._buffer.clear()
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was to be written has no reader
                        pipe.close()

    def _ask(
        self, request: Mapping[str, Any], arrays: Sequence[AnyArray], timeout: float
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        """Send a request, and return the answer with its arrays. The caller has the lock."""
        deadline = time.monotonic() + timeout
        self._start()
        while self._unused:
            unused = self._unused.pop()
            if self.has(unused):
                self._exchange({"method": "release", "network": unused.number}, (), deadline)
        try:
            return self._exchange(request, arrays, deadline)
        except TimeoutError:
            self.close()
            what = "building" if request["method"] == "build" else "running"
            why = f"rknn-toolkit2 took longer than {timeout:g} s for {what} and was stopped"
            raise CompileError(why, lasting=False) from None
        except (OSError, EOFError, ValueError):
            code = None if self._process is None else self._process.wait()
            self.close()
            raise CompileError(f"rknn-toolkit2 crashes: {_describe_exit(code)}", lasting=False) from None

    def _exchange(
        self, request: Mapping[str, Any], arrays: Sequence[AnyArray], deadline: float
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        contiguous = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in arrays]
        head = {**request, "arrays": [[each.dtype.name, each.shape] for each in contiguous]}
        process.stdin.write(json.dumps(head).encode() + b"\n")
        for array in contiguous:
            process.stdin.write(array.tobytes())
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read_line(deadline))
        made = [self._read_array(dtype, shape, deadline) for dtype, shape in answer["arrays"]]
        answer["number"] = answer.pop("network")
        return answer, made

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            self._read_more(deadline)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    def _read_array(self, dtype: str, shape: Sequence[int], deadline: float) -> AnyArray:
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        while len(self._buffer) < size:
            self._read_more(deadline)
        array = np.frombuffer(bytes(self._buffer[:size]), kind).reshape(shape).copy()
        del self._buffer[:size]
        return array

    def _read_more(self, deadline: float) -> None:
        """Add to the buffer what the process says next. Raises TimeoutError, and EOFError at its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
        data = os.read(self._process.stdout.fileno(), _CHUNK)
        if not data:
            raise EOFError
        self._buffer += data

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        # The toolkit writes files into the folder that it is started in.
        self._process = subprocess.Popen(
            [self._python, "-I", sdk_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_make_work_folder(),
            bufsize=-1,
        )


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
        self._toolkit, self._model = toolkit, model
        self._settings, self._timeout = settings, timeout
        self.network = toolkit.build(model, settings, timeout)
        self._finalizer = weakref.finalize(self, toolkit.release, self.network)

    def __call__(self, arrays: Sequence[AnyArray]) -> list[AnyArray]:
        """Return the outputs, in the order of the model. Raises CompileError."""
        if not self._toolkit.has(self.network):
            self._finalizer.detach()
            self.network = self._toolkit.build(self._model, self._settings, self._timeout)
            self._finalizer = weakref.finalize(self, self._toolkit.release, self.network)
        return self._toolkit.run(self.network, arrays, self._timeout)


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


@lru_cache
def _open_toolkit(python: str) -> ToolkitProcess:
    toolkit = ToolkitProcess(python)
    atexit.register(toolkit.close)
    return toolkit


@lru_cache
def _make_work_folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="byoc-")
    atexit.register(folder.cleanup)
    return folder.name


@lru_cache
def _ask_version(python: str) -> str:
    """Return the version of the toolkit that an interpreter has, nothing where it has none."""
    code = (
        "import importlib.metadata as m, importlib.util as u; assert u.find_spec('rknn'); "
        "print(m.version('rknn-toolkit2'))"
    )
    try:
        ran = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


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
