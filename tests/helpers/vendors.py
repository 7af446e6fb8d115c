"""Codegens as vendors might write them, good and bad, and their registration for one test."""

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from byoc.codegen import Artifact, Executor, Region, _codegens, _worker
from byoc.support import CODEGENS
from helpers.installing import add_entry_points

MODULE = "vendors_of_this_test"


def install(monkeypatch: pytest.MonkeyPatch, **codegens: Any) -> None:
    """Register classes as codegens under the given names, beside those that are installed."""
    module = ModuleType(MODULE)
    for name, value in codegens.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, MODULE, module)
    points = [EntryPoint(name, f"{MODULE}:{name}", CODEGENS) for name in codegens]
    add_entry_points(monkeypatch, points)


def forbid_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this system for one without worker processes, which do not find what `install` registers."""
    for module in (_codegens, _worker):
        monkeypatch.setattr(module, "has_worker_processes", lambda: False)


class Tables:
    """Writes each region as a table of operators and runs from that file alone: Relu and Add only."""

    name = "tables"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        graph = region.load().graph
        table = [[node.op_type, list(node.input), list(node.output)] for node in graph.node]
        content = {"code.json": json.dumps(table).encode(), "empty.bin": b""}
        return Artifact(content, {"steps": str(len(table)), **options})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        table = json.loads(artifact.files["code.json"])
        assert artifact.files["empty.bin"] == b""
        assert artifact.metadata["steps"] == str(len(table))

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            values = dict(inputs)
            for op, reads, (made,) in table:
                given = [values[name] for name in reads]
                values[made] = np.maximum(given[0], 0) if op == "Relu" else sum(given)
            return {value.name: values[value.name] for value in region.outputs}

        return run


class CompileOnly:
    """Makes an artifact that nothing here can run."""

    name = "compileonly"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        return Artifact({"firmware.bin": b"\x00\x01"})


def gives(answer: Any, name: str = "odd") -> type:
    """Return a codegen class whose regions give `answer(inputs, output name)`."""

    class Odd:
        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            return Artifact()

        def load(self, region: Region, artifact: Artifact) -> Executor:
            return lambda inputs: answer(inputs, region.outputs[0].name)

    Odd.name = name  # type: ignore[attr-defined]
    return Odd


def compiles(answer: Callable[[Region], Any] | None, name: str = "odd") -> type:
    """Return a codegen class whose `compile` gives `answer(region)`."""

    class Odd:
        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            made: Artifact = answer(region) if answer else Artifact()
            return made

    Odd.name = name  # type: ignore[attr-defined]
    return Odd
