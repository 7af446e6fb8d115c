"""A strategy that fails, in whatever way, is an error of its rows and of no others."""

from pathlib import Path

import onnx
import pytest
from comparison_parts import CaseSolver
from helpers.installing import install_strategies
from helpers.support import VANILLA, parse

from byoc.comparison import StudyCase, compare

NET = "net (float[1, 4] x) => (float[1, 4] y) { a = Relu(x)\n b = Sigmoid(a)\n y = Relu(b) }"
STRATEGIES = """
import os
import sys
from dataclasses import replace
from byoc.placement.strategies import HostOnly


class Costless:
    name = "costless"

    def solve(self, problem):
        return replace(HostOnly().solve(problem), cost=None)


class Leaving:
    name = "leaving"

    def solve(self, problem):
        sys.exit(0)


class Deadly:
    name = "deadly"

    def solve(self, problem):
        os._exit(9)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a model, with some bad strategies installed for this process and its children."""
    install_strategies(tmp_path / "site", "bad_strategies", STRATEGIES, monkeypatch)
    path = tmp_path / "net.onnx"
    onnx.save(parse(NET), path)
    return str(path)


def test_the_other_rows_stay(net: str) -> None:
    rows = compare(net, VANILLA, strategies=("leaving", "costless", "host-only"), jobs=1)
    lines = (Path(net).parent / "site" / "bad_strategies.py").read_text("utf-8").splitlines()
    line = 1 + lines.index("        sys.exit(0)")
    assert [row["error"] for row in rows] == [
        f"strategy leaving: failed with SystemExit: 0 (bad_strategies.py:{line})",
        "strategy costless: its cost is not a Cost of numbers",
        None,
    ]
    assert rows[2]["objective"] > 0


def test_a_process_that_dies_takes_one_strategy_with_it(net: str) -> None:
    rows = compare(net, VANILLA, strategies=("deadly", "host-only"), links=(1.0,), jobs=2)
    assert [(row["link"], row["strategy"], row["error"]) for row in rows] == [
        (1.0, "deadly", "its process ended with exit code 9"),
        (1.0, "host-only", None),
    ]


def test_a_defect_takes_one_strategy_with_it(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = CaseSolver.load_settings

    def load(self: CaseSolver, case: StudyCase) -> object:
        if case.strategy == "min-cut":
            raise ZeroDivisionError("one\ntwo")
        return solve(self, case)

    monkeypatch.setattr(CaseSolver, "load_settings", load)
    rows = compare(net, VANILLA, strategies=("host-only", "min-cut", "exact"), jobs=1)
    assert [row["error"] for row in rows] == [None, "failed with ZeroDivisionError: one two", None]
