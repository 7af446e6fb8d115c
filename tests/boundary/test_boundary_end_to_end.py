"""Borders of models as exporters write them, from the file to a bundle that plain onnxruntime runs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cutting import original, ramp
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.bundle import open_bundle

RULES = """
target: npu
cost_model: dla
dtype: {dtype}
layout: {{activations: {layout}}}
host: {{ops: [Tanh]}}
ops: [{{op: {ops}{quantized}}}]
"""


def rules(folder: Path, layout: str, dtype: str = "any", ops: str = "'*'", quantized: str = "") -> Path:
    path = folder / "npu.yaml"
    path.write_text(RULES.format(layout=layout, dtype=dtype, ops=ops, quantized=quantized), "utf-8")
    return path


@pytest.mark.parametrize("axes", [[0], [0, 2, 3], [1]])
def test_extents_of_minus_one_stand_for_unknown(axes: list[int], tmp_path: Path) -> None:
    """Paddle exports a batch so; 20 channels in blocks of 16 need a Slice, where inference aborted."""
    model = parse("""
    g (float[1, 3, 8, 8] x) => (float[1, 20, 8, 8] y) {
      a = Conv(x, w)
      b = Tanh(a)
      y = Relu(b)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(ramp(20, 3, 1, 1), "w"))
    for value in (model.graph.input[0], model.graph.output[0]):
        for axis in axes:
            value.type.tensor_type.shape.dim[axis].dim_value = -1
    byoc.partition(
        model,
        rules(tmp_path, "NCHW16c"),
        strategy="all-supported",
        output=tmp_path / "b",
        verify=False,
    )
    host = onnx.load(tmp_path / "b" / "model.onnx")
    assert [d.dim_value for d in host.graph.input[0].type.tensor_type.shape.dim] == [
        0 if axis in axes else size for axis, size in enumerate((1, 3, 8, 8))
    ]
    inputs = {"x": ramp(1, 3, 8, 8)}
    found = byoc.load(tmp_path / "b")(inputs)["y"]
    np.testing.assert_allclose(found, original(model, inputs)["y"], atol=1e-6)


@pytest.mark.parametrize("channels", [10, 16, 40])
def test_a_weight_in_a_constant_node_in_half_precision(channels: int, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(ramp(channels, 3, 3, 3) / 100, "w")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, channels, 6, 6]))
    )
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Conv", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    done = byoc.partition(
        model,
        rules(tmp_path, "NHWC", "float16"),
        strategy="all-supported",
        precision=byoc.Precision(quantize="float16"),
        output=tmp_path / "b",
    )
    assert done.verification is not None
    assert done.verification.passed
    (file,) = (tmp_path / "b").glob("npu_*.onnx")
    region = onnx.load(file)
    (stored,) = region.graph.initializer
    assert stored.data_type == TensorProto.FLOAT16
    assert list(stored.dims) == [channels, 3, 3, 3]


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_blocks_of_16_bit_integers_run_on_onnxruntime(dtype: str, tmp_path: Path) -> None:
    """It has no Pad for them, and three channels do not fill a block of four."""
    model = parse("""
    g (float[1, 3, 4, 4] x) => (float[1, 3, 2, 2] y) {
      a = MaxPool <kernel_shape = [2, 2], strides = [1, 1]> (x)
      b = AveragePool <kernel_shape = [2, 2], strides = [1, 1]> (a)
      y = Tanh(b)
    }""")
    done = byoc.partition(
        model,
        rules(tmp_path, "NCHW4c", dtype, "[MaxPool, AveragePool]", ", quantized: true"),
        strategy="all-supported",
        precision=byoc.Precision(quantize=dtype, data="random"),
        output=tmp_path / "b",
    )
    assert done.verification is not None
    assert done.verification.passed
    (region,) = [region for _, region, _ in open_bundle(tmp_path / "b").regions()]
    for contract in (*region.inputs, *region.outputs):
        assert (contract.type.dtype, contract.layout) == (dtype, "NCHW4c")
        assert contract.type.shape is not None
        assert contract.type.shape[-1] == 4
    inputs = {"x": ramp(1, 3, 4, 4) + np.float32(0.5)}  # within the range of the random samples
    found = byoc.load(tmp_path / "b")(inputs)["y"]
    np.testing.assert_allclose(found, original(model, inputs)["y"], atol=1e-3)
