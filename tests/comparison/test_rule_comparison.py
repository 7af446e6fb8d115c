"""A rule file held to a compiler: what each says of the nodes of models."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.installing import register
from helpers.support import Ran, parse

import byoc
from byoc.codegen import (
    ON_OWN_CPU,
    YES,
    Artifact,
    CompileError,
    Executor,
    NotHereError,
    Region,
    Verdict,
    refuse,
)
from byoc.errors import InputError

RULES = """
target: acme
cost_model: dla
codegen: acme
dtype: float32
ops:
  - op: Relu
  - op: MaxPool
    attributes: {kernel_shape: {each: {max: 3}}}
"""
MODEL = (
    "g (float[1, 4, 13, 13] x) => (float[1, 4, 4, 4] y, float[1, 4, 9, 9] z) {"
    " a = MaxPool<kernel_shape = [2, 2]>(x) b = MaxPool<kernel_shape = [2, 2], strides = [3, 3]>(a)"
    " c = Relu(b) d = Relu(c) y = Sigmoid(d) f = MaxPool<kernel_shape = [4, 4]>(a) z = Sin(f) }"
)


def find_reason(node: onnx.NodeProto) -> str:
    """A compiler that takes no stride of 3, no Sin, and everything else."""
    strides = [each.ints for each in node.attribute if each.name == "strides"]
    if node.op_type == "Sin":
        return "there is no sine"
    return "a stride of 3" if strides and 3 in strides[0] else ""


class Compiles(vendors.CompileOnly):
    name = "acme"

    def compile(self, region: Region, options: object) -> Artifact:
        for node in region.nodes:
            if find_reason(node):
                raise CompileError(find_reason(node))
        return Artifact({"code": b""})


class Checks(Compiles):
    def check(self, model: onnx.ModelProto) -> list[Verdict]:
        reasons = map(find_reason, model.graph.node)
        return [refuse(reason) if reason else YES for reason in reasons]


class Runs(Checks):
    """Computes as numpy does, and loses NaN; what it does not know it leaves to a CPU of its own."""

    def check(self, model: onnx.ModelProto) -> list[Verdict]:
        return [ON_OWN_CPU if node.op_type == "Erf" else YES for node in model.graph.node]

    def load(self, region: Region, artifact: Artifact) -> Executor:
        if region.nodes[0].op_type == "Erf":
            raise NotHereError("the CPU is asleep")

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            (value,) = inputs.values()
            cleaned = np.nan_to_num(value, nan=0.0, posinf=np.inf, neginf=-np.inf)
            return {region.outputs[0].name: np.abs(cleaned)}

        return run


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "acme.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture(params=[Compiles, Checks])
def acme(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a codegen so that other processes find it."""
    kind = f"{__name__}:{request.param.__name__}"
    register(tmp_path, "acme", "1.0", {"byoc.codegens": {"acme": kind}})
    monkeypatch.syspath_prepend(tmp_path)


QUANTIZED = """
target: acme
cost_model: dla
codegen: acme
dtype: int8
quantization: {activations: {symmetric: true, per_channel: false}}
ops:
  - op: Relu
    quantized: true
    tensors: {X: &any {dtype: int8, quantized: {symmetric: null}}, Y: *any}
"""
GROUP = """g (int8[1, 8] x) => (int8[1, 8] y) <float s = {0.5}, int8 z = {56}> {
    a = DequantizeLinear(x, s, z)
    b = Relu(a)
    y = QuantizeLinear(b, s, z)
}"""


@pytest.mark.usefixtures("acme")
def test_a_quantized_group_is_asked_about_as_one(rules: Path) -> None:
    """Its zero point is one that the scheme does not allow, and the rule does."""
    rules.write_text(QUANTIZED)
    (kind,) = byoc.compare_rules(rules, [parse(GROUP)]).kinds
    assert (kind.op, kind.rules, kind.compiler) == ("Relu", "", "")


@pytest.mark.usefixtures("acme")
def test_nothing_to_ask_is_no_agreement(rules: Path) -> None:
    with pytest.raises(InputError, match="there is no node to ask about in "):
        byoc.compare_rules(rules, [parse("g (float[2] x) => (float[2] x) { }")])


@pytest.mark.usefixtures("acme")
def test_false_accepts_and_false_refusals_are_found(rules: Path) -> None:
    found = byoc.compare_rules(rules, [parse(MODEL)])

    assert not found.agrees
    accepts, refusals = found.false_accepts, found.false_refusals
    assert [(kind.op, kind.rules, kind.compiler) for kind in accepts] == [
        ("MaxPool", "", "a stride of 3")
    ]
    assert "strides = [3, 3]" in accepts[0].features
    assert "kernel_shape = [2, 2]" not in accepts[0].features
    assert [(kind.op, kind.compiler) for kind in refusals] == [("Sigmoid", ""), ("MaxPool", "")]
    assert "kernel_shape" in refusals[1].rules
    agreed = {kind.op: kind.nodes for kind in found.kinds if kind.agrees}
    assert agreed == {"MaxPool": 1, "Relu": 2, "Sin": 1}


@pytest.mark.usefixtures("acme")
def test_alike_nodes_of_several_models_count_once(rules: Path) -> None:
    one, two = byoc.compare_rules(rules, parse(MODEL)), byoc.compare_rules(rules, [parse(MODEL)] * 2)

    assert len(one.kinds) == len(two.kinds)
    assert [2 * kind.nodes for kind in one.kinds] == [kind.nodes for kind in two.kinds]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a codegen whose regions run, and return its rule file."""
    register(tmp_path, "acme", "1.0", {"byoc.codegens": {"acme": f"{__name__}:Runs"}})
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "acme.yaml"
    operators = "[Abs, Erf, Neg]"
    path.write_text(
        f"target: acme\ncost_model: dla\ncodegen: acme\ndtype: float32\nops: [{{op: {operators}}}]\n"
    )
    return path


UNARY = "g (float[2, 3] x) => (float[2, 3] y) { a = Abs(x) b = Neg(a) y = Erf(b) }"


def test_what_both_take_is_run_and_compared_with_onnx(runs: Path) -> None:
    found = byoc.compare_rules(runs, parse(UNARY), runs=True)

    told = {kind.op: (kind.values, kind.problem) for kind in found.kinds}
    assert told["Abs"][0] == told["Neg"][0] == "wrong"
    assert "loses NaN" in told["Abs"][1]
    assert "is off" in told["Neg"][1]
    assert told["Erf"][0] == "not run"
    assert "the CPU is asleep" in told["Erf"][1]
    assert [kind.op for kind in found.kinds if kind.own_cpu] == ["Erf"]
    assert not found.agrees
    assert [kind.op for kind in found.wrong] == ["Abs", "Neg"]


def test_a_contract_that_does_not_promise_a_value_is_heeded(runs: Path) -> None:
    runs.write_text(runs.read_text() + "arithmetic: [{nan: any}]\n")

    found = byoc.compare_rules(runs, parse(UNARY), runs=True)

    assert [(kind.op, kind.values) for kind in found.kinds] == [
        ("Abs", "right"),
        ("Neg", "wrong"),
        ("Erf", "not run"),
    ]
    (allowed,) = found.allowed
    assert allowed.op == "Abs"
    assert allowed.problem.endswith("loses NaN: it is 0 where NaN is passed on (nan: any)")


def test_nodes_whose_values_a_contract_limits_are_asked_about(runs: Path, tmp_path: Path) -> None:
    """They may leave it, and were left out without a word."""
    text = runs.read_text().replace("dtype: float32", "dtype: any")
    runs.write_text(text + "arithmetic: [{exact_below: 1000}]\n")

    found = byoc.compare_rules(
        runs, parse("g (int32[2, 3] x) => (int32[2, 3] y) { y = Abs(x) }"), runs=True
    )

    assert [(kind.op, kind.values) for kind in found.kinds] == [("Abs", "right")]


def test_the_command_tells_wrong_values(runs: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    onnx.save(parse(UNARY), tmp_path / "net.onnx")

    ran = byoc("rules", "ask", runs, tmp_path / "net.onnx", "--run")

    assert ran.code == 6
    assert "3 kinds of nodes, 3 agree, 0 false accepts, 0 false refusals" in ran.out
    assert "the device's own CPU computes 1 kind: Erf" in ran.out
    assert "values of 3 kinds that both take: 0 right, 2 wrong, 1 not run" in ran.out
    assert "Wrong values: both take them, and they compute otherwise than ONNX says" in ran.out
    assert "Not run: both take them, and their values are not known" in ran.out


def test_what_could_not_be_run_is_no_success(
    runs: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    onnx.save(parse("g (float[2, 3] x) => (float[2, 3] y) { y = Erf(x) }"), tmp_path / "net.onnx")

    ran = byoc("rules", "ask", runs, tmp_path / "net.onnx", "--run")

    assert (ran.code, ran.err) == (4, "")
    assert "values of 1 kind that both take: 0 right, 0 wrong, 1 not run" in ran.out


@pytest.mark.usefixtures("acme")
def test_a_codegen_that_runs_nothing_is_not_asked_to(rules: Path) -> None:
    with pytest.raises(InputError, match="cannot run what it compiles here"):
        byoc.compare_rules(rules, parse(MODEL), runs=True)


def test_the_reference_takes_what_a_quantized_rule_file_takes(tmp_path: Path) -> None:
    found = byoc.compare_rules("dla", "zoo:squeezenet", codegen="reference")

    assert not found.false_accepts
    assert {kind.op for kind in found.false_refusals} == {"Softmax"}
    assert {kind.rules for kind in found.false_refusals} == {"Softmax: it is not over the last axis"}


def test_the_command_says_it_and_leaves_with_6(
    rules: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    rules.write_text(RULES.replace("codegen: acme", "codegen: reference"))
    onnx.save(parse(MODEL), tmp_path / "net.onnx")

    ran = byoc("rules", "ask", rules, tmp_path / "net.onnx")

    assert (ran.code, ran.err) == (6, "")
    assert "codegen reference: 6 kinds of nodes, 3 agree, 0 false accepts, 3 false refusals" in ran.out
    assert "Sin is not among the operators of acme" in ran.out
    document = json.loads(
        byoc("rules", "ask", rules, tmp_path / "net.onnx", "--compile", "--format", "json").out
    )
    assert (document["agrees"], len(document["kinds"])) == (False, 6)
    dla = byoc("rules", "ask", "dla", tmp_path / "net.onnx", "--codegen-option", "x")
    assert (dla.code, dla.err) == (1, "byoc: --codegen-option x: it is no NAME=VALUE\n")


def test_what_cannot_be_asked_is_said(rules: Path) -> None:
    with pytest.raises(InputError, match="nobodys: no such codegen"):
        byoc.compare_rules(rules, parse(MODEL), codegen="nobodys")
