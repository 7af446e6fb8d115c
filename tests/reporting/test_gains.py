"""The gain of a relaxed constraint, compared with relaxing it in the file and explaining again."""

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.ruling import make_target
from helpers.support import examples, prepared
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byoc import zoo
from byoc.model import Model, prepare_model
from byoc.reporting import Explanation, compute_gains, explain
from byoc.rules import drop_constraint, load_rules

Taken = Counter[tuple[str, str, str]]


def asked(model: Model, rules: dict[str, Any]) -> Explanation:
    return explain(model, make_target(rules), no_passes="all", keep_open=True)


def taken(explanation: Explanation) -> Taken:
    """Return the nodes that are taken: the graph, the operator and what it makes."""
    nodes = (
        (graph, graph.index.nodes[number])
        for graph in explanation.graphs
        for number in graph.supported_nodes
    )
    return Counter((graph.graph_path, node.op_type, str(node.output[0])) for graph, node in nodes)


def without(rules: dict[str, Any], place: str, ops: list[str]) -> dict[str, Any]:
    """Return the data of a rule file with a constraint relaxed, as a person would."""
    result = copy.deepcopy(rules)
    if place == "ops":
        result["ops"].append({"op": ops[0]})
        return result
    found = re.findall(r"\[(-?\d+)\]|(\w+)", place)
    keys = [int(number) if number else name for number, name in found]
    part: Any = result
    for key in keys[:-1]:
        part = part[key]
    if keys[-1] == "dtype":
        part["dtype"] = "any"
    else:
        del part[keys[-1]]
    return {key: _kept(value) if key == "host" else value for key, value in result.items()}


def _kept(host: dict[str, Any]) -> dict[str, Any]:
    """Return `host` without lists that became empty, which no file may have."""
    kept = {key: _kept(value) if key == "after" else value for key, value in host.items()}
    return {key: value for key, value in kept.items() if value}


def check(model: Model, rules: dict[str, Any]) -> set[str]:
    """Relax each constraint that is said to gain something; return the places."""
    before = asked(model, rules)
    found = compute_gains(before)
    for gain in found:
        after = asked(model, without(rules, gain.location, list(gain.operators)))
        more, less = taken(after) - taken(before), taken(before) - taken(after)
        assert more.total() - less.total() == gain.nodes, gain
        assert Counter(op for _, op, _ in more.elements()) == gain.operators, gain
        saved = before.refused_operations - after.refused_operations
        assert saved == pytest.approx(gain.operations), gain
    return {gain.location for gain in found}


OPS = {"Relu": 1, "Neg": 1, "Tanh": 1, "Add": 2, "Mul": 2, "Conv": 1, "Softmax": 1, "Q": 1}
HEAD = """g (float[1,4,4,4] x) => (float[1,4,4,4] out)
<float[4,4,1,1] w = {%s}, float s = {0.5}, int8 z = {0}, uint8 u = {0}> {
""" % ",".join("1" * 16)  # noqa: UP031 - braces


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Draw a graph of few operators; `Q` stands for a QuantizeLinear and a DequantizeLinear."""
    names, lines = ["x"], []
    for i in range(draw(st.integers(4, 12))):
        op = draw(st.sampled_from(sorted(OPS)))
        reads = [draw(st.sampled_from(names[-3:])) for _ in range(OPS[op])]
        if op == "Q":
            zero = draw(st.sampled_from("zu"))
            lines.append(f" q{i} = QuantizeLinear ({reads[0]}, s, {zero})")
            lines.append(f" [n{i}] t{i} = DequantizeLinear (q{i}, s, {zero})")
        elif op == "Conv":
            lines.append(f" [n{i}] t{i} = Conv ({reads[0]}, w)")
        else:
            lines.append(f" [n{i}] t{i} = {op} ({', '.join(reads)})")
        names.append(f"t{i}")
    return prepared(f"{HEAD}{chr(10).join(lines)}\n out = Identity ({names[-1]})\n}}")


RELU: dict[str, Any] = {"X": {"dims": {1: {"multiple_of": 8}}}}
RULES: list[dict[str, Any]] = [
    {"op": ["Relu", "Neg"]},
    {"op": "Relu", "tensors": RELU},
    {"op": "Relu", "tensors": {"X": {"rank": 3}}, "standalone": False},
    {"op": ["Relu", "Tanh"], "opset": {"min": 18}},
    {"op": "Conv", "attributes": {"kernel_shape": {"each": {"min": 3}}}},
    {"op": "Conv", "quantized": True, "dtype": "int8"},
    {"op": ["Add", "Mul"], "dtype": "float16"},
    {"op": ["Add", "Relu", "Softmax"], "quantized": True, "dtype": "uint8"},
    {"op": "Mul", "standalone": False, "where": ["A.shape[1] == 3"]},
    {"op": ["Mul", "Neg"], "where": ["opset > 20", "opset == 17"]},
    {"op": ["DequantizeLinear", "QuantizeLinear"], "dtype": "any"},
    {"op": ["DequantizeLinear", "QuantizeLinear"], "dtype": "any", "standalone": False},
]
COMPOSITES = [
    {"name": "conv_relu", "pattern": "c = Conv(x, w!)\ny = Relu(c)"},
    {"name": "mul_neg", "pattern": "m = Mul(a, b)\nn = Neg(m)?\ny = Relu|Tanh|Neg(n)"},
    {"name": "qdq", "pattern": "d = DequantizeLinear(x, s!, z!)\nc = Conv|Relu|Softmax(d, w!?)\n"
     "y = QuantizeLinear(c, t!, u!)"},
    {"name": "both", "pattern": "a = Add(x, z)\nr = Relu|Neg|Tanh(a)\nreturn a, r"},
]  # fmt: skip
HOSTS: list[dict[str, Any]] = [
    *({}, {"ops": ["Relu", "Conv"]}, {"names": ["n[02468]"]}),
    *({"after": {"ops": ["Tanh"]}}, {"after": {"names": ["n1", "n3"]}}),
]


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_said_to_be_gained_is(data: st.DataObject) -> None:
    rules = {
        "target": "t",
        "cost_model": "dla",
        "dtype": data.draw(st.sampled_from(["float32", "float32", "float32", "any", "int8"])),
        "host": data.draw(st.sampled_from(HOSTS)),
        "limits": data.draw(st.sampled_from([{}, {"batch": 1}])),
        "ops": data.draw(st.lists(st.sampled_from(RULES), min_size=4, max_size=9, unique_by=str)),
        "composites": data.draw(st.lists(st.sampled_from(COMPOSITES), min_size=1, unique_by=str)),
    }
    check(data.draw(models()), rules)


ZOO = """
target: t
cost_model: dla
dtype: float32
host: {after: {names: [fc, classifier]}, ops: [GlobalAveragePool]}
ops:
  - op: Conv
    tensors:
      X: {dims: {1: {multiple_of: 16}}}
      W: {bytes: {max: 512KiB}}
      Y: {dims: {1: {multiple_of: 32}}}
    attributes: {kernel_shape: {each: {max: 3}}, group: {one_of: 1}}
  - {op: Conv, standalone: false, dtype: float16}
  - {op: [Relu, BatchNormalization, Sum, MaxPool], opset: {min: 9}}
  - {op: [Gemm, Softmax, Reshape], tensors: {}, where: ['opset > 100']}
composites:
  - {name: conv_relu, pattern: "c = Conv(x, w!, b?)\\ny = Relu(c)"}
"""


@pytest.mark.parametrize("name", ["shufflenet", "inception_v1"])
def test_so_in_models_of_the_zoo(name: str) -> None:
    places = check(prepare_model(zoo.load_structure(name), name), yaml.safe_load(ZOO))
    assert len(places) > 2


def test_what_is_inherited_is_relaxed_where_it_is_written(tmp_path: Path) -> None:
    base = "target: b\ncost_model: dla\ndtype: float16\nlimits: {batch: 1}\n"
    (tmp_path / "base.yaml").write_text(f"{base}ops: [{{op: Neg, dtype: float32}}, {{op: Relu}}]\n")
    own = "ops: [{op: Neg, dtype: float32, opset: {min: 99}}]\nhost: {names: [r]}\n"
    (tmp_path / "t.yaml").write_text(f"target: t\nextends: base.yaml\n{own}")
    model = prepared(
        "g (float[2,4] x, float[1,4] z) => (float[2,4] y, float[1,4] r, float[1,4] n) {\n"
        " y = Relu (x)\n [r] r = Relu (z)\n n = Neg (z)\n}"
    )
    found = explain(model, load_rules(str(tmp_path / "t.yaml")), no_passes="all", keep_open=True)
    assert {gain.location: gain.nodes for gain in compute_gains(found)} == {"ops[0].opset.min": 1}
    any_batch = drop_constraint(found.target, "base.yaml: limits.batch")
    any_dtype = drop_constraint(found.target, "base.yaml: dtype")
    assert any_batch is not None
    assert any_dtype is not None
    assert any_batch.rules.limits.batch is None
    assert any_dtype.rules.dtype == ("any",)
    free = drop_constraint(found.target, "ops[0].opset.min")
    assert free is not None
    assert [rule.opset.min for rule in free.rules.ops] == [None, None]
    assert free.rules.ops[0].dtype == ("float32",)
    for place in ("base.yaml: ops[1]", "ops[0]", "nothing.yaml: ops[0].dtype", "ops[9].dtype", ""):
        assert drop_constraint(found.target, place) is None
