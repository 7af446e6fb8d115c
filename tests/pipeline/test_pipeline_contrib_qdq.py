"""QDQ models in onnxruntime's domain com.microsoft are planned as those in ONNX's domain."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import byoc
from byoc.model import is_qdq_node, prepare_model

NET = """<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft": 1]>
g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
<float xs = {{0.05}}, {dtype} xz = {{3}}, float ys = {{0.1}}, {dtype} yz = {{5}},
 float[4] ws = {{0.02, 0.01, 0.03, 0.02}}, int8[4] wz = {{0, 0, 0, 0}}> {{
    xq = {domain}QuantizeLinear(x, xs, xz)
    xd = {domain}DequantizeLinear(xq, xs, xz)
    wd = {domain}DequantizeLinear<axis: int = 0>(w, ws, wz)
    c = Conv<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>(xd, wd)
    cq = {domain}QuantizeLinear(c, ys, yz)
    y = {domain}DequantizeLinear(cq, ys, yz)
}}"""


def make_net(domain: str, dtype: str = "uint8", opset: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(NET.format(domain=domain, dtype=dtype, opset=opset))
    weight = np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def make_input() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_a_convolution_runs_on_the_accelerator(domain: str, tmp_path: Path) -> None:
    model = make_net(domain)

    result = byoc.partition(model, "dla", strategy="all-supported", output=tmp_path / "b")

    assert result.report.nodes.total == 5
    assert result.report.nodes.offloaded == 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [expected] = session.run(None, {"x": make_input()})
    [found] = byoc.load(tmp_path / "b").run({"x": make_input()}).values()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_nodes_become_those_of_onnx() -> None:
    given = make_net("com.microsoft.")
    before = given.SerializeToString()

    model = prepare_model(given, "net")

    assert sum(map(is_qdq_node, model.index.nodes)) == 5
    assert model.index.opsets == {"": 17}
    assert model.index.types["cq"].dtype == "uint8"
    assert model.notes == ()
    assert given.SerializeToString() == before


@pytest.mark.parametrize(("opset", "left"), [(17, 4), (21, 0)])
def test_16_bits_need_a_newer_operator_set(opset: int, left: int, tmp_path: Path) -> None:
    given = make_net("com.microsoft.", "int16", opset)

    model = prepare_model(given, "net")

    assert sum(node.domain == "com.microsoft" for node in model.index.nodes) == left
    assert sum("operator set 21" in note for note in model.notes) == bool(left)
    assert byoc.partition(given, "dla", output=tmp_path / "b").verification.passed


@pytest.mark.parametrize(
    ("opset", "node", "is_left"),
    [
        (10, "y = com.microsoft.DequantizeLinear(x, s, z)", False),
        (10, "y = com.microsoft.DequantizeLinear(x, v, vz)", True),
        (13, "y = com.microsoft.DequantizeLinear<axis: int = 0>(x, v, vz)", False),
        (17, "y = com.microsoft.DequantizeLinear(x, h, z)", True),
        (19, "y = com.microsoft.DequantizeLinear(x, h, z)", False),
        (17, "y = com.microsoft.DequantizeLinear(x, s)", True),
        (21, "y = com.microsoft.DequantizeLinear(x, s)", False),
    ],
)
def test_the_operator_set_decides(opset: int, node: str, is_left: bool) -> None:
    kind = "float16" if "h" in node.split("(")[1] else "float"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft": 1]>
    g (uint8[2] x) => ({kind}[2] y) <float s = {{0.5}}, float16 h = {{14336}}, uint8 z = {{1}},
      float[2] v = {{0.5, 0.25}}, uint8[2] vz = {{1, 2}}> {{ {node} }}"""

    index = prepare_model(onnx.parser.parse_model(text), "net").index

    assert (index.nodes[0].domain == "com.microsoft") == is_left


def test_bodies_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1, "own": 1]>
    g (bool c, float[2] x) => (uint8[2] y, uint8[2] z) <float s = {0.5}, uint8 o = {1}> {
        y = If(c) <then_branch = then () => (uint8[2] t) { t = com.microsoft.QuantizeLinear(x, s, o) },
                   else_branch = other () => (uint8[2] e) { e = com.microsoft.QuantizeLinear(x, s) }>
        z = own.Quantize(x)
    }
    <domain: "own", opset_import: ["" : 17, "com.microsoft": 1]>
    Quantize (x) => (q) {
        scale = Constant<value = float {0.5}>()
        q = com.microsoft.QuantizeLinear(x, scale)
    }"""

    proto = prepare_model(onnx.parser.parse_model(text), "net").proto

    assert "com.microsoft" not in {entry.domain for entry in proto.opset_import}
    assert "QuantizeLinear" in str(proto)
    assert 'domain: "com.microsoft"' not in str(proto.graph)
