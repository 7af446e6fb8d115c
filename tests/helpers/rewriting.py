"""Passes that tests register: one that works, and those that break models and regions."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
from onnx import ModelProto

from helpers.installing import add_entry_points


@dataclass(frozen=True)
class Double:
    """Replace `x + x` by `x * factor`, which is the same for 2."""

    scope: ClassVar[str] = "model"
    factor: float = field(default=2.0, metadata={"help": "What to multiply by."})

    def run(self, model: ModelProto) -> ModelProto:
        found = [n for n in model.graph.node if n.op_type == "Add" and n.input[0] == n.input[1]]
        for node in found:
            node.op_type = "Mul"
            node.input[1] = "factor"
        if not found:
            return model
        tensor = onnx.helper.make_tensor("factor", onnx.TensorProto.FLOAT, [], [self.factor])
        model.graph.initializer.append(tensor)
        return model


@dataclass(frozen=True)
class DoubleInRegions(Double):
    """The same, in regions."""

    scope: ClassVar[str] = "region"
    command: str = field(default="", metadata={"executes": True})


class Still:
    """Change nothing."""

    scope = "region"

    def run(self, model: ModelProto) -> ModelProto:
        return model


@dataclass(frozen=True)
class Break:
    """Break a model in the way that is asked for."""

    scope: ClassVar[str] = "model"
    how: str = "raise"
    note: str = ""

    def run(self, model: ModelProto) -> Any:
        graph = model.graph
        match self.how:
            case "raise":
                raise KeyError("no such tensor")
            case "exit":
                raise SystemExit(0)
            case "die":
                os._exit(7)
            case "hang":
                _hang(self.note)
            case "nothing":
                return None
            case "rename":
                graph.output[0].name = "other"
            case "add":
                graph.output.add().CopyFrom(graph.input[0])
            case "shape":
                graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
            case "invalid":
                graph.node[-1].op_type = "NoSuchOperator"
            case "value":
                graph.node[-1].op_type = "Neg" if len(graph.node[-1].input) == 1 else "Sub"
            case "unbound":
                graph.node[-1].input[0] = "nobody"
        return model


def _hang(note: str) -> None:
    """Do nothing for ever, and say in a file which process does so."""
    if note:
        Path(note).write_text(f"{os.getpid()}\n", encoding="utf-8")
    while True:
        time.sleep(60)


class BreakRegions(Break):
    """The same, for regions."""

    scope = "region"


class Shapeless:
    """No pass: it lacks `run`."""

    scope = "model"


class Elsewhere(Still):
    """A pass of a scope that there is not."""

    scope = "universe"


PASSES = {
    "double": "Double",
    "double-in-regions": "DoubleInRegions",
    "still": "Still",
    "break": "Break",
    "break-regions": "BreakRegions",
    "shapeless": "Shapeless",
    "elsewhere": "Elsewhere",
}


def add_passes(monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = tuple(PASSES)) -> None:
    """Register these passes for one test, in this process alone."""
    points = [EntryPoint(name, f"{__name__}:{PASSES[name]}", "byoc.passes") for name in names]
    add_entry_points(monkeypatch, points)
