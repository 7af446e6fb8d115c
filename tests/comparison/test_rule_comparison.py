"""A rule file held to a compiler: what each says of the nodes of models."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import vendors
from installing import register
from support import Ran, parse

import byoc
from byoc.codegen import YES, Artifact, CompileError, Region, Verdict, refuse
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
