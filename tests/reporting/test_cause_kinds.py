"""Every kind of cause: a model and rules that give it, and what its advice brings when it is done.

Actions that are data are done as data, and bring what the report promised within a tenth; advice in
words is done as a reader would, and brings what it says.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from test_gain_actions import (
    CASES,
    CONVS,
    COSTS,
    HOST,
    PLAIN,
    apply_action,
    conv_rules,
    plan,
    read_model,
)

import byoc
from byoc.errors import CauseKind
from byoc.model import prepare_model
from byoc.pipeline import PlanOptions, load_settings, make_plan
from byoc.planning import save_placement
from byoc.reporting import make_decision_document

UNARY = {"dtype": "float32", "ops": [{"op": ["Relu", "Neg", "Tanh"]}]}
ROWS = """g (float[1,8,64] x) => (float[1,8,64] y) <float[8,8,3] w> {
    a = Conv <pads = [1,1]> (x, w) y = Relu(a)
}"""


@dataclass(frozen=True)
class Case:
    """A model and rules in which a kind of cause is; `advice` is in its remedy where it is in words."""

    model: str
    rules: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


def take(name: str) -> Case:
    """Return one of the cases of actions."""
    return Case(*CASES[name])


UNKNOWN = "g (float[4,64] x, int64[2] s) => (float y) { a = Relu(x) b = Reshape(a, s) y = Neg(b) }"
FEW = {
    "dtype": "float32",
    "ops": [{"op": "Relu"}, {"op": "Neg", "tensors": {"X": {"dims": {0: {"max": 8}}}}}],
}
INSIDE = conv_rules(
    ops=[{"op": ["Conv"], "standalone": False}, {"op": ["Relu", "Sigmoid"]}],
    composites=[{"name": "cr", "pattern": "c = Conv(x, w, b?)\nr = Relu(c)"}],
)
KINDS: dict[CauseKind, Case] = {
    CauseKind.OPERATOR: take("a missing operator"),
    CauseKind.CONSTRAINT: take("an attribute"),
    CauseKind.SIZE: take("an open dimension"),
    CauseKind.TYPE: Case(UNKNOWN, FEW, advice="value_info"),
    CauseKind.QUANTIZATION: take("a float model"),
    CauseKind.VALUES: take("whole numbers"),
    CauseKind.HOST: take("kept on the host"),
    CauseKind.COMPOSITE: Case(CONVS, INSIDE),
    CauseKind.LIMIT: take("memory"),
    CauseKind.CODEGEN: Case(PLAIN.format(4), UNARY),
    CauseKind.COST: Case(PLAIN.format(4), UNARY, advice="--strategy all-supported"),
    CauseKind.GIVEN: Case(PLAIN.format(4), UNARY, advice="--placement"),
    CauseKind.CONVERSION: Case(
        ROWS,
        {"dtype": "float32", "ops": [{"op": "Conv", "tensors": {"X": {"rank": 4}}}, {"op": "Relu"}]},
        {"strategy": "all-supported"},
    ),
    CauseKind.OTHER: Case(
        "g (float[4,64] x) => (float[4,64] y) { a = Relu(x) b = Neg(a) y = Tanh(a) }",
        UNARY,
        {"no_passes": ["all"]},
    ),
}
WITH_ACTIONS = {
    *(CauseKind.OPERATOR, CauseKind.CONSTRAINT, CauseKind.SIZE, CauseKind.QUANTIZATION),
    *(CauseKind.VALUES, CauseKind.HOST, CauseKind.COMPOSITE, CauseKind.LIMIT),
}


def prepare(kind: CauseKind, model: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """Return what a case needs besides rules: files, and a codegen that refuses."""
    match kind:
        case CauseKind.COST:
            (folder / "far.yaml").write_text(COSTS.replace("latency: 1.0e-7", "latency: 1.0"))
            return {"cost_model": folder / "far.yaml"}
        case CauseKind.GIVEN:
            (folder / "host.yaml").write_text(HOST)
            (folder / "costs.yaml").write_text(COSTS)
            rules = folder / "g.yaml"
            rules.write_text(json.dumps({"target": "t", "cost_model": "costs.yaml", **UNARY}))
            save_placement(byoc.partition(model, rules, strategy="host-only").plan, folder / "p.yaml")
            return {"placement": folder / "p.yaml"}
    return {}


def list_kinds(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a reason for each kind of cause in a report."""
    return {cause["kind"]: reason for reason in report["host_reasons"] for cause in reason["causes"]}


def test_every_kind_has_a_case() -> None:
    assert KINDS.keys() == set(CauseKind)


@pytest.mark.parametrize("kind", sorted(set(CauseKind) - {CauseKind.CODEGEN}))
def test_what_a_cause_advises_brings_what_it_says(kind: CauseKind, tmp_path: Path) -> None:
    case = KINDS[kind]
    model = read_model(case.model)
    options = {**case.options, **prepare(kind, model, tmp_path)}
    before = plan(tmp_path, model, case.rules, options)
    reason = list_kinds(before)[kind]
    assert bool(reason["actions"]) == (kind in WITH_ACTIONS), reason
    told = [each for each in before["what_if"] if each["actions"]]
    assert told or kind not in WITH_ACTIONS
    for each in told:
        rules, given = dict(case.rules), dict(options)
        for action in each["actions"]:
            rules, given = apply_action(action, rules, given)
        after = plan(tmp_path, model, rules, given)
        gain = before["predicted"]["seconds"] - after["predicted"]["seconds"]
        assert gain == pytest.approx(each["gain"], rel=0.1)
    for action in reason["actions"]:
        marks = action["flags"][:1] or [action["constraint"].rpartition(".")[2] or action["operator"]]
        assert all(mark in reason["remedy"] for mark in marks), reason
    assert case.advice in reason["remedy"]


def test_cost_advice_offloads(tmp_path: Path) -> None:
    """All-supported offloads what the costs keep on the host."""
    case, model = KINDS[CauseKind.COST], read_model(PLAIN.format(4))
    options = prepare(CauseKind.COST, model, tmp_path)
    assert not plan(tmp_path, model, case.rules, options)["nodes"]["offloaded"]
    after = plan(tmp_path, model, case.rules, options | {"strategy": "all-supported"})
    assert after["nodes"]["offloaded"] == after["nodes"]["total"]


def test_without_the_placement_that_was_given_nodes_go_where_they_are_cheaper(tmp_path: Path) -> None:
    case, model = KINDS[CauseKind.GIVEN], read_model(PLAIN.format(4))
    options = prepare(CauseKind.GIVEN, model, tmp_path)
    assert not plan(tmp_path, model, case.rules, options)["nodes"]["offloaded"]
    assert plan(tmp_path, model, case.rules, {})["nodes"]["offloaded"] == 4


def test_a_stated_shape_takes_a_node_that_wanted_it(tmp_path: Path) -> None:
    case, model = KINDS[CauseKind.TYPE], read_model(UNKNOWN)
    before = plan(tmp_path, model, case.rules, {})
    model.graph.value_info.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [4, 64]))
    after = plan(tmp_path, model, case.rules, {})
    assert "type" in list_kinds(before)
    assert "type" not in list_kinds(after)


def test_what_a_codegen_refuses_has_its_reason_and_no_advice(tmp_path: Path) -> None:
    """Of a compiler nothing is known that a user can do: its own words are all."""
    case = KINDS[CauseKind.CODEGEN]
    (tmp_path / "costs.yaml").write_text(COSTS)
    (tmp_path / "host.yaml").write_text(HOST)
    rules = tmp_path / "t.yaml"
    rules.write_text(json.dumps({"target": "t", "cost_model": "costs.yaml", **case.rules}))
    options = PlanOptions(rules, host_cost_model=str(tmp_path / "host.yaml"))
    settings = load_settings(options, "exact")
    known = settings.known_limits.with_refused("t", ("b",), "this one is too odd")
    model = prepare_model(read_model(case.model), "m")
    made = make_plan(model, replace(settings, known_limits=known))
    (reason,) = make_decision_document(made).reasons
    assert (reason.text, reason.remedy) == ("this one is too odd", "")
    assert [cause.kind for cause in reason.causes] == ["codegen"]
