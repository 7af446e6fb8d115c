"""What the outlined model says of its nodes: rules, groups, composites, reasons, predictions."""

from pathlib import Path

import onnx
import pytest
from accelerators import Files
from helpers.support import prepared

from byoc.pipeline import PlanOptions, load_settings, make_plan
from byoc.planning import Plan

NET = """
g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
<float s = {0.5}, int8 z = {0}, int8[2, 2, 1, 1] w = {1, 2, 3, 4}> {
  [first] a = Neg(x)
  b = Tanh(a)
  q = QuantizeLinear(b, s, z)
  d = DequantizeLinear(q, s, z)
  wd = DequantizeLinear(w, s, z)
  [conv] c = Conv(d, wd)
  [relu] r = Relu(c)
  rq = QuantizeLinear(r, s, z)
  y = DequantizeLinear(rq, s, z)
}
"""
COMPOSITES = "composites:\n- {name: conv_relu, pattern: 'c = Conv(x, w!)\n\n    y = Relu(c)'}\n"
QUANTIZED = "{op: [Conv, Relu], quantized: true, dtype: [int8, int32]}"


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    rules = Files(tmp_path).rules("npu", "Neg", QUANTIZED, more=COMPOSITES)
    settings = load_settings(PlanOptions(Path(rules)), "all-supported")
    return make_plan(prepared(NET), settings)


def read(node: onnx.NodeProto | onnx.FunctionProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def test_nodes_say_by_which_rules_they_are_where_they_are(made: Plan) -> None:
    outlined = made.partitioned.outlined
    host = {node.op_type: read(node) for node in outlined.graph.node if not node.domain}
    assert host["Tanh"]["byoc.device"] == "host"
    assert host["Tanh"]["byoc.reason"] == str(
        next(why for unit, why in made.host_units if unit.name == "b")
    )
    functions = {function.name: function for function in outlined.functions}
    calls = {node.op_type: read(node) for node in outlined.graph.node if node.domain}
    one, two = made.regions
    for region, units in ((one, 1), (two, 1)):
        assert calls[region.name] == {
            "byoc.target": "npu",
            "byoc.units": str(units),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        }
    (neg,) = functions[one.name].node
    assert read(neg) == {"byoc.rules": "ops[0]"}
    inside = functions[two.name].node
    (call,) = [node for node in inside if node.op_type == "conv_relu"]
    assert read(call) == {
        "byoc.rules": "ops[1], ops[1]",
        "byoc.composite": "conv_relu",
        "byoc.qdq": "relu",
        "byoc.nodes": "conv, relu",
    }
    groups = [read(node).get("byoc.qdq") for node in inside if "Linear" in node.op_type]
    assert sorted(map(str, groups)) == ["None", "relu", "relu"]  # weights are shared


def test_nothing_is_estimated_of_nothing(tmp_path: Path) -> None:
    rules = Files(tmp_path).rules("npu", "Neg")
    settings = load_settings(PlanOptions(Path(rules)), "exact")
    plan = make_plan(prepared("g (float[2] x) => (float[2] x) { }"), settings)
    assert (plan.units, plan.regions, plan.host_units) == ((), (), [])
    assert (plan.estimated_share, plan.offloaded_operations) == (0.0, (0.0, 0.0))
