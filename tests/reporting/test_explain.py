"""Why nodes are refused: grouped reasons, what relaxing a rule gains, composites that nearly matched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.support import LIGHT, Ran, prepared, sample_cases

from byoc import zoo
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.reporting import explain, make_explanation_document
from byoc.rules import load_rules
from byoc.support import ANNOTATIONS, find_files

RULES = """
target: t
cost_model: dla
dtype: float32
ops:
  - op: Conv
    attributes:
      kernel_shape: {each: {max: 3}}
      group: {one_of: 1}
  - op: [Relu, BatchNormalization]
  - op: Clip
    standalone: false
composites:
  - name: conv_relu
    pattern: |
      c = Conv(x, w)
      y = Relu(c)
"""

# The kernels are 1, 5, 5 and 3; the last Conv has two groups and a kernel of 5.
NET = """net (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w1, float[4, 4, 5, 5] w5, float[4, 2, 5, 5] g)
    => (float[1, 4, 8, 8] y) {
    [first] a = Conv <pads = [0, 0, 0, 0]> (x, w1)
    [second] b = Conv <pads = [2, 2, 2, 2]> (a, w5)
    [third] c = Conv <pads = [2, 2, 2, 2]> (b, w5)
    [grouped] d = Conv <pads = [2, 2, 2, 2], group = 2> (c, g)
    [soft] e = Softmax(d)
    [clip] f = Clip(e)
    [last] y = Relu(f)
}"""


@pytest.fixture
def rules(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "t.yaml"
        path.write_text(text)
        return str(path)

    return write


def explained(text: str, rules: str, **asked: str) -> dict[str, Any]:
    found = explain(prepared(text), load_rules(rules), no_passes="all", keep_open=True, **asked)
    return make_explanation_document(found, details=bool(asked)).to_json()


def test_refusals_of_one_reason_are_one_row(rules: Callable[[str], str]) -> None:
    found = explained(NET, rules(RULES))
    assert found["nodes"] == {"asked": 7, "taken": 2, "refused": 5}
    rows = {tuple(reason["place"] for reason in row["reasons"]): row for row in found["refused"]}
    kernels = rows["ops[0].attributes.kernel_shape.each.max",]
    assert kernels["nodes"] == 2
    assert kernels["operators"] == {"Conv": 2}
    assert kernels["examples"] == ["second", "third"]
    assert kernels["reasons"][0]["text"] == "kernel_shape[0] is 5, at most 3 is supported"
    both = rows["ops[0].attributes.kernel_shape.each.max", "ops[0].attributes.group.one_of"]
    assert both["examples"] == ["grouped"]
    assert rows["ops[2].standalone",]["examples"] == ["clip"]
    assert len(rows) == 4


def test_values_that_differ_do_not_make_rows(rules: Callable[[str], str]) -> None:
    text = NET.replace("float[4, 4, 1, 1]", "float[4, 4, 7, 7]").replace(
        "[first] a = Conv <pads = [0, 0, 0, 0]>", "[first] a = Conv <pads = [3, 3, 3, 3]>"
    )
    found = explained(text, rules(RULES))
    row = next(row for row in found["refused"] if row["nodes"] == 3)
    assert row["reasons"][0]["others"] == 1
    assert row["reasons"][0]["text"] == "kernel_shape[0] is 5, at most 3 is supported"


def test_compute_is_a_share_of_the_whole_model(rules: Callable[[str], str]) -> None:
    found = explained(NET, rules(RULES))
    elements = 4 * 8 * 8
    first, wide, grouped = 2 * elements * 4, 2 * elements * 100, 2 * elements * 50
    # One operation an element for Relu, two for Clip, five for Softmax.
    total = first + 2 * wide + grouped + 8 * elements
    assert found["compute"]["operations"] == total
    assert found["compute"]["refused"] == pytest.approx((total - first - elements) / total)
    assert found["refused"][0]["compute"] == pytest.approx(2 * wide / total)


def test_what_a_relaxed_rule_gains_is_what_it_alone_keeps_out(rules: Callable[[str], str]) -> None:
    gains = {
        (gain["place"], *gain["operators"]): gain["nodes"]
        for gain in explained(NET, rules(RULES))["relax"]
    }
    assert gains == {
        ("ops[0].attributes.kernel_shape.each.max", "Conv"): 2,  # and not the grouped one
        ("ops", "Softmax"): 1,
        ("ops[2].standalone", "Clip"): 1,
    }


def test_relaxing_what_is_said_to_gain_gains_it(rules: Callable[[str], str]) -> None:
    before = explained(NET, rules(RULES))
    after = explained(NET, rules(RULES.replace("max: 3", "max: 5")))
    gain = next(gain for gain in before["relax"] if gain["place"].endswith("each.max"))
    assert after["nodes"]["taken"] - before["nodes"]["taken"] == gain["nodes"]
    saved = before["compute"]["refused"] - after["compute"]["refused"]
    assert saved == pytest.approx(gain["compute"])


def test_composites_say_how_often_and_why_not(rules: Callable[[str], str]) -> None:
    text = """net (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w)
        => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
        [c1] a = Conv(x, w)
        [r1] b = Relu(a)
        [c2] c = Conv(b, w)
        [r2] y = Relu(c)
        [r3] z = Relu(c)
    }"""
    composites = explained(text, rules(RULES))["composites"]
    assert [(row["name"], row["found"]) for row in composites] == [("conv_relu", 1)]
    assert any(
        "another" in miss["reason"] and "'c2'" in miss["reason"] for miss in composites[0]["nearly"]
    )


def test_a_node_tells_every_rule_that_was_tried(rules: Callable[[str], str]) -> None:
    more = RULES.replace(
        "  - op: [Relu,",
        "  - op: Conv\n    opset: {min: 20}\n    attributes: {group: {one_of: 2}}\n  - op: [Relu,",
    )
    found = explained(NET, rules(more), node="grouped")
    assert found["nodes"]["asked"] == 1
    tried = {attempt["rule"]: attempt["objections"] for attempt in found["details"][0]["tried"]}
    assert list(tried) == ["ops[1]", "ops[0]"]  # the nearest first
    assert [objection["place"] for objection in tried["ops[1]"]] == ["ops[1].opset.min"]
    assert len(tried["ops[0]"]) == 2
    assert found["details"][0]["inputs"][0] == "c float32[1, 4, 8, 8]"


def test_a_node_that_is_taken_says_by_what(rules: Callable[[str], str]) -> None:
    text = NET.replace("[second] b = Conv <pads = [2, 2, 2, 2]> (a, w5)", "[second] b = Relu(a)")
    detail = explained(text, rules(RULES), node="b")["details"][0]
    assert (detail["node"], detail["taken"], detail["rule"]) == ("second", True, "ops[1]")
    assert detail["composite"] == "conv_relu"


def test_nodes_in_bodies_are_explained(rules: Callable[[str], str]) -> None:
    text = """net (bool c, float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
        [branch] y = If (c) <
            then_branch = t () => (float[1, 4, 8, 8] a) { [inside] a = Softmax(x) },
            else_branch = e () => (float[1, 4, 8, 8] b) { b = Relu(x) }
        >
    }"""
    found = explained(text, rules(RULES), op="Softmax")
    assert [(row["node"], row["graph"]) for row in found["details"]] == [
        ("inside", "branch/then_branch")
    ]
    assert explained(text, rules(RULES))["nodes"] == {"asked": 3, "taken": 1, "refused": 2}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"node": "secnd"}, "test: there is no node 'secnd' (did you mean second?)"),
        ({"op": "Cov"}, "test: there is no operator Cov (did you mean Conv?)"),
        (
            {"op": "Relu", "node": "first"},
            "test: 'first' is of the operator Conv, not Relu",
        ),
    ],
)
def test_what_is_not_there_is_said(
    asked: dict[str, str], sentence: str, rules: Callable[[str], str]
) -> None:
    with pytest.raises(InputError) as caught:
        explained(NET, rules(RULES), **asked)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("model", "built_in"), [("inception_v1", "dla"), ("shufflenet", "nnpa")])
def test_golden_text(
    model: str, built_in: str, byoc: Callable[..., Ran], golden: Callable[[str, str], None]
) -> None:
    ran = byoc("explain", f"zoo:{model}", "--rules", built_in)
    assert (ran.code, ran.err) == (0, "")
    golden(f"explain_{model}_{built_in}.txt", ran.out)


@pytest.mark.parametrize("name", sample_cases(LIGHT, "squeezenet", "shufflenet"))
def test_every_light_model_with_every_rule_file(name: str) -> None:
    model = prepare_model(zoo.load_structure(name), name)
    for built_in in find_files(ANNOTATIONS)[0]:
        found = make_explanation_document(
            explain(model, load_rules(built_in), no_passes="all", keep_open=True)
        ).to_json()
        assert found["nodes"]["asked"] == found["nodes"]["taken"] + found["nodes"]["refused"] > 0
        assert sum(row["nodes"] for row in found["refused"]) == found["nodes"]["refused"]
        assert sum(row["compute"] for row in found["refused"]) == pytest.approx(
            found["compute"]["refused"]
        )
        assert all(reason["text"] for row in found["refused"] for reason in row["reasons"])
