"""One rule file on another: what is inherited, what is replaced, which file messages name."""

from pathlib import Path

import pytest
from helpers.support import prepared

from byoc.errors import InputError
from byoc.rules import Annotator, Target, load_rules

BASE = """
target: one
description: first generation
cost_model: dla
regions: phase
dtype: float32
layout: {activations: NHWC, weights: OHWI}
quantization: {activations: {dtype: int8, symmetric: false}, scales: any}
limits: {min_nodes: 2, memory: 1MiB}
host: {ops: Exp, names: [first], after: {ops: ArgMax}}
ops:
  - {op: [Relu, Add], tensors: {}}
  - {op: Relu, dtype: float16}
  - {op: Mul}
composites:
  - {name: add_relu, pattern: "a = Add(x, z)\\ny = Relu(a)"}
  - {name: mul_relu, pattern: "a = Mul(x, z)\\ny = Relu(a)"}
"""


def files(folder: Path, **texts: str) -> Path:
    """Write rule files; return the path of the last."""
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, **texts: str) -> Target:
    return load_rules(str(files(folder, **texts)))


def complaint(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_rules(str(path))
    return str(caught.value).replace(f"{path.parent}/", "")


def test_nothing_of_its_own(tmp_path: Path) -> None:
    derived = load(tmp_path, one=BASE, two="extends: one.yaml\n")
    base = load_rules(str(tmp_path / "one.yaml"))
    assert derived.rules == base.rules
    assert derived.source == str(tmp_path / "two.yaml")
    assert [pattern.name for pattern in derived.patterns] == ["add_relu", "mul_relu"]
    assert derived.locate("ops[2]") == "one.yaml: ops[2]"
    assert derived.locate("cost_model") == "one.yaml: cost_model"
    assert derived.locate("limits.memory") == "one.yaml: limits.memory"


def test_operators_and_composites_are_replaced_by_name(tmp_path: Path) -> None:
    text = """
extends: one.yaml
target: two
ops:
  - {op: [Relu, Sub], opset: {min: 13}}
composites:
  - {name: mul_relu, pattern: "a = Mul(x, x)\\ny = Relu(a)"}
  - {library: silu}
"""
    derived = load(tmp_path, one=BASE, two=text.replace("  - {library: silu}\n", ""))
    assert (derived.name, derived.rules.regions) == ("two", "phase")
    assert [rule.op for rule in derived.rules.ops] == [("Relu", "Sub"), ("Add",), ("Mul",)]
    assert [derived.locate(f"ops[{i}]") for i in range(3)] == [
        "ops[0]",
        "one.yaml: ops[0]",
        "one.yaml: ops[2]",
    ]
    assert [(c.name, c.pattern) for c in derived.rules.composites] == [
        ("mul_relu", ("a = Mul(x, x)\ny = Relu(a)",)),
        ("add_relu", ("a = Add(x, z)\ny = Relu(a)",)),
    ]
    assert derived.locate("composites[0]") == "composites[0]"
    assert derived.locate("composites[1]") == "one.yaml: composites[0]"
    assert derived.locate("target") == "target"


def test_mappings_go_key_by_key_and_host_lists_add_up(tmp_path: Path) -> None:
    text = """
extends: one.yaml
layout: {activations: NCHW8c}
quantization: {activations: {dtype: uint8}, convert: device}
limits: {memory: 2MiB, batch: 8}
host: {ops: [Log, Sin], after: {ops: TopK, names: [second]}}
"""
    rules = (derived := load(tmp_path, one=BASE, two=text)).rules
    assert (rules.layout.activations, rules.layout.weights) == ("NCHW8c", "OHWI")
    scheme = rules.quantization
    assert scheme.activations is not None
    assert (scheme.activations.dtype, scheme.activations.symmetric) == (("uint8",), None)
    assert (scheme.scales, scheme.convert) == ("any", "device")
    assert (rules.limits.min_nodes, rules.limits.memory, rules.limits.batch) == (2, 2 * 2**20, 8)
    assert rules.host.ops == ("Log", "Sin", "Exp")
    assert rules.host.names == ("first",)
    assert (rules.host.after.ops, rules.host.after.names) == (("TopK", "ArgMax"), ("second",))
    places = ["host.ops[1]", "host.ops[2]", "host.names[0]", "host.after.ops[1]", "layout.weights"]
    assert [derived.locate(place) for place in places] == [
        "host.ops[1]",
        "one.yaml: host.ops[0]",
        "one.yaml: host.names[0]",
        "one.yaml: host.after.ops[0]",
        "one.yaml: layout.weights",
    ]
    assert derived.locate("limits.memory") == "limits.memory"


def test_three_files(tmp_path: Path) -> None:
    derived = load(
        tmp_path,
        one=BASE,
        two="extends: one.yaml\nops: [{op: Neg}]\n",
        three="extends: two.yaml\nops: [{op: Abs}]\nlimits: {batch: 1}\n",
    )
    assert [rule.op[0] for rule in derived.rules.ops] == ["Abs", "Neg", "Relu", "Relu", "Mul"]
    assert [derived.locate(f"ops[{i}]") for i in range(4)] == [
        "ops[0]",
        "two.yaml: ops[0]",
        "one.yaml: ops[0]",
        "one.yaml: ops[1]",
    ]
    index = prepared("g (float[2] x) => (float[2] y, float[2] z) { y = Mul (x, x)\n z = Exp (x) }").index
    annotator = Annotator(derived, index)
    assert annotator.annotate_node(0).rule == "one.yaml: ops[2]"
    (attempt,) = annotator.list_attempts(1)
    assert attempt.objections[0].location == "one.yaml: host.ops[0]"


def test_an_installed_file(tmp_path: Path) -> None:
    derived = load(tmp_path, dla="extends: dla\ntarget: dla2\nops: [{op: Gelu}]\n")
    assert derived.name == "dla2"
    assert derived.rules.ops[0].op == ("Gelu",)
    assert derived.locate("ops[1]") == "dla.yaml: ops[0]"
    assert len(derived.patterns) == len(load_rules("dla").patterns)


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    path = files(tmp_path, two="extends: dlaa\n")
    assert complaint(path).startswith(
        "two.yaml: extends: dlaa: no such file and no installed rule file (did you mean dla?); "
    )
    assert complaint(files(tmp_path, two="extends: 3\n")).splitlines()[0] == (
        "two.yaml: extends: expected text"
    )


def test_files_that_extend_one_another(tmp_path: Path) -> None:
    path = files(tmp_path, one="extends: two.yaml\n", two="extends: one.yaml\n")
    assert complaint(path) == ("one.yaml: extends: 'two.yaml' itself builds on this file")
    assert complaint(files(tmp_path, two="extends: two.yaml\n")) == (
        "two.yaml: extends: 'two.yaml' itself builds on this file"
    )


def test_too_many_files(tmp_path: Path) -> None:
    texts = {f"f{i}": f"extends: f{i + 1}.yaml\n" for i in range(9)}
    files(tmp_path, **texts, f9=BASE)
    assert complaint(tmp_path / "f0.yaml") == (
        "f0.yaml: extends: at most 8 files may build on one another"
    )
    assert load_rules(str(tmp_path / "f3.yaml")).name == "one"


def test_problems_name_the_file_that_they_are_in(tmp_path: Path) -> None:
    path = files(
        tmp_path, one=BASE.replace("op: Mul", "op: Mull"), two="extends: one.yaml\nops: [{op: Sinn}]\n"
    )
    assert complaint(path) == (
        "one.yaml: ops[2].op: ONNX has no operator 'Mull' (did you mean Mul?)\n"
        "one.yaml: composites[1].pattern: line 1: no rule in ops takes Mul\n"
        "two.yaml: ops[0].op: ONNX has no operator 'Sinn' (did you mean Sin?)"
    )
    path = files(tmp_path, two="extends: one.yaml\ncomposites: [{name: a, pattern: y = Log(x)}]\n")
    assert "two.yaml" not in complaint(path)  # what the base takes is not known
    path = files(
        tmp_path, one=BASE, two="extends: one.yaml\nops: [{op: Sinn}]\nlimits: {max_nodes: 1}\n"
    )
    assert complaint(path).splitlines() == [
        "two.yaml: limits: min_nodes 2 is greater than max_nodes 1",
        "two.yaml: ops[0].op: ONNX has no operator 'Sinn' (did you mean Sin?)",
    ]


def test_composites_may_use_what_the_base_takes(tmp_path: Path) -> None:
    text = 'extends: one.yaml\ncomposites: [{name: a, pattern: "y = Mul(x, z)"}]\n'
    assert load(tmp_path, one=BASE, two=text).rules.composites[0].name == "a"
    wrong = text.replace("Mul", "Div")
    assert complaint(files(tmp_path, one=BASE, two=wrong)) == (
        "two.yaml: composites[0].pattern: line 1: no rule in ops takes Div"
    )


def test_what_is_dropped(tmp_path: Path) -> None:
    text = """
extends: one.yaml
drop: {ops: [Relu], composites: mul_relu, host: {ops: Exp, names: first, after: {ops: ArgMax}}}
host: {after: {names: mine}}
ops: [{op: Sub}]
"""
    derived = load(tmp_path, one=BASE.replace("op: Mul", "op: [Mul, Neg]"), two=text)
    assert [rule.op for rule in derived.rules.ops] == [("Sub",), ("Add",), ("Mul", "Neg")]
    assert [derived.locate(f"ops[{i}]") for i in (1, 2)] == ["one.yaml: ops[0]", "one.yaml: ops[2]"]
    assert [composite.display_name for composite in derived.rules.composites] == ["add_relu"]
    host = derived.rules.host
    assert (host.ops, host.names, host.after.ops, host.after.names) == ((), (), (), ("mine",))
    further = load(tmp_path, three="extends: two.yaml\nops: [{op: Relu}]\n")
    assert [rule.op[0] for rule in further.rules.ops] == ["Relu", "Sub", "Add", "Mul"]


def test_what_cannot_be_dropped(tmp_path: Path) -> None:
    text = """
extends: one.yaml
drop: {ops: [Sub, Relu], composites: add_rel, host: {ops: Log, after: {names: x}}}
composites: [{name: a, pattern: "y = Relu(x)"}]
"""
    assert complaint(files(tmp_path, one=BASE, two=text)).splitlines() == [
        "two.yaml: drop.ops[0]: there is no 'Sub' to drop",
        "two.yaml: drop.composites[0]: there is no 'add_rel' to drop (did you mean add_relu?)",
        "two.yaml: drop.host.ops[0]: there is no 'Log' to drop",
        "two.yaml: drop.host.after.names[0]: there is no 'x' to drop",
        "two.yaml: composites[0].pattern: line 1: no rule in ops takes Relu",
    ]
    path = files(tmp_path, two="extends: one.yaml\ndrop: {ops: [Relu, Add, Mul]}\n")
    assert complaint(path) == "two.yaml: drop.ops: no rule for an operator is left"


def test_null_takes_back_a_limit(tmp_path: Path) -> None:
    derived = load(tmp_path, one=BASE, two="extends: one.yaml\nlimits: {memory: null}\n")
    assert (derived.rules.limits.memory, derived.rules.limits.min_nodes) == (None, 2)


COSTS = "kind: roofline\nrates: {float32: 1e9}\nbandwidth: 1e9\n"


def test_a_cost_model_is_found_beside_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "near", tmp_path / "near" / "far"
    far.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, near, far):
        (folder / "mine.yaml").write_text(COSTS)
    base = files(far, one=BASE.replace("cost_model: dla", "cost_model: mine.yaml"))
    assert load_rules("near/far/one.yaml").cost_model == "near/far/mine.yaml"
    two = files(near, two=f"extends: {base}\n")
    assert Path(load_rules(str(two)).cost_model) == far / "mine.yaml"
    three = files(near, three=f"extends: {base}\ncost_model: mine.yaml\n")
    assert Path(load_rules(str(three)).cost_model) == near / "mine.yaml"
    (near / "mine.yaml").unlink()
    with pytest.raises(InputError, match=r"three.yaml: cost_model: mine.yaml: no such file"):
        _ = load_rules(str(three)).cost_model
    assert Path(load_rules("dla").cost_model).name == "dla.yaml"
