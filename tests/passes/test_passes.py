"""Passes rewrite models and regions; what breaks one is refused by name, and what fails is no defect."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import cut, ramp, same_as_original
from helpers.failing import rules
from helpers.installing import register
from helpers.rewriting import PASSES, add_passes
from helpers.support import VANILLA, Ran, is_running, parse, wait_for
from helpers.warm_processes import WarmProcesses

import byoc
from byoc.errors import PluginFailedError
from byoc.passes import count_operators, load_pass

ADD = "add (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"
TWO = "two (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) b = Sigmoid(a) y = Add(b, b) }"


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch) -> None:
    add_passes(monkeypatch)


def operators(path: Path) -> set[str]:
    return set(count_operators(onnx.load(path)))


def test_a_model_is_rewritten_before_it_is_annotated(tmp_path: Path) -> None:
    model = parse(ADD)
    result = cut(model, tmp_path / "m.byoc", passes=["double"])

    assert [node.op_type for node in result.plan.model.proto.graph.node] == ["Mul", "Relu"]
    (effect,) = result.report.passes
    assert (effect.name, effect.scope, effect.changed, effect.equal) == ("double", "model", 1, True)
    assert effect.options == {"factor": "2.0"}
    assert (effect.nodes_before, effect.nodes_after) == ({"Add": 1, "Relu": 1}, {"Mul": 1, "Relu": 1})
    assert result.verification is not None
    assert result.verification.against == "add"
    same_as_original(model, tmp_path / "m.byoc", {"x": ramp(1, 4)})


def test_the_manifest_has_the_passes(tmp_path: Path) -> None:
    cut(parse(ADD), tmp_path / "m.byoc", passes="double", pass_options={"factor": "2"})

    manifest = json.loads((tmp_path / "m.byoc" / "manifest.json").read_text())
    assert manifest["asked"]["passes"] == ["double"]
    assert manifest["asked"]["pass_options"] == {"factor": "2"}
    (effect,) = manifest["variants"][0]["report"]["passes"]
    assert (effect["name"], effect["options"]) == ("double", {"factor": "2.0"})
    assert effect["distribution"]
    assert byoc.open_bundle(tmp_path / "m.byoc").variant.report.passes[0].name == "double"


def test_a_pass_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        byoc.InputError, match=r"^pass double changes add: its output 'y' is off by 0.\d+ of"
    ):
        cut(parse(ADD), tmp_path / "m.byoc", passes=["double"], pass_options={"factor": "3"})
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_not_compared_and_a_bundle_that_is_not_verified_neither(tmp_path: Path) -> None:
    planned = cut(parse(ADD), passes=["double"])
    written = cut(parse(ADD), tmp_path / "m.byoc", passes=["double"], verify=False)
    for result in (planned, written):
        (effect,) = result.report.passes
        assert effect.compared == 0
        assert effect.not_compared == "only bundles that are verified are compared"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("rename", "pass break changes add: it removes the output 'y'"),
        ("add", "pass break changes add: it adds the output 'x'"),
        ("shape", "pass break changes add: it changes the type or shape of the output 'y'"),
        ("invalid", "pass break: its result for add: not valid ONNX: "),
        ("unbound", "pass break: its result for add: "),
        ("value", "pass break changes add: its output 'y' is off by "),
    ],
)
def test_a_pass_that_breaks_a_model(how: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(byoc.InputError) as caught:
        cut(parse(ADD), tmp_path / "m.byoc", passes=["break"], pass_options={"how": how})
    assert str(caught.value).startswith(sentence)
    assert not isinstance(caught.value, PluginFailedError)
    assert len(caught.value.lines) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("raise", "pass break failed with KeyError: 'no such tensor'"),
        ("exit", "pass break failed with SystemExit: 0"),
        ("nothing", "pass break returned a NoneType, and not a model"),
    ],
)
def test_a_pass_that_fails(how: str, sentence: str, byoc: Callable[..., Ran], tmp_path: Path) -> None:
    model = tmp_path / "add.onnx"
    onnx.save(parse(ADD), model)
    ran = byoc("partition", model, "--rules", VANILLA, "--pass", "break", "--pass-option", f"how={how}")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == f"byoc: {model}: {sentence}\n"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("die", "pass break failed: its process ended with exit code 7"),
        ("raise", "pass break failed with KeyError: 'no such tensor'"),
        ("hang", "pass break took longer than 3 s and was stopped"),
    ],
)
def test_a_pass_in_a_process_of_its_own(
    how: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_in_path(tmp_path, monkeypatch)
    seconds = 3.0 if how == "hang" else 600.0
    with pytest.raises(PluginFailedError) as caught:
        cut(parse(ADD), passes=["break"], pass_options={"how": how}, compile_timeout=seconds)
    assert str(caught.value) == f"add: {sentence}"


def test_a_pass_in_a_process_of_its_own_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_in_path(tmp_path, monkeypatch)
    result = cut(parse(ADD), passes=["double"], isolate=True)
    assert result.report.passes[0].nodes_after == {"Mul": 1, "Relu": 1}


def install_in_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the passes for other processes, too."""
    entries = {name: f"helpers.rewriting:{kind}" for name, kind in PASSES.items()}
    site = folder / "site"
    site.mkdir()
    register(site, "test-passes", "1.0", {"byoc.passes": entries})
    monkeypatch.undo()
    monkeypatch.syspath_prepend(site)
    assert any("tests" in entry for entry in sys.path)


def test_regions_are_rewritten_before_they_are_compiled(tmp_path: Path) -> None:
    model = parse(TWO)
    result = cut(model, tmp_path / "m.byoc", passes=["double-in-regions", "still"])

    first, second = result.report.passes
    assert (first.scope, first.target, first.applied, first.changed) == ("region", "dla", 2, 1)
    assert first.nodes_before["Add"] == first.nodes_after["Mul"] == 1
    assert first.compared > 0
    assert first.equal
    assert (second.name, second.changed) == ("still", 0)
    written = [operators(tmp_path / "m.byoc" / f"{each.name}.onnx") for each in result.report.regions]
    assert [("Mul" in found, "Add" in found) for found in written] == [(False, False), (True, False)]
    assert "Add" in operators(tmp_path / "m.byoc" / "model.onnx")
    assert byoc.verify(tmp_path / "m.byoc").passed
    same_as_original(model, tmp_path / "m.byoc", {"x": ramp(1, 4)})


def test_the_cache_has_other_artifacts_for_other_passes(tmp_path: Path) -> None:
    def artifacts(name: str, **options: Any) -> list[str]:
        cut(parse(TWO), tmp_path / name, cache_dir=tmp_path / "cache", **options)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        return [entry["sha256"] for path, entry in manifest["files"].items() if "dla" in path]

    plain = artifacts("a.byoc")
    rewritten = artifacts("b.byoc", passes=["double-in-regions"])
    assert plain != rewritten
    assert artifacts("c.byoc") == plain
    assert artifacts("d.byoc", passes=["double-in-regions"]) == rewritten


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("rename", "it removes the output '"),
        ("value", "its output '"),
        ("invalid", "what it makes is not valid ONNX: "),
    ],
)
def test_a_pass_that_breaks_a_region(how: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(byoc.InputError) as caught:
        cut(parse(TWO), tmp_path / "m.byoc", passes=["break-regions"], pass_options={"how": how})
    assert str(caught.value).startswith("pass break-regions changes dla_")
    assert f": {sentence}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_regions_at_which_a_pass_fails_go_to_the_host(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    model = tmp_path / "two.onnx"
    onnx.save(parse(TWO), model)
    output = tmp_path / "m.byoc"
    asked = ("--pass", "break-regions", "--strategy", "all-supported", "-o", output)
    ran = byoc("partition", model, "--rules", VANILLA, *asked)
    assert ran.code == 5
    assert "pass break-regions failed with KeyError: 'no such tensor'" in ran.out
    assert "0 of 3 nodes" in ran.out
    assert output.is_dir()


def test_a_rule_file_names_passes(tmp_path: Path) -> None:
    path = rules(
        tmp_path, "npu", "Add", "Mul", "Relu", more="passes: {double-in-regions: {factor: 2}}\n"
    )
    result = byoc.partition(parse(TWO), path, output=tmp_path / "m.byoc", strategy="all-supported")
    (effect,) = result.report.passes
    assert (effect.name, effect.target, effect.changed) == ("double-in-regions", "npu", 1)

    with pytest.raises(byoc.InputError, match="pass double-in-regions changes npu_"):
        byoc.partition(
            parse(TWO),
            path,
            output=tmp_path / "n.byoc",
            strategy="all-supported",
            passes="double-in-regions",
            pass_options={"factor": "3"},  # the user's options win
        )


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("doubel: {}", "doubel: no such pass (did you mean double?); installed: "),
        ("double: {}", "pass double rewrites whole models, and a rule file names passes for regions"),
        ("double-in-regions: {factr: 1}", "has no option 'factr' (did you mean factor?)"),
        (
            "double-in-regions: {command: rm}",
            "pass double-in-regions takes 'command' from the user alone, since it may run any command: "
            "--pass-option double-in-regions:command=...",
        ),
    ],
)
def test_a_wrong_pass_in_a_rule_file(named: str, sentence: str, tmp_path: Path) -> None:
    path = rules(tmp_path, "npu", "Add", more=f"passes: {{{named}}}\n")
    with pytest.raises(byoc.InputError) as caught:
        byoc.partition(parse(TWO), path)
    assert str(caught.value).startswith(f"{path}: passes.{named.partition(':')[0]}: ")
    assert sentence in str(caught.value)
    (check,) = byoc.check_rules(path)
    assert check.problems == [str(caught.value)]


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (["doubel"], {}, "doubel: no such pass (did you mean double?)"),
        (["double", "double"], {}, "pass double: it is asked for twice"),
        ([], {"factor": "2"}, "pass option factor: no pass is asked for (--pass)"),
        (["double"], {"still:x": "1"}, "pass option still:x: no such pass"),
        (["double"], {"double:factor": "x"}, "takes as option 'factor' a number, not 'x'"),
        (["still"], {"deep": "1"}, "has no option 'deep'; it has: none"),
        (["shapeless"], {}, "is not one: it needs a `scope` and a method `run(model)`"),
        (["elsewhere"], {}, "is not one: its `scope` is 'universe', and not 'model' or 'region'"),
    ],
)
def test_wrong_passes_and_options(names: list[str], options: dict[str, str], sentence: str) -> None:
    with pytest.raises(byoc.InputError) as caught:
        cut(parse(ADD), passes=names, pass_options=options)
    assert sentence in str(caught.value)


def test_the_list_of_passes(byoc: Callable[..., Ran]) -> None:
    rows = {row["name"]: row for row in json.loads(byoc("passes", "--format", "json").out)}
    assert rows["simplify"]["scope"] == "model"
    assert [option["option"] for option in rows["simplify"]["options"]] == ["largest"]
    assert rows["double-in-regions"]["description"] == "The same, in regions"
    assert "is not one" in rows["shapeless"]["problem"]
    assert "simplify" in byoc("passes").out


def test_options_are_shown_with_their_defaults() -> None:
    assert load_pass("double").options == {"factor": "2.0"}
    assert load_pass("still").options == {}


def test_a_pass_ends_when_byoc_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_processes: WarmProcesses
) -> None:
    install_in_path(tmp_path, monkeypatch)
    model, note = tmp_path / "add.onnx", tmp_path / "pid"
    onnx.save(parse(ADD), model)
    asked = [
        "--isolate",
        "--pass",
        "break",
        "--pass-option",
        "how=hang",
        "--pass-option",
        f"note={note}",
    ]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    started = warm_processes.Popen(
        [sys.executable, "-m", "byoc", "partition", model, "--rules", VANILLA, *asked],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        number = wait_for(lambda: read_number(note))
        os.kill(number, 0)
    finally:
        started.kill()
        started.wait()
    wait_for(lambda: not is_running(number))


def read_number(path: Path) -> int:
    """Return the number that a line of a file has, 0 as long as there is none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return int(text) if text.endswith("\n") else 0


def test_one_pass_is_shown_with_its_options(byoc: Callable[..., Ran]) -> None:
    shown = byoc("passes", "double").out
    assert shown.startswith("double: ")
    assert "\nscope: model\n" in shown
    assert "\nruns: asked for\n" in shown
    assert "factor" in shown
    assert "2.0" in shown
    row = json.loads(byoc("passes", "double", "--format", "json").out)
    assert [option["option"] for option in row["options"]] == ["factor"]
    assert byoc("passes", "still").out.endswith("options: none\n")
    assert byoc("passes", "doubel").err.startswith("byoc: doubel: no such pass (did you mean double?)")
