"""The reason chosen if there are several, and the messages if nothing is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.support import prepared

from byoc.errors import InputError
from byoc.model import Model
from byoc.reporting import explain, make_explanation_document
from byoc.rules import load_rules

HEAD = "target: t\ncost_model: dla\ndtype: float32\n"
QDQ = """g (float[1,4,4,4] x) => (float[1,4,4,4] out)
<float[4,4,1,1] w = {%s}, float s = {0.5}, int8 z = {0}> {
    [q] xq = QuantizeLinear (x, s, z)
    [d] xd = DequantizeLinear (xq, s, z)
    [c] c = Conv (xd, w)
    [yq] yq = QuantizeLinear (c, s, z)
    [yd] yd = DequantizeLinear (yq, s, z)
    [out] out = Relu (yd)
}""" % ",".join("1" * 16)  # noqa: UP031 - braces
MLP = """g (float[N, 4] x, float[N, 4] y) => (float[N, 4] out) {
    [stages_0_blocks_head_0_Relu] a = Relu (x)
    [stages_0_blocks_head_1_Add] b = Add (a, y)
    [stages_0_blocks_head_2_Softmax] out = Softmax (b)
}"""


@pytest.fixture
def explained(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(model: str | Model, rules: str, **asked: str) -> dict[str, Any]:
        path = tmp_path / "t.yaml"
        path.write_text(HEAD + rules)
        loaded = prepared(model) if isinstance(model, str) else model
        return make_explanation_document(
            explain(loaded, load_rules(str(path)), no_passes="all", keep_open=True, **asked),
            details=bool(asked),
        ).to_json()

    return run


def reasons(found: dict[str, Any]) -> dict[str, list[str]]:
    return {
        name: [reason["text"] for reason in row["reasons"]]
        for row in found["refused"]
        for name in row["examples"]
    }


def relax(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {row["place"]: row["operators"] for row in found["relax"]}


def test_borders_of_a_refused_operator_go_with_it(explained: Callable[..., dict[str, Any]]) -> None:
    rules = """ops:
  - {op: Conv, quantized: true, dtype: int8, attributes: {group: {one_of: 2}}}
  - {op: Relu}
"""
    found = explained(QDQ, rules)
    told = reasons(found)
    assert told["d"] == told["yq"] == ["it goes with Conv 'c', which is refused"]
    assert told["c"] == ["group is 1; supported: 2"]
    assert told["q"] == ["is not among the operators of t"]
    assert [row["nodes"] for row in found["refused"] if row["examples"] == ["d", "yq"]] == [2]
    assert not any("uantizeLinear" in next(iter(gained)) for gained in relax(found).values())
    taken_with = {"Conv": 1, "DequantizeLinear": 1, "QuantizeLinear": 1}
    gained = relax(found)["ops[0].attributes.group.one_of"]
    assert list(gained.items()) == list(taken_with.items())  # in this order


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("dtype: int16", "X is int8 outside; supported: int16"),
        ("dtype: int8", "its output 'c' is read by Relu 'r', not by a QuantizeLinear alone"),
    ],
)
def test_borders_of_what_is_taken_in_floats_say_why_it_is_not_in_integers(
    rule: str, reason: str, explained: Callable[..., dict[str, Any]]
) -> None:
    model = QDQ
    if "Relu" in reason:
        model = QDQ.replace("[out] out = Relu (yd)", "[r] r = Relu (c)\n[out] out = Add (yd, r)")
    rules = f"ops:\n  - {{op: Conv, quantized: true, {rule}}}\n  - {{op: [Conv, Relu, Add]}}\n"
    told = reasons(explained(model, rules))
    expected = [f"Conv 'c' is taken in floating point, not in integers: {reason}"]
    assert told["d"] == told["yq"] == expected
    assert told["q"] == ["is not among the operators of t"]


def test_a_rule_for_quantized_operators_hides_no_reason(
    explained: Callable[..., dict[str, Any]],
) -> None:
    rules = """ops:
  - {op: Relu, quantized: true, dtype: int8}
  - {op: Relu, tensors: {X: {static: true}}}
  - {op: [Add, Softmax]}
"""
    found = explained(MLP, rules, node="a")
    detail = found["details"][0]
    assert [attempt["rule"] for attempt in detail["tried"]] == ["ops[1]", "ops[0]"]
    assert detail["reasons"][0]["place"] == "ops[1].tensors.X.static"
    assert "no whole QDQ group" in detail["tried"][1]["objections"][0]["text"]
    assert relax(found) == {"ops[1].tensors.X.static": {"Relu": 1}}


def test_where_borders_are_the_group_is_told_first(explained: Callable[..., dict[str, Any]]) -> None:
    rules = """ops:
  - {op: Relu, tensors: {X: {rank: 2}}}
  - {op: Relu, quantized: true, dtype: int8}
  - {op: [DequantizeLinear, QuantizeLinear, Conv], dtype: any}
"""
    detail = explained(QDQ, rules, node="out")["details"][0]
    assert [attempt["rule"] for attempt in detail["tried"]] == ["ops[1]", "ops[0]"]
    assert "its output 'out' is an output of the graph" in detail["reasons"][0]["text"]


def test_floats_gain_nothing_by_rules_for_quantized_operators(
    explained: Callable[..., dict[str, Any]],
) -> None:
    rules = """ops:
  - {op: Add, quantized: true, dtype: int8, tensors: {A: {broadcast: scalar}}}
  - {op: [Relu, Softmax]}
"""
    assert relax(explained(MLP, rules)) == {}


def test_what_the_rules_refuse_gains_nothing_off_the_host(
    explained: Callable[..., dict[str, Any]],
) -> None:
    rules = """host: {names: [head_1, head_2]}
ops:
  - {op: [Relu, Add]}
  - {op: Softmax, opset: {min: 99}}
"""
    assert relax(explained(MLP, rules)) == {"host.names[0]": {"Add": 1}}


def test_a_missing_operator_gains_what_the_dtypes_allow(
    explained: Callable[..., dict[str, Any]],
) -> None:
    text = """g (float[4] x, int32[4] i, int64[4] j) => (float[4] y, int32[4] k, int64[4] l) {
        y = Neg (x)
        k = Neg (i)
        l = Abs (j)
    }"""
    assert relax(explained(text, "ops: [op: Relu]\n")) == {"ops": {"Neg": 1}}


def test_one_constraint_is_one_row(explained: Callable[..., dict[str, Any]]) -> None:
    rules = "ops:\n  - {op: [Relu, Add], opset: {max: 3}}\n  - {op: Softmax}\n"
    assert relax(explained(MLP, rules)) == {"ops[0].opset.max": {"Relu": 1, "Add": 1}}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"op": "Softmax", "node": "y1"}, "there is no Softmax 'y1'"),
        (
            {"op": "Softmax", "node": "stages_0_blocks_head_2_Sofmax"},
            "(did you mean stages_0_blocks_head_2_Softmax?)",
        ),
        ({"op": "Relu", "node": "b"}, "'b' is of the operator Add, not Relu"),
        ({"node": "head2"}, "there is no node 'head2' (did you mean stages_0_blocks_head_2_Softmax?)"),
        ({"node": "..."}, "there is no node '...'"),
        ({"op": "Gemm", "node": "b"}, "'b' is of the operator Add, not Gemm"),
        ({"op": "Softmx", "node": "y1"}, "there is no operator Softmx (did you mean Softmax?)"),
    ],
)
def test_what_is_not_there_is_said(
    asked: dict[str, str], sentence: str, explained: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(InputError) as caught:
        explained(MLP, "ops: [op: '*']\n", **asked)
    assert str(caught.value).endswith(sentence)


COMPOSITES = """ops: [op: [Relu, Add, Mul, Clip, Div, LayerNormalization, Sigmoid, Conv]]
composites:
  - {name: add_ln, pattern: "s = Add(a, b)\\ny = LayerNormalization(s, c!, d!?)\\nreturn y, s"}
  - {name: mul_relu, pattern: "m = Mul(x, k!)\\nc = Clip(m)?\\ny = Relu(c)"}
  - {name: hard_swish, pattern: "a = Add(x, 3)\\nc = Clip(a, 0, 6)\\nm = Mul(x, c)\\ny = Div(m, 6)"}
"""


def test_a_line_alone_is_no_near_miss(explained: Callable[..., dict[str, Any]]) -> None:
    text = """g (float[4] x, float[4] z) => (float[4] y) {
        a = Add (x, z)
        m = Mul (a, z)
        s = Sigmoid (m)
        y = Div (s, z)
    }"""
    found = explained(text, COMPOSITES)["composites"]
    assert [row["name"] for row in found] == ["add_ln", "mul_relu", "hard_swish"]
    assert not any(row["nearly"] for row in found)


def test_a_near_miss_counts_the_line_that_failed(explained: Callable[..., dict[str, Any]]) -> None:
    text = """g (float[4] x, float[4] z) => (float[4] y) {
        m = Mul (x, z)
        y = Relu (m)
    }"""
    (miss,) = explained(text, COMPOSITES)["composites"][1]["nearly"]
    assert miss["reason"].startswith("matched 1 of its 2 lines; Mul 'm': 'z' is no constant")


def test_the_rules_own_reason_is_told(explained: Callable[..., dict[str, Any]]) -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> {
        m = Mul (x, w)
        y = Relu (m)
    }"""
    rules = COMPOSITES.replace("Mul, ", "").replace("\n", "\n  - {op: Mul, opset: {min: 30}}\n", 1)
    rules = rules.replace("ops: [op:", "ops:\n  - {op:", 1).replace("Conv]]", "Conv]}", 1)
    (miss,) = explained(text, rules)["composites"][1]["nearly"]
    assert miss["reason"].endswith(
        "Mul 'm' is not taken by the rules: the operator set is 17, at least 30 is supported"
    )


def test_the_parts_of_a_refused_node_are_told(explained: Callable[..., dict[str, Any]]) -> None:
    """Of Gelu a single primitive is missing: it is named, with the place for its rule."""
    model = prepared("g (float[8] x) => (float[8] y) { a = Gelu (x) b = Gelu (a) y = Neg(b) }", opset=20)
    rules = "ops:\n- op: [Mul, Add, Div, Sqrt, Neg]\n"
    (row,) = explained(model, rules)["in_parts"]
    assert (row["operator"], row["nodes"]) == ("Gelu", 2)
    assert row["taken"] == row["parts"] - 1
    (reason,) = row["refused"]
    assert (reason["kind"], reason["place"]) == ("operator", "ops")
    assert reason["text"].startswith("Erf is not among")
    (row,) = explained(model, rules + "- op: Erf\n")["in_parts"]
    assert (row["taken"], row["refused"]) == (row["parts"], [])
    assert "in_parts" not in explained(model, rules + "- op: Gelu\n")
