"""A codegen that wrecks its process in the method and the way that a file says, which WRECK names.

`load segv` is a segmentation fault in `load`; after a third word, `wrong`, results are off by 1. Regions
of Relu and Add run on numpy. An artifact tells what it knows of the sessions to open. `load pid` writes
the number of its process over that file.
"""

import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc.codegen import YES, Artifact, Context, Cycles, Executor, NotHereError, Region, Verdict
from byoc.onnxrt import get_session_settings


def _hang() -> None:
    while True:
        time.sleep(60)


def _print() -> None:
    print("gar\x1b[31mbage")  # noqa: T201
    sys.stdout.flush()


def _write_garbage() -> None:
    """Write to the socket of the worker what is no answer, and go on."""
    os.write(int(sys.argv[1]), b"\xff" * 64)


def _write_other_answer() -> None:
    """Write an answer that is JSON, and that no method gives."""
    content = b'{"number": 2, "result": {"start": -1}}'
    os.write(int(sys.argv[1]), len(content).to_bytes(8, "little") + content)


def _compute() -> None:
    """Compute for minutes, outside of Python, where no handler of a signal has its turn."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)


def _divide() -> None:
    print(1 // 0)  # noqa: T201


def _miss_board() -> None:
    raise NotHereError("there is\n no board")


def _tell_process() -> None:
    Path(os.environ["WRECK"]).write_text(str(os.getpid()))


WAYS: Mapping[str, Callable[[], Any]] = {
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "leave": lambda: os._exit(0),
    "hang": _hang,
    "nap": lambda: time.sleep(0.5),
    "compute": _compute,
    "print": _print,
    "garbage": _write_garbage,
    "answer": _write_other_answer,
    "raise": _divide,
    "pid": _tell_process,
    "elsewhere": _miss_board,
}


def _wreck(method: str) -> None:
    words = _asked_words()
    if words[:1] == [method]:
        WAYS[words[1]]()


def _asked_words() -> list[str]:
    return Path(os.environ["WRECK"]).read_text().split()


_wreck("import")


@dataclass(frozen=True)
class Options:
    """An option that nothing depends on; reading it may wreck the process."""

    level: int = 0

    def __post_init__(self) -> None:
        _wreck("options")


class _Run:
    """Runs a region; it may wreck the process when it is called, and when it is freed."""

    def __init__(self, call: Executor) -> None:
        self.call = call

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        _wreck("run")
        return self.call(inputs)

    def __del__(self) -> None:
        if "WRECK" in os.environ:  # the test is not over
            _wreck("release")


class Wrecker:
    """Computes Relu and Add, unless it is asked to wreck its process."""

    name = "wrecker"
    Options = Options

    def __init__(self) -> None:
        _wreck("create")

    def compile(self, region: Region, options: Options) -> Artifact:
        _wreck("compile")
        return Artifact({"code": b"\x00\xff", "empty": b""}, {"sessions": str(get_session_settings())})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        _wreck("load")
        assert artifact.files == {"code": b"\x00\xff", "empty": b""}
        nodes = list(region.nodes)
        constants = {each.name: region.constant(each.name) for each in region.constants}

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            values = {**constants, **inputs}
            for node in nodes:
                given = [values[name] for name in node.input]
                relu = node.op_type == "Relu"
                values[node.output[0]] = np.maximum(given[0], 0) if relu else given[0] + given[1]
            more = np.float32("wrong" in _asked_words())
            return {value.name: values[value.name] + more for value in region.outputs}

        return _Run(run)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        _wreck("compatible")
        return YES

    def cache_key(self, options: Any) -> Mapping[str, str]:
        _wreck("cache_key")
        return {"compiler": "4.2"}

    def check(self, model: ModelProto) -> Sequence[Verdict]:
        _wreck("check")
        return [Verdict(("no Add",)) if node.op_type == "Add" else YES for node in model.graph.node]

    def cost(self, region: Region) -> float:
        _wreck("cost")
        return 0.25

    def context(self, artifact: Artifact) -> Context:
        _wreck("context")
        return Context("Wrecker", "code", ("x",), ("y",), more={"speed": 3})


class WreckerTogether(Wrecker):
    """The same, of all regions in one call."""

    name = "wrecker-together"

    def compile_all(self, regions: Sequence[Region], options: Any) -> Mapping[str, Artifact]:
        _wreck("compile_all")
        return {region.name: self.compile(region, options) for region in regions}

    def estimate(self, region: Region, options: Options, artifact: Artifact) -> Cycles:
        _wreck("estimate")
        assert artifact.files == {"code": b"\x00\xff", "empty": b""}
        return Cycles(500 + options.level, 1000)
