"""Quantized layers of a region are compared alone: faults that rounding hides are found and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import planted_layers, vendors
from helpers.support import Ran, sample_cases
from onnx import helper, numpy_helper

import byoc
from byoc import verify
from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CompileError, Region

_SHAPE = (1, 8, 12, 12)


_DEPTH = 4


def make_model() -> onnx.ModelProto:
    """Return convolutions with Relu in QDQ form, one after the other, of uint8 with a zero point."""
    random = np.random.default_rng(1)
    stored = {"s": np.float32(0.05), "z": np.uint8(110), "ws": np.float32(0.01), "wz": np.int8(0)}
    stored["bs"] = np.float32(0.0005)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    for i in range(_DEPTH):
        weight = random.normal(scale=100 / np.sqrt(9 * 8), size=(8, 8, 3, 3))
        stored[f"w{i}"] = np.clip(np.rint(weight), -127, 127).astype(np.int8)
        stored[f"b{i}"] = random.integers(-2000, 2000, 8).astype(np.int32)
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", "ws", "wz"], [f"v{i}"]),
            helper.make_node("DequantizeLinear", [f"b{i}", "bs"], [f"u{i}"]),
            helper.make_node("Conv", [f"d{i}", f"v{i}", f"u{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
            helper.make_node("QuantizeLinear", [f"r{i}", "s", "z"], [f"q{i + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{_DEPTH}", "s", "z"], ["y"]))
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, _SHAPE) for n in ("x", "y")]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(scale=2, size=_SHAPE).astype(np.float32)}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    vendors.install(monkeypatch, rough=planted_layers.RoughMachine)
    monkeypatch.setattr(planted_layers.RoughMachine, "fault", None)
    model = make_model()
    output = tmp_path / "b"
    byoc.partition(
        model, "dla", output=output, codegen="rough", strategy="all-supported", cache=False, verify=False
    )
    onnx.save(model, tmp_path / "m.onnx")
    return output


def test_a_machine_that_rounds_otherwise_is_right_layer_by_layer(
    bundle: Path, inputs: dict[str, np.ndarray]
) -> None:
    found = byoc.verify(bundle, bundle.parent / "m.onnx", inputs=inputs)
    (region,) = found.regions
    assert found.passed
    assert region.layers is not None
    assert region.layers.same
    assert [error.name for error in region.layers.errors] == [f"r{i}" for i in range(_DEPTH)]
    assert {error.largest for error in region.layers.errors} == {1.0}
    assert all(0 < error.differing < 0.05 for error in region.layers.errors)


def test_inputs_that_lie_halfway_between_two_integers_may_be_rounded_to_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pixels of an image less their mean are such inputs, all of them."""
    vendors.install(monkeypatch, rough=planted_layers.RoughMachine)
    monkeypatch.setattr(planted_layers.RoughMachine, "fault", None)
    model = make_model()
    byoc.partition(
        model,
        "openvino-cpu",
        output=tmp_path / "b",
        codegen="rough",
        cache=False,
        verify=False,
        strategy="all-supported",
    )
    onnx.save(model, tmp_path / "m.onnx")
    middle = np.random.default_rng(0).integers(-20, 20, _SHAPE) + 0.49995
    inputs = {"x": (0.05 * middle).astype(np.float32)}
    (region,) = byoc.verify(tmp_path / "b", tmp_path / "m.onnx", inputs=inputs).regions
    assert region.layers is not None
    (first,) = [error for error in region.layers.errors if error.tensor == "q0"]
    assert first.differing > 0.2
    assert not region.layers.wrong


def make_depthwise_model() -> onnx.ModelProto:
    """Return a convolution, and a depthwise one that reads its results in a scale for each channel."""
    model = make_model()
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.linspace(0.02, 0.09, 8, dtype=np.float32), "ss"))
    graph.initializer.append(numpy_helper.from_array(np.arange(90, 98, dtype=np.uint8), "zz"))
    for tensor in graph.initializer:
        if tensor.name == "w1":
            kernel = numpy_helper.to_array(tensor)[:, :1].copy()
            tensor.CopyFrom(numpy_helper.from_array(kernel, "w1"))
    for node in graph.node:
        if node.output[0] in ("q1", "d1"):
            node.input[1:] = ["ss", "zz"]
        if node.name == "conv1":
            node.attribute.append(helper.make_attribute("group", 8))
    return model


def test_results_of_one_real_value_count_as_one_with_scales_by_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, rough=planted_layers.RoughMachine)
    monkeypatch.setattr(planted_layers.RoughMachine, "fault", None)
    monkeypatch.setattr(planted_layers.RoughMachine, "deviation", 0.12)
    model, output = make_depthwise_model(), tmp_path / "b"
    byoc.partition(
        model, "dla", output=output, codegen="rough", strategy="all-supported", cache=False, verify=False
    )
    onnx.save(model, tmp_path / "m.onnx")
    white = {"x": np.zeros(_SHAPE, np.float32)}
    (region,) = byoc.verify(output, tmp_path / "m.onnx", inputs=white).regions
    assert region.layers is not None
    assert not region.layers.wrong
    first = region.layers.errors[0]
    assert first.name == "r0"
    assert first.differing == 1 / 8, "all of a channel is rounded to the other integer"


@pytest.mark.parametrize("number", sample_cases(range(len(planted_layers.FAULTS)), 0, 3, 11, 14))
def test_planted_faults_are_found_in_their_layer(
    number: int, bundle: Path, inputs: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = planted_layers.FAULTS[number]
    (region,) = [region.load(inline=True) for _, region, _ in open_bundle(bundle).regions()]
    tensor = planted_layers.find_place(region, fault)
    monkeypatch.setattr(planted_layers.RoughMachine, "fault", fault)
    monkeypatch.setattr(planted_layers.RoughMachine, "tensor", tensor)
    found = byoc.verify(bundle, bundle.parent / "m.onnx", inputs=inputs)
    assert not found.passed
    assert found.regions[0].layers is not None
    assert [error.tensor for error in found.regions[0].layers.wrong] == [tensor]


def test_the_layer_that_is_off_by_less_than_a_unit_everywhere_is_named(
    bundle: Path, inputs: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted_layers.RoughMachine, "fault", planted_layers.FAULTS[0])
    monkeypatch.setattr(planted_layers.RoughMachine, "tensor", "q2")
    fault = byoc.bisect(bundle, "dla", bundle.parent / "m.onnx", inputs=inputs)
    assert (fault.op, fault.operation) == ("conv_relu", "r1")
    assert "on average" in str(fault)


class OneOutputAlone(planted_layers.RoughMachine):
    """Takes regions of one output, as compilers of some devices do."""

    def compile(self, region: Region, options: Any) -> Artifact:
        if len(region.outputs) > 1:
            raise CompileError("a network has one output")
        return super().compile(region, options)


def test_where_layers_cannot_be_compared_it_is_said_beside_the_verdict(
    bundle: Path,
    inputs: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    byoc: Callable[..., Ran],
) -> None:
    vendors.install(monkeypatch, rough=OneOutputAlone)
    said = "were not compared alone: a network has one output"
    found = verify(bundle, bundle.parent / "m.onnx", inputs=inputs)
    assert found.passed
    assert found.layers_not_compared.endswith(said)
    np.savez(bundle.parent / "x.npz", **inputs)
    ran = byoc("verify", bundle, "--inputs", bundle.parent / "x.npz")
    assert said in ran.out.splitlines()[-1]
    assert ran.out.splitlines()[-1].startswith("Verified:")
    output = bundle.parent / "again"
    again = byoc(
        *("partition", bundle.parent / "m.onnx", "--rules", "dla", "--codegen", "rough"),
        *("--strategy", "all-supported", "--no-cache", "-o", output),
    )
    assert said in again.out


def test_a_right_region_is_not_blamed(bundle: Path, inputs: dict[str, np.ndarray]) -> None:
    with pytest.raises(byoc.InputError, match="each of its 4 quantized layers is right"):
        byoc.bisect(bundle, "dla", bundle.parent / "m.onnx", inputs=inputs)


def test_a_region_that_no_sample_reaches_is_judged_by_its_layers_too(tmp_path: Path) -> None:
    """Halves that the machine rounds the other way, on special values of a region that never runs."""
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3, 1, 4] x) => (float[2, 3, 1, 4] y)
    <float s = {0.125}, int8 z = {5}, float ws = {0.1}, float os = {0.25}, uint8 oz = {11},
     int8[1, 3, 1, 1] w = {-5, -7, 6}>
    {
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      wf = DequantizeLinear(w, ws)
      c = Conv(d, wf)
      cq = QuantizeLinear(c, os, oz)
      f = DequantizeLinear(cq, os, oz)
      t = Concat<axis = 0>(f, f)
      tq = QuantizeLinear(t, s)
      td = DequantizeLinear(tq, s)
      u = GreaterOrEqual(td, t)
      y = Sin(x)
    }""")
    result = byoc.partition(model, "dla", output=tmp_path / "b", strategy="all-supported")
    assert result.report.refusals == ()
    assert result.verification is not None
    assert [region.sample for region in result.verification.regions] == ["made"]
