"""Two small models and some strategies for tests of studies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.installing import install_strategies
from helpers.support import Ran, copy_vanilla, parse

from byoc.comparison import RUN_COLUMNS, StudyRow

NET = """net (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {
    v = Constant <value_float = 0.01> ()
    kernel = Constant <value_ints = [64, 64, 3, 3]> ()
    k = Expand(v, kernel)
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1]> (b, k)
    y = Softmax(c)
}"""
STRATEGIES = """
import os
import time
from dataclasses import dataclass, replace
from byoc.placement.strategies import AllSupported


class Deadly:
    name = "deadly"

    def solve(self, problem):
        os._exit(9)


class Endless:
    name = "endless"

    def solve(self, problem):
        time.sleep(1000)


@dataclass(frozen=True)
class Counting:
    seed: int = 0
    folder: str = ""
    name: str = "counting"

    def solve(self, problem):
        if self.folder:
            with open(os.path.join(self.folder, "solved"), "a") as file:
                file.write(f"{self.seed}\\\\n")
            while os.path.exists(os.path.join(self.folder, "wait")) and self.seed >= 3:
                time.sleep(0.02)
        found = AllSupported().solve(problem)
        return replace(found, measures={"steps": 10 * self.seed, "units": problem.units})
""".replace("\\\\n", "\\n")
Cli = Callable[..., Ran]
"""The fixture `byoc`."""


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, and some strategies installed for this process and its children."""
    install_strategies(tmp_path / "site", "study_strategies", STRATEGIES, monkeypatch)
    (tmp_path / "nets").mkdir()
    onnx.save(parse(NET), tmp_path / "nets" / "one.onnx")
    onnx.save(parse(NET.replace("Softmax", "Sigmoid")), tmp_path / "nets" / "two.onnx")
    return tmp_path


def write_study(folder: Path, **axes: Any) -> Path:
    content = {
        "models": "nets/*.onnx",
        "rules": copy_vanilla(folder),
        "strategies": "launch-aware",
    } | axes
    (folder / "study.yaml").write_text(json.dumps(content))  # which is YAML, too
    return folder / "study.yaml"


def drop_times(rows: list[StudyRow]) -> list[StudyRow]:
    return [{name: row[name] for name in row if name not in RUN_COLUMNS} for row in rows]
