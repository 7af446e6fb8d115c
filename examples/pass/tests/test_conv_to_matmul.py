"""The pass keeps results, rewrites what is a product, and leaves the rest alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from conv_to_matmul import ConvToMatMul
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

import byoc

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 4, 6, 6] x) => (float[1, 8, 6, 6] y)
{
  a = Conv <kernel_shape = [1, 1]> (x, w, b)
  r = Relu (a)
  y = Conv <kernel_shape = [1, 1]> (r, v)
}
"""


def make_net(kernel: int = 1) -> ModelProto:
    """Return a net of two convolutions, the first with a bias."""
    net = onnx.parser.parse_model(NET.replace("[1, 1]", f"[{kernel}, {kernel}]", 1))
    random = np.random.default_rng(0)
    shapes = {"w": (16, 4, kernel, kernel), "b": (16,), "v": (8, 16, 1, 1)}
    for name, shape in shapes.items():
        array = random.standard_normal(shape, np.float32)
        net.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    if kernel == 3:
        net.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    return net


def rewrite(net: ModelProto, least_channels: int = 1) -> list[str]:
    """Rewrite a copy of a net, compare the outputs, and return the operators."""
    given = ModelProto()
    given.CopyFrom(net)
    made = ConvToMatMul(least_channels).run(given)
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(1).standard_normal((1, 4, 6, 6), np.float32)
    (before,), (after,) = (ReferenceEvaluator(model).run(None, {"x": x}) for model in (net, made))
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)
    return [node.op_type for node in made.graph.node]


def test_products_become_matmul() -> None:
    first = ["Transpose", "MatMul", "Add", "Transpose"]
    assert rewrite(make_net()) == [*first, "Relu", "Transpose", "MatMul", "Transpose"]


def test_a_larger_kernel_stays() -> None:
    assert rewrite(make_net(3)) == ["Conv", "Relu", "Transpose", "MatMul", "Transpose"]


def test_few_channels_stay() -> None:
    assert rewrite(make_net(), 8) == ["Conv", "Relu", "Transpose", "MatMul", "Transpose"]


@pytest.mark.parametrize("asked", ["by the rule file", "by the user"])
def test_a_bundle_has_the_rewritten_region(asked: str, tmp_path: Path) -> None:
    options = {} if asked == "by the rule file" else {"passes": "conv-to-matmul"}
    result = byoc.partition(
        make_net(), "acme-matmul", output=tmp_path / "net.byoc", strategy="all-supported", **options
    )

    assert result.verification is not None
    assert result.verification.passed
    (effect,) = result.report.passes
    assert (effect.name, effect.target, effect.changed) == ("conv-to-matmul", "acme", 1)
    assert effect.options == {"least_channels": "2" if asked == "by the rule file" else "1"}
    assert effect.nodes_before == {"Conv": 2, "Relu": 1}
    assert effect.nodes_after["MatMul"] == 2
    (region,) = (tmp_path / "net.byoc").glob("acme_*.onnx")
    assert "Conv" not in {node.op_type for node in onnx.load(region).graph.node}
