"""Other people's packages: strategies that misbehave, files that clash, folders that are broken."""

import json
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import planned
from helpers.installing import add_entry_points, register
from helpers.support import VANILLA, parse
from helpers.warm_processes import WarmProcesses
from onnx import ModelProto

import byoc
from byoc.placement import Placement, Problem
from byoc.rules import load_rules
from byoc.support import (
    ANNOTATIONS,
    COST_MODELS,
    PASSES,
    STRATEGIES,
    get_distribution,
    list_installed,
    load_plugin,
)

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
        (KeyError("no"), "strategy chosen: failed with KeyError: 'no' (FILE:LINE)"),
        (SystemExit(0), "strategy chosen: failed with SystemExit: 0 (FILE:LINE)"),
    ],
)
def test_a_strategy_that_misbehaves(answer: Any, sentence: str) -> None:
    model = byoc.load_model(parse(MODEL))
    with pytest.raises(byoc.InputError) as caught:
        planned(model, load_rules(str(VANILLA)), Chosen(answer))
    line = 1 + Path(__file__).read_text("utf-8").splitlines().index("            raise self.answer")
    assert str(caught.value) == sentence.replace("FILE:LINE", f"{Path(__file__).name}:{line}")


class Host:
    """A strategy that leaves all on the host."""

    name = "mine"

    def solve(self, problem: Problem) -> Placement:
        return Placement.from_labels(problem, np.zeros(problem.units, np.int64))


class Keep:
    """A pass that leaves a model as it is."""

    scope = "model"

    def run(self, model: ModelProto) -> ModelProto:
        return model


def test_a_built_in_plug_in_is_found_without_installing_byoc_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name, kind in (
        ("placement.strategies", "mine", "Host"),
        ("passes", "keep", "Keep"),
    ):
        monkeypatch.setattr(f"byoc.{module}.BUILT_IN", {name: f"{__name__}:{kind}"})

    plan = byoc.partition(parse(MODEL), VANILLA, strategy="mine", passes="keep").plan

    assert plan.regions == ()
    assert [effect.name for effect in plan.passes][:1] == ["keep"]


@pytest.mark.parametrize("group", [STRATEGIES, PASSES])
def test_what_an_older_byoc_registered_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str
) -> None:
    before = list_installed(group)
    name, value = next((name, point.value) for name, point in before.items() if "byoc." in point.value)
    room = value.rpartition("._")[0]
    old = {name: f"{room}._gone:Gone", "gone": f"{room}._gone:Gone", "other": "elsewhere:Other"}
    register(tmp_path, "onnx-byoc", "0.0", {group: old})
    monkeypatch.syspath_prepend(tmp_path)

    found = list_installed(group)

    assert set(found) == {*before, "other"}
    assert found[name].value == value
    load: Any = load_plugin(group, name, lambda kind: kind)
    assert load.__module__ == value.partition(":")[0]
    assert get_distribution(found[name]).startswith("onnx-byoc ")


def test_tables_and_entry_points_do_not_say_the_same() -> None:
    project = tomllib.loads((Path(byoc.__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert not {STRATEGIES, PASSES} & set(project["project"]["entry-points"])
    for group in (STRATEGIES, PASSES):
        for name in list_installed(group):
            assert getattr(load_plugin(group, name, lambda kind: kind), "name", name) == name


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
    install(monkeypatch, tmp_path, COST_MODELS, "zeta_costs")

    with pytest.raises(
        byoc.InputError, match=r"^host: several packages bring a cost model of this name: .*give a path$"
    ):
        byoc.partition(parse(MODEL), VANILLA)


def test_broken_packages_take_nothing_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, byoc: Any
) -> None:
    package(tmp_path, "broken_rules", bad="target: [")
    (tmp_path / "raises_rules.py").write_text("raise RuntimeError('no licence')")
    install(monkeypatch, tmp_path, ANNOTATIONS, "broken_rules", "raises_rules.inner", "missing_rules")

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
