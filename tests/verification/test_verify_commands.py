"""Bisection and its faults run no command that a bundle or a fault names."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from helpers.support import parse
from interpreting import bundle_of, interpreter, only

from byoc.codegen import Artifact, Region
from byoc.verification import bisect_region, rerun_fault, write_fault

NET = "g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) b = Abs(a) y = Neg(b) }"


def larger(value: Any) -> Any:
    return value + 1


@dataclass(frozen=True)
class ToolOptions:
    tool: str = field(default="mine", metadata={"executes": True})
    level: int = 1


def test_no_command_is_taken_from_a_bundle_or_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[ToolOptions] = []

    class Wrong(interpreter(only("a", larger))):  # type: ignore[misc]
        Options = ToolOptions

        def compile(self, region: Region, options: ToolOptions) -> Artifact:
            called.append(options)
            return Artifact()

    vendors.install(monkeypatch, wrong=Wrong)
    bundle = bundle_of(parse(NET), tmp_path, codegen_options={"tool": "a", "level": "2"})
    assert called == [ToolOptions("a", 2)]
    write_fault(bisect_region(bundle, bundle.manifest.regions[0].name), tmp_path / "fault")
    path = tmp_path / "fault" / "fault.json"
    stored = json.loads(path.read_text())
    assert stored["codegen_options"] == {"level": "2"}
    path.write_text(json.dumps({**stored, "codegen_options": {"level": "2", "tool": "b"}}))

    rerun_fault(tmp_path / "fault", None)

    assert set(called[1:]) == {ToolOptions("mine", 2)}
