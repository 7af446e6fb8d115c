"""Graphs on which others got the border wrong, each named after its public thread; numbers, not shapes.

Each is partitioned by the public `byoc.partition`, run in plain onnxruntime and through the bundle, and
held against onnxruntime on the model as it was: the outputs, and the integers that cross.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import ramp
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from qdq_net import SMALL, Net

import byoc
from byoc.bundle import open_bundle
from byoc.onnxrt import open_session, run_session, without_optimizations

COSTS = """
kind: roofline
name: near
peak: {default: 1.0e+12}
bandwidth: 1.0e+12
link: {bandwidth: .inf}
"""
INTEGERS = """
target: npu
cost_model: near.yaml
dtype: [int8, uint8]
quantization:
  activations: {dtype: [int8, uint8]}
  weights: {dtype: int8, symmetric: true}
  bias: {dtype: int32}
ops:
  - {op: [Conv, Add, Relu, MaxPool, Concat, Flatten, Gemm], quantized: true}
composites:
  - {name: conv_relu, pattern: "c = Conv(x, w, b?)\\ny = Relu(c)"}
"""
FLOATS = """
target: npu
cost_model: near.yaml
dtype: float32
layout: {activations: NHWC}
ops:
  - {op: [Conv, MaxPool, Relu, Add]}
"""
Signed = pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8], ids=["int8", "uint8"])


def partition(model: ModelProto, folder: Path, rules: str = INTEGERS, **options: Any) -> byoc.Result:
    (folder / "near.yaml").write_text(COSTS, encoding="utf-8")
    (folder / "npu.yaml").write_text(rules, encoding="utf-8")
    return byoc.partition(
        model, folder / "npu.yaml", strategy="all-supported", output=folder / "out.byoc", **options
    )


def run(model: ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def same(expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    assert list(expected) == list(given)
    for name, value in expected.items():
        assert value.dtype == given[name].dtype, name
        np.testing.assert_array_equal(value, given[name], err_msg=name)


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return a model that gives out more tensors, after its own."""
    result = ModelProto()
    result.CopyFrom(model)
    there = {value.name for value in model.graph.output}
    result.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in there)
    return result


def calls(result: byoc.Result) -> list[NodeProto]:
    """Return the nodes that call regions, in order."""
    return [node for node in result.model.graph.node if node.domain.startswith("byoc.")]


def host(result: byoc.Result) -> list[str]:
    return [node.op_type for node in result.model.graph.node if not node.domain]


def inside(result: byoc.Result, region: str) -> list[str]:
    function = next(f for f in result.model.functions if f.name == region)
    return [node.op_type for node in function.node]


def crossing(result: byoc.Result) -> list[str]:
    """Return what crosses as data, in order of the regions."""
    stored = {tensor.name for tensor in result.model.graph.initializer}
    names = [n for call in calls(result) for n in (*call.input, *call.output) if n and n not in stored]
    return list(dict.fromkeys(names))


def held(model: ModelProto, result: byoc.Result, inputs: Mapping[str, Any]) -> None:
    """Assert that a partitioned model gives the same bits as it was: outputs, and what crosses."""
    onnx.checker.check_model(result.model, full_check=True)
    expected = run(model, inputs)
    same(expected, run(result.model, inputs))
    assert result.bundle is not None
    with without_optimizations():
        same(expected, byoc.load(result.bundle)(inputs))
    made = {name for node in model.graph.node for name in node.output}
    shared = [name for name in crossing(result) if name in made]
    same(run(with_outputs(model, shared), inputs), run(with_outputs(result.model, shared), inputs))


def dtypes(result: byoc.Result, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return what really crosses in plain onnxruntime, by tensor: its data type."""
    names = [name for name in crossing(result) if name not in inputs]
    found = run(with_outputs(result.model, names), inputs)
    return {name: str(found[name].dtype) for name in names}


def contracts(result: byoc.Result) -> dict[str, str]:
    """Return the data types of what crosses as the bundle's regions state them, by tensor."""
    assert result.bundle is not None
    regions = [region for _, region, _ in open_bundle(result.bundle).regions()]
    found = {
        contract.name: contract.type.dtype
        for region in regions
        for contract in (*region.inputs, *region.outputs)
    }
    for region in regions:  # what the region's own model says must be that, too
        graph = region.load().graph
        for value in (*graph.input, *graph.output):
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            assert str(kind) == found[value.name]
    return found


@Signed
def test_executorch_19364_one_reader_inside_and_one_outside(kind: int, tmp_path: Path) -> None:
    """int8 on one side of the border of an int-only region, uint8 on the other."""
    net = Net(kind)
    x = net.pair("x", 0.02, 3)
    a = net.quantized(net.node("Relu", net.conv(x, "w0", 4, "c"), to="a"), 0.015, 0)
    inner, outer = net.read(a, "a_in"), net.read(a, "a_out")
    b = net.pair(net.node("MaxPool", inner, to="b", kernel_shape=[2, 2]), 0.015, 0)
    net.node("Sigmoid", outer, to="y")
    net.node("Exp", b, to="z")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6], "z": [1, 4, 5, 5]})
    result = partition(model, tmp_path)
    inputs = {"x": ramp(1, 4, 6, 6) * 4}
    held(model, result, inputs)
    name = str(np.dtype(SMALL[kind]))
    assert len(calls(result)) == 1
    assert set(dtypes(result, inputs).values()) == {name}
    assert set(contracts(result).values()) == {name}


@Signed
def test_executorch_19364_where_both_readers_share_a_dequantizer(kind: int, tmp_path: Path) -> None:
    """The same with one DequantizeLinear: a copy goes inside, and integers cross all the same."""
    net = Net(kind)
    x = net.pair("x", 0.02, 3)
    a = net.pair(net.node("Relu", net.conv(x, "w0", 4, "c"), to="a"), 0.015, 0)
    net.pair(net.node("MaxPool", a, to="b", kernel_shape=[2, 2]), 0.015, 0)
    net.node("Sigmoid", a, to="y")
    net.node("Exp", "b_dq", to="z")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6], "z": [1, 4, 5, 5]})
    result = partition(model, tmp_path)
    inputs = {"x": ramp(1, 4, 6, 6) * 4}
    held(model, result, inputs)
    assert len(calls(result)) == 1
    assert set(contracts(result).values()) == {str(np.dtype(SMALL[kind]))}


def test_executorch_22966_a_split_in_floats_stays_out_of_an_integer_region(
    tmp_path: Path,
) -> None:
    """DequantizeLinear and Split inside wrote integers into a buffer that was told to be float32."""
    net = Net()
    x = net.pair("x", 0.02, 3)
    a = net.pair(net.node("Relu", net.conv(x, "w0", 4, "c"), to="a"), 0.015, -128)
    net.nodes.append(helper.make_node("Split", [a], ["p", "q"], "Split_p", axis=1))
    net.node("MatMul", "p", "q", to="y")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 2, 6, 6]})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(1, 4, 6, 6) * 4})
    assert set(contracts(result).values()) == {"int8"}
    assert inside(result, result.plan.regions[0].name)[-1] == "QuantizeLinear"
    assert host(result) == ["QuantizeLinear", "DequantizeLinear", "Split", "MatMul"]


def test_onnxruntime_26325_the_weights_dequantizer_stands_two_regions_away(tmp_path: Path) -> None:
    """Fed by constants alone, it was swept into the first partition, and its group came apart."""
    net = Net()
    last = net.weight("w2", 4, 4, 3, 3)
    first = net.conv(net.pair("x", 0.02, 3), "w0", 4, "c0")
    a = net.node("Sigmoid", net.pair(first, 0.03, 0), to="a")
    b = net.node("Tanh", net.pair(net.conv(net.pair(a, 0.01, -100), "w1", 4, "c1"), 0.03, 0), to="b")
    net.pair(net.node("Conv", net.pair(b, 0.01, 0), last, to="c2", pads=[1] * 4), 0.03, 0)
    net.node("Neg", "c2_dq", to="y")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(1, 4, 6, 6) * 4})
    group = sorted(["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"])
    assert [sorted(inside(result, call.op_type)) for call in calls(result)] == [group] * 3
    for call, weight in zip(calls(result), ("w0", "w1", "w2"), strict=True):
        assert f"{weight}_q" in call.input
    assert host(result).count("DequantizeLinear") == 3  # of activations


def test_executorch_tosa_a_pair_on_a_skip_connection_makes_no_cycle(tmp_path: Path) -> None:
    """With the pair taken out of the region, what is around it would have to run before and after."""
    net = Net()
    c = net.conv(net.pair("x", 0.02, 3), "w0", 4, "c0")
    a = net.quantized(net.node("Relu", c, to="a"), 0.02, -128)
    skip = net.node("Sigmoid", net.read(a, "a_skip"), to="s")
    b = net.pair(net.conv(net.read(a, "a_in"), "w1", 4, "b"), 0.04, 5)
    net.pair(net.node("Add", b, net.pair(skip, 0.01, -100), to="d"), 0.05, 0)
    net.node("Neg", "d_dq", to="y")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(1, 4, 6, 6) * 4})
    assert 2 <= len(calls(result)) <= 3
    order = {n: i for i, node in enumerate(result.model.graph.node) for n in node.output}
    for i, node in enumerate(result.model.graph.node):
        assert all(order.get(name, -1) < i for name in node.input)


@pytest.mark.parametrize("convert", ["host", "device"])
def test_executorch_tosa_a_skip_that_is_a_pair_and_nothing_else(convert: str, tmp_path: Path) -> None:
    """The pair changes the scale on the way: left out, the region would read what it makes itself."""
    net = Net()
    c = net.conv(net.pair("x", 0.02, 3), "w0", 4, "c0")
    a = net.quantized(net.node("Relu", c, to="a"), 0.02, -128)
    skip = net.pair(net.read(a, "s"), 0.05, 11)
    b = net.pair(net.conv(net.read(a, "a_in"), "w1", 4, "b"), 0.04, 5)
    net.pair(net.node("Add", b, skip, to="d"), 0.05, 0)
    net.node("Neg", "d_dq", to="y")
    model = net.model({"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]})
    rules = INTEGERS.replace("quantization:", f"quantization:\n  convert: {convert}")
    result = partition(model, tmp_path, rules)
    held(model, result, {"x": ramp(1, 4, 6, 6) * 4})
    regions = [inside(result, call.op_type) for call in calls(result)]
    assert len(regions) == {"host": 2, "device": 1}[convert]


def test_a_residual_of_two_scales(tmp_path: Path) -> None:
    """Each side of the Add keeps its own scale and zero point, at the border as well."""
    net = Net()
    x, z = net.pair("x", 0.02, 3), net.pair("z", 0.07, -9)
    a = net.pair(net.conv(x, "w0", 4, "a"), 0.04, 5)
    net.pair(net.node("Add", a, z, to="b"), 0.09, -1)
    net.node("Neg", "b_dq", to="y")
    model = net.model({"x": [1, 4, 6, 6], "z": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(1, 4, 6, 6) * 4, "z": ramp(1, 4, 6, 6)[::, ::-1] * 9})
    assert len(calls(result)) == 1
    assert set(crossing(result)) == {"x_q", "z_q", "b_q"}


@pytest.mark.parametrize("given", ["a_q", "a_dq"])
def test_ryzenai_369_an_output_that_is_also_read_inside(given: str, tmp_path: Path) -> None:
    """Several outputs of a region, one of which it reads itself, kept their values apart."""
    net = Net()
    a = net.pair(net.conv(net.pair("x", 0.02, 3), "w0", 4, "a"), 0.04, 5)
    b = net.pair(net.node("Relu", a, to="b"), 0.04, 5)
    net.pair(net.node("Add", a, b, to="c"), 0.09, -1)
    shape = [1, 4, 6, 6]
    model = net.model({"x": shape}, {"c_dq": shape, given: shape, "b_q": shape})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(*shape) * 4})
    assert len(calls(result)) == 1
    assert list(byoc.load(tmp_path / "out.byoc").outputs) == ["c_dq", given, "b_q"]


def test_openvino_2872_an_input_that_goes_straight_to_an_output(tmp_path: Path) -> None:
    """So does a constant; neither is anybody's to compute, and neither is lost."""
    net = Net()
    net.constant("k", ramp(3))
    net.pair(net.conv(net.pair("x", 0.02, 3), "w0", 4, "a"), 0.04, 5)
    shape = [1, 4, 6, 6]
    model = net.model({"x": shape}, {"x": shape, "a_dq": shape, "k": [3]})
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(*shape) * 4})


def residual() -> ModelProto:
    net = Net()
    for name in ("w0", "w1"):
        net.constant(name, np.random.default_rng(3).standard_normal((4, 4, 3, 3)).astype(np.float32))
    a = net.node("Conv", "x", "w0", to="a", pads=[1] * 4)
    r = net.node("Sigmoid", a, to="r")
    s = net.node("Sub", r, "x", to="s")
    net.node("Conv", s, "w1", to="y", pads=[1] * 4)
    return net.model({"x": [1, 4, 6, 7]}, {"y": [1, 4, 6, 7]})


def test_onnxruntime_18128_nhwc_residual_nhwc(tmp_path: Path) -> None:
    """Between two regions in NHWC all of the host can run in NHWC: nothing is turned there and back."""
    model = residual()
    result = partition(model, tmp_path, FLOATS)
    inputs = {"x": ramp(1, 4, 6, 7) * 4}
    held(model, result, inputs)
    assert len(calls(result)) == 2
    assert host(result).count("Transpose") == 2  # of the model's input, of its output
    expected = run(with_outputs(model, ["a", "s"]), inputs)
    first, second = calls(result)
    found = run(with_outputs(result.model, [first.output[0], second.input[0]]), inputs)
    for original, name in (("a", first.output[0]), ("s", second.input[0])):
        np.testing.assert_array_equal(found[name], expected[original].transpose(0, 2, 3, 1))


def test_onnxruntime_18128_with_a_branch_that_has_to_be_turned(tmp_path: Path) -> None:
    """A Reshape across the channels stands in the way: what it reads is turned back once, no more."""
    model = residual()
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 12, 7]), "to"))
    model.graph.node.append(helper.make_node("Reshape", ["r", "to"], ["u"], "Reshape_u"))
    model.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [1, 2, 12, 7]))
    result = partition(model, tmp_path, FLOATS)
    held(model, result, {"x": ramp(1, 4, 6, 7) * 4})
    assert host(result).count("Transpose") == 3


def test_a_transpose_of_a_node_without_inputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    turned (float[1, 2, 4, 3] x) => (float[1, 2, 4, 3] y) {
      w = RandomUniform<shape = [1, 4, 3, 2], seed = 1.0>()
      t = Transpose<perm = [0, 3, 1, 2]>(w)
      z = Mul(t, x)
      a = Relu(x)
      y = Sum(a, z)
    }""")
    partition(model, tmp_path, FLOATS, verify=False)
    made = open_bundle(tmp_path / "out.byoc").model()
    assert "RandomUniform" in {node.op_type for node in made.graph.node}


@Signed
@pytest.mark.parametrize("layout", ["", "layout: {activations: NHWC}\n"], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("convert", ["host", "device"])
def test_integers_at_every_border_are_those_of_the_model(
    kind: int, layout: str, convert: str, tmp_path: Path
) -> None:
    """A user's QDQ model keeps its scales: what crosses, turned back, is what onnxruntime has there.

    A device that converts has the user's outermost pairs inside, and takes and gives floats there.
    """
    net = Net(kind)
    x = net.pair("x", 0.02, 3)
    a = net.pair(net.node("Relu", net.conv(x, "w0", 4, "c0"), to="a"), 0.02, 0)
    b = net.pair(net.conv(a, "w1", 4, "b"), 0.05, 7)
    s = net.pair(net.node("Sigmoid", b, to="s"), 0.0075, 1)
    d = net.pair(net.conv(s, "w2", 4, "d"), 0.03, 9)
    e = net.pair(net.node("Add", d, a, to="e"), 0.06, 2)
    f = net.node(
        "Softmax", net.pair(net.node("MaxPool", e, to="f", kernel_shape=[2, 2]), 0.06, 2), to="g"
    )
    net.node("Neg", f, to="y")
    model = net.model({"x": [1, 4, 6, 7]}, {"y": [1, 4, 5, 6]})
    rules = layout + INTEGERS.replace("quantization:", f"quantization:\n  convert: {convert}")
    result = partition(model, tmp_path, rules)
    inputs = {"x": ramp(1, 4, 6, 7) * 4}
    held(model, result, inputs)
    assert len(calls(result)) == 2
    origins = {name: result.plan.origins.get(name, name) for name in crossing(result)}
    meant = {"host": {"x_q", "b_q", "s_q", "f_q"}, "device": {"x", "b_dq", "s", "f_dq"}}
    assert set(origins.values()) == {"a_q", *meant[convert]}
    expected = inputs | run(with_outputs(model, sorted({*origins.values()} - {"x"})), inputs)
    found = inputs | run(with_outputs(result.model, sorted(origins.keys() - {"x"})), inputs)
    turned = (0, 2, 3, 1) if layout else (0, 1, 2, 3)
    for name, original in origins.items():
        assert found[name].dtype == (SMALL[kind] if original.endswith("_q") else np.float32)
        np.testing.assert_array_equal(found[name], expected[original].transpose(turned), err_msg=name)
        assert len(np.unique(found[name])) > 8  # numbers that tell something


def test_integers_of_a_model_that_onnxruntime_quantized(tmp_path: Path) -> None:
    """The same of a model by onnxruntime's own quantizer, its choice of nodes and names."""
    from onnxruntime.quantization import (  # noqa: PLC0415
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": ramp(1, 4, 6, 7) * scale} for scale in (4, 3, 2)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    onnx.save(residual(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "quantized.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv"],
    )
    model = onnx.load(tmp_path / "quantized.onnx")
    result = partition(model, tmp_path)
    held(model, result, {"x": ramp(1, 4, 6, 7) * 4})
    assert len(calls(result)) == 2
    assert set(contracts(result).values()) == {"int8"}
