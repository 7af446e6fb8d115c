"""A codegen that goes wrong in the way it is told to, installed so that a new process finds it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from byoc.codegen import (
    YES,
    Artifact,
    CompileError,
    Executor,
    NotHereError,
    Region,
    ResourceError,
    Verdict,
    refuse,
)
from byoc.onnxrt import open_session, run_session
from helpers.installing import register

REASON = "Relu needs a licence"


@dataclass(frozen=True)
class Options:
    """What goes wrong with regions that have the operator `op`, or with all.

    `most` are the operations that fit; `log` is a file that gets the operators of each region in a line.
    """

    fault: str
    op: str = ""
    most: int = 0
    log: str = ""


class Faulty:
    """Runs regions on onnxruntime, but for what is asked of it."""

    name = "faulty"
    Options = Options

    def compile(self, region: Region, options: Options) -> Artifact:
        operations = region.operations()
        ops = [operation.op for operation in operations]
        if options.log:
            with Path(options.log).open("a") as log:
                log.write(" ".join(ops) + "\n")
        if options.op and options.op not in ops:
            return Artifact()
        if options.fault == "large" and len(ops) > options.most:
            raise ResourceError(f"{len(ops)} operations of at most {options.most}")
        if options.fault == "names":
            raise CompileError(REASON, [each.name for each in operations if each.op == options.op])
        if options.fault == "names the first":
            raise CompileError(REASON, [next(each.name for each in operations if each.op == options.op)])
        if options.fault == "composite" and operations[0].inner:
            raise CompileError(REASON, [operations[0].name])
        if options.fault == "inside" and operations[0].inner:
            raise CompileError(REASON, [operations[0].inner[0].name])
        if options.fault == "inlined" and operations[0].inner:
            first = next(each for each in region.load(inline=True).graph.node if each.op_type == "Conv")
            raise CompileError(REASON, first.output[0])
        if options.fault in FAULTS:
            return cast(Artifact, FAULTS[options.fault](region))
        return Artifact({"code": b"1"}, {"fault": options.fault})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        fault = artifact.metadata.get("fault", "")
        if fault == "load":
            raise OSError("no such device")
        if fault == "load refuses":
            raise CompileError(REASON)
        if fault == "elsewhere" and "BOARD" not in os.environ:
            raise NotHereError("there is no board")
        if fault == "no function":
            return cast(Executor, None)
        session = open_session(region.path)
        change = CHANGES.get(fault, _same)
        return lambda inputs: {
            name: change(value) for name, value in run_session(session, inputs).items()
        }


class Stamping(Faulty):
    """The same, of artifacts that say whether they fit: those that a board is needed for."""

    name = "stamping"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        assert self.compatible(region, artifact), "it is asked first"
        return super().load(region, artifact)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        if artifact.metadata.get("fault") == "elsewhere" and "BOARD" not in os.environ:
            return refuse("it is for a board")
        return YES


class FaultyTogether(Faulty):
    """The same, of all regions in one call."""

    name = "faulty-together"

    def compile_all(self, regions: Sequence[Region], options: Options) -> Mapping[str, Artifact]:
        made = {region.name: self.compile(region, options) for region in regions}
        return {} if options.fault == "gives nothing" else made


def _same(value: Any) -> Any:
    return value


def _breaks(value: Any) -> Any:
    raise ZeroDivisionError("division by zero")


def _stops(value: Any) -> Any:
    sys.exit("no device")


CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "run": _breaks,
    "run exits": _stops,
    "dtype": lambda value: value.astype(np.float64),
    "shape": lambda value: value.reshape(-1),
    "list": lambda value: value.tolist(),
    "numbers": lambda value: value + np.float32(0.25),
}


def _refuses(region: Region) -> Any:
    raise CompileError(REASON)


def _names_what_is_not_there(region: Region) -> Any:
    raise CompileError(REASON, ["nowhere", cast(str, 7)])


def _raises(region: Region) -> Any:
    raise ZeroDivisionError("division by zero")


def _exits(region: Region) -> Any:
    sys.exit(0)


def _recurses(region: Region) -> Any:
    return _recurses(region)


def _memory(region: Region) -> Any:
    raise MemoryError


def _hangs(region: Region) -> Any:
    while True:
        time.sleep(60)


def _killed(number: signal.Signals) -> Callable[[Region], Any]:
    return lambda region: os.kill(os.getpid(), number)


def _leaves_a_child(region: Region) -> Artifact:
    child = subprocess.Popen(["sleep", "600"])
    return Artifact({"pid": str(child.pid).encode()})


def _prints(region: Region) -> Artifact:
    for _ in range(1000):
        sys.stdout.write("x" * 1000 + "\n")
    os.write(2, b"y" * 100_000)
    return Artifact()


def _environment(region: Region) -> Artifact:
    return Artifact({"path": os.environ.get("PYTHONPATH", "").encode()})


def _scribbles(region: Region) -> Any:
    os.write(int(sys.argv[1]), b"what is this?")
    os._exit(0)


FAULTS: Mapping[str, Callable[[Region], Any]] = {
    "refuses": _refuses,
    "names nothing": _names_what_is_not_there,
    "raises": _raises,
    "exits": _exits,
    "recursion": _recurses,
    "memory": _memory,
    "none": lambda region: None,
    "text": lambda region: Artifact({"a": cast(Any, "text")}),
    "path": lambda region: Artifact({"../a": b""}),
    "number": lambda region: Artifact(cast(Any, {7: b""})),
    "list": lambda region: Artifact(cast(Any, [b""])),
    "metadata": lambda region: Artifact(metadata={"cycles": cast(Any, 7)}),
    "hangs": _hangs,
    "segv": _killed(signal.SIGSEGV),
    "kill": _killed(signal.SIGKILL),
    "leaves": lambda region: os._exit(0),
    "leaves with 3": lambda region: os._exit(3),
    "scribbles": _scribbles,
    "child": _leaves_a_child,
    "prints": _prints,
    "environment": _environment,
}


@pytest.fixture
def faulty(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the codegen and return its name."""
    site = tmp_path_factory.mktemp("site")
    points = {"faulty": "helpers.faulty:Faulty", "faulty-together": "helpers.faulty:FaultyTogether"}
    points["stamping"] = "helpers.faulty:Stamping"
    register(site, "faulty", "1.0", {"byoc.codegens": points})
    monkeypatch.syspath_prepend(site)
    return Faulty.name
