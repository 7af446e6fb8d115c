"""Other people's packages: strategies that misbehave, files that clash, folders that are broken."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting import planned
from installing import add_entry_points
from support import VANILLA, parse
from warm_processes import WarmProcesses

import byoc
from byoc.placement import Placement, Problem
from byoc.rules import load_rules
from byoc.support import _plugins as plugins

MODEL = "g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x)\n b = Sin(a)\n y = Relu(b) }"


class Chosen:
    """A strategy that gives a fixed answer, or raises it."""

    name = "chosen"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def solve(self, problem: Problem) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return Placement.from_labels(problem, np.array(self.answer, np.int64))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([1, 1, 1], "strategy chosen: it placed unit 'b' on device 1, which refuses it"),
        (KeyError("no"), "strategy chosen: failed with KeyError: 'no'"),
        (SystemExit(0), "strategy chosen: failed with SystemExit: 0"),
    ],
)
def test_a_strategy_that_misbehaves(answer: Any, sentence: str) -> None:
    model = byoc.load_model(parse(MODEL))
    with pytest.raises(byoc.InputError) as caught:
        planned(model, load_rules(str(VANILLA)), Chosen(answer))
    assert str(caught.value) == sentence


def package(folder: Path, name: str, **files: str) -> None:
    """Write an importable package that holds YAML files."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    for stem, text in files.items():
        (folder / name / f"{stem}.yaml").write_text(text, encoding="utf-8")


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, group: str, *modules: str) -> None:
    """Register modules of a folder as packages of rule files or cost models."""
    monkeypatch.syspath_prepend(folder)
    add_entry_points(monkeypatch, [EntryPoint(module, module, group) for module in modules])


def test_two_files_of_one_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package(tmp_path, "zeta_costs", host="kind: roofline\n")
    install(monkeypatch, tmp_path, plugins.COST_MODELS, "zeta_costs")

    with pytest.raises(
        byoc.InputError, match=r"^host: several packages bring a cost model of this name: .*give a path$"
    ):
        byoc.partition(parse(MODEL), VANILLA)


def test_broken_packages_take_nothing_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, byoc: Any
) -> None:
    package(tmp_path, "broken_rules", bad="target: [")
    (tmp_path / "raises_rules.py").write_text("raise RuntimeError('no licence')")
    install(
        monkeypatch, tmp_path, plugins.ANNOTATIONS, "broken_rules", "raises_rules.inner", "missing_rules"
    )

    ran = byoc("rules")
    assert ran.code == 0
    assert "dla" in ran.out
    assert "bad" in ran.out
    assert "RuntimeError: no licence" in ran.out
    assert byoc("partition", "zoo:squeezenet", "--rules", VANILLA).code == 0
    wrong = byoc("partition", "zoo:squeezenet", "--rules", "nothing")
    assert wrong.code == 1
    assert "could not look in missing_rules" in wrong.err


def test_what_a_plug_in_prints_is_no_result(tmp_path: Path, warm_processes: WarmProcesses) -> None:
    script = f"""
import os, sys
from byoc.codegens import reference
before = reference.Reference.compile
def loud(self, region, options):
    print("compiling")
    os.write(1, b"from a library\\n")
    return before(self, region, options)
reference.Reference.compile = loud
from byoc.cli import main
rules = {str(VANILLA)!r}
sys.argv = ["byoc", "partition", "zoo:squeezenet", "--rules", rules, "-o", "b", "--format", "json"]
main()
"""
    done = warm_processes.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["bundle"] == "b"
    assert "compiling\n" in done.stderr
    assert "from a library\n" in done.stderr
