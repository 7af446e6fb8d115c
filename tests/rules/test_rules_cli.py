"""`byoc rules` and its verbs: the list, check, schema, composites."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import Ran

from byoc.rules import make_json_schema

Cli = Callable[..., Ran]
GOOD = (
    "target: t\ncost_model: dla\ndtype: float32\nops: [{op: Relu}, {op: [Add, Relu], opset: {max: 9}}]\n"
)


def test_check_of_files_that_are_right(byoc: Cli, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD.replace("{op: Relu}, ", ""))
    ran = byoc("rules", "check", path, "dla")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{path}: ok, 2 operators, 0 composites\ndla: ok, 57 operators, 14 composites\n"


def test_check_says_everything_of_every_file(byoc: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(GOOD.replace("Relu}", "Reluu}").replace("Add", "Addd"))
    second.write_text("targett: t\n")
    ran = byoc("rules", "check", first, "dla", second, "nosuch")
    assert (ran.code, ran.err) == (1, "")
    lines = ran.out.splitlines()
    assert lines[:3] == [
        f"{first}: ops[0].op: ONNX has no operator 'Reluu' (did you mean Relu?)",
        f"{first}: ops[1].op: ONNX has no operator 'Addd' (did you mean Add?)",
        "dla: ok, 57 operators, 14 composites",
    ]
    assert lines[3:7] == [
        f"{second}: {key}: must be given" for key in ("target", "cost_model", "dtype", "ops")
    ]
    assert lines[-1].startswith("nosuch: no such file and no installed rule file")


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        (
            "kind: roofline\nname: own\npeak: {default: 1.0e+9}\nbandwidth: 1.0e+9\nlaunch: 20us\n",
            ": launch: expected a number without a unit, not '20us': figures are in seconds, ",
        ),
        ("kind: rooflin\n", ": kind: no such kind 'rooflin' (did you mean roofline?); known: "),
        (
            "kind: roofline\nname: own\npeak: {default: 1.0e+9}\nbandwidth: 1.0e+9\n",
            ": an accelerator's cost model needs a link",
        ),
        ("a: b: c\n", ":1:5: not valid YAML: "),
    ],
)
def test_check_reads_the_cost_file_that_is_named(
    costs: str, problem: str, byoc: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD.replace("{op: Relu}, ", "").replace("cost_model: dla", "cost_model: own.yaml"))
    (tmp_path / "own.yaml").write_text(costs)
    ran = byoc("rules", "check", path)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith(f"{tmp_path / 'own.yaml'}{problem}")


def test_check_as_json(byoc: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(GOOD.replace("Relu}", "Reluu}"))
    ran = byoc("rules", "check", "dla", path, "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out) == [
        {"file": "dla", "operators": 57, "composites": 14, "problems": [], "generations": []},
        {
            "file": str(path),
            "operators": None,
            "composites": None,
            "problems": [f"{path}: ops[0].op: ONNX has no operator 'Reluu' (did you mean Relu?)"],
            "generations": [],
        },
    ]


def test_check_needs_a_file(byoc: Cli) -> None:
    assert byoc("rules", "check").code == 2


def test_schema(byoc: Cli) -> None:
    ran = byoc("rules", "schema")
    assert ran.code == 0
    assert json.loads(ran.out) == make_json_schema()


def test_check_of_what_is_not_there(byoc: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(GOOD.replace("{op: Relu}, ", "").replace("dla", "dlaa") + "codegen: refrence\n")
    child = tmp_path / "b.yaml"
    child.write_text("extends: a.yaml\ncodegen: reference\n")
    ran = byoc("rules", "check", path, child)
    assert ran.code == 1
    first, second, third = ran.out.splitlines()
    assert first.startswith(
        f"{path}: cost_model: dlaa: no such file and no installed cost model (did you"
    )
    assert second.startswith(
        f"{path}: codegen: no such codegen 'refrence' (did you mean reference?); in"
    )
    assert third.startswith(f"{child}: a.yaml: cost_model: dlaa: no such file")


def test_check_says_what_is_wrong_with_a_base_once(byoc: Cli, tmp_path: Path) -> None:
    base, child, empty = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    base.write_text(GOOD.replace("Relu}", "Reluu}"))
    child.write_text("extends: a.yaml\nops: [{op: Sinn}]\n")
    empty.write_text("extends: a.yaml\n")
    ran = byoc("rules", "check", base, child, empty)
    assert ran.code == 1
    assert ran.out.splitlines() == [
        f"{base}: ops[0].op: ONNX has no operator 'Reluu' (did you mean Relu?)",
        f"{child}: ops[0].op: ONNX has no operator 'Sinn' (did you mean Sin?)",
        f"{empty}: builds on what is wrong above",
    ]


def test_a_composite_in_full(byoc: Cli) -> None:
    assert byoc("rules", "composites", "silu").out.splitlines() == [
        "silu: SiLU (Swish), x * sigmoid(x)",
        "pattern:",
        "  a = Mul(x, 1)?",
        "  s = Sigmoid(a)",
        "  y = Mul(x, s)",
        "names: x, a, s, y",
    ]
    gelu = byoc("rules", "composites", "gelu").out
    assert "pattern[1]:" in gelu
    assert "(it must be halved exactly once)" in gelu
    found = json.loads(byoc("rules", "composites", "silu", "--format", "json").out)
    assert (found["name"], found["names"]) == ("silu", ["x", "a", "s", "y"])
    assert found["pattern"] == ["a = Mul(x, 1)?\ns = Sigmoid(a)\ny = Mul(x, s)\n"]
    ran = byoc("rules", "composites", "sillu")
    assert ran.code == 1
    assert "the library has no composite 'sillu' (did you mean silu?)" in ran.err


def test_composites(byoc: Cli) -> None:
    rows = json.loads(byoc("rules", "composites", "--format", "json").out)
    silu = next(row for row in rows if row["name"] == "silu")
    assert silu["description"].startswith("SiLU")
    assert Path(silu["file"]).name == "activation.yaml"
    assert silu["problem"] == ""
    assert silu["names"] == ["x", "a", "s", "y"]
    text = byoc("rules", "composites").out
    assert "silu" in text
    assert "activation.yaml" not in text


def test_the_list(byoc: Cli) -> None:
    rows = json.loads(byoc("rules", "--format", "json").out)
    dla = next(row for row in rows if row["name"] == "dla")
    assert (dla["operators"], dla["composites"], dla["problem"]) == (57, 14, "")
