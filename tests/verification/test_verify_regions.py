"""Every boundary tensor and each region alone: the region at fault, and the size of its error."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.support import VANILLA, parse
from interpreting import bundle_of, interpreter, only, right
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.quantization import Precision
from byoc.verification import (
    bisect_region,
    read_thresholds,
    require_passed,
    verify_against,
    verify_regions,
)

# Two regions with a Tanh on the host between them.
TWO = """
two (float[1, 4] x) => (float[1, 4] y) {
  a = Abs(x)  b = Add(a, x)  c = Tanh(b)  d = Neg(c)  y = Relu(d)
}"""
QUANTIZED = """
target: npu
cost_model: dla
dtype: int8
quantization:
  activations: {dtype: int8, symmetric: false, per_channel: false}
  weights: {dtype: int8, symmetric: true, per_channel: false}
  scales: any
ops:
  - op: Conv
    quantized: true
"""
X = {"x": np.array([[-2, -1, 0.5, 1]], np.float32)}


def test_whose_error_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first region is off by 1, so that all behind it is off, but the second alone is right."""
    vendors.install(monkeypatch, wrong=interpreter(only("b", lambda value: value - 1)))
    bundle = bundle_of(parse(TWO), tmp_path)
    found = verify_against(bundle.folder, inputs=X, regions=True)
    assert [(e.name, e.within) for e in found.boundary] == [
        ("x", True),
        ("b", False),
        ("c", False),
        ("y", False),
    ]
    assert [(r.name, r.within) for r in found.regions] == [("npu_0", False), ("npu_1", True)]
    (off,) = found.regions[0].outputs
    # Expected are 0, 0, 1 and 2: a range of 2, and 5 as the sum of squares, against 4 ones.
    assert (off.name, off.absolute, off.relative, off.differing) == ("b", 1, 0.5, 1)
    assert off.signal_to_noise == pytest.approx(10 * np.log10(5 / 4))
    assert off.cosine == pytest.approx(2 / np.sqrt(5 * 3))
    (right_,) = found.regions[1].outputs
    assert (right_.relative, right_.signal_to_noise, right_.cosine) == (0, inf, pytest.approx(1))
    assert not found.passed
    sentence = (
        r"^verification failed: output 'y' differs from its own model\.onnx by .*; region npu_0 alone: "
        r"output 'b' differs from its own ONNX on plain onnxruntime by 0\.5 of its range, at most"
    )
    with pytest.raises(InputError, match=sentence):
        require_passed(found)


def test_what_does_not_show_in_the_outputs_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TWO.replace("y = Relu(d)", "e = Relu(d) y = Tanh(e)")
    vendors.install(monkeypatch, wrong=interpreter(only("e", lambda value: value + np.float32(2e-3))))
    bundle = bundle_of(parse(text), tmp_path)
    loose = read_thresholds({"float32": "1e-2"})
    assert verify_against(bundle.folder, inputs=X, regions=True, thresholds=loose).passed
    found = verify_against(bundle.folder, inputs=X, regions=True)
    assert [r.within for r in found.regions] == [True, False]
    assert not found.passed


def test_the_outputs_alone_are_what_partition_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(right))
    found = verify_against(bundle_of(parse(TWO), tmp_path).folder)
    assert found.passed
    assert (found.boundary, found.regions) == ((), ())


def test_a_region_in_a_body_has_its_worst_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    g (float[1, 4] x, bool which) => (float[1, 4] y, float[1, 4] z) <int64 trips = {3}, bool go = {1}> {
      y = Loop(trips, go, x) <body = body
        (int64 i, bool go_in, float[1, 4] v) => (bool go_out, float[1, 4] w) {
        go_out = Identity(go_in)
        a = Abs(v)
        b = Add(a, a)
        w = Tanh(b)
      }>
      z = If (which) <
        then_branch = t () => (float[1, 4] p) { q = Neg(x) p = Abs(q) },
        else_branch = e () => (float[1, 4] r) { r = Tanh(x) }
      >
    }"""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        return [v + 1 if v.max() > 1.5 else v for v in made] if node.op_type == "Add" else made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    bundle = bundle_of(parse(text), tmp_path)
    given = {"x": np.array([[0.1, 0.2, 0.3, 0.5]], np.float32), "which": np.array(False)}
    found = {region.name: region for region in verify_regions(bundle, None, given)}
    loop = next(r for r in found.values() if r.runs)
    assert (loop.runs, loop.within) == (3, False)
    assert [error.name for error in loop.outputs] == ["b"]
    assert loop.outputs[0].absolute == pytest.approx(1)
    (other,) = (region for region in found.values() if region is not loop)
    assert (other.runs, other.outputs, other.within) == (0, (), True)


def test_a_region_that_does_not_run_leaves_the_others_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        if node.op_type == "Add":
            raise MemoryError("device")
        return made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    bundle = bundle_of(parse(TWO), tmp_path)
    first, second = verify_regions(bundle, None, X)
    assert not first.within
    expected = "does not run: codegen wrong: failed with MemoryError: device (test_verify_regions.py:"
    assert first.problem.startswith(expected)
    assert second.within
    assert second.outputs


def test_a_codegen_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    bundle = bundle_of(parse(TWO), tmp_path, codegen="compileonly")
    with pytest.raises(InputError, match=r"^codegen compileonly cannot run what it compiles here"):
        verify_regions(bundle)


def test_seeded_inputs_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong for negative numbers alone: that depends on the inputs."""
    vendors.install(monkeypatch, wrong=interpreter(only("a", lambda value: value + (value > 100))))
    bundle = bundle_of(parse(TWO), tmp_path)
    assert [region.within for region in verify_regions(bundle)] == [True, True]
    large = {"x": np.full((1, 4), 200, np.float32)}
    assert [region.within for region in verify_regions(bundle, None, large)] == [False, True]


def quantized() -> ModelProto:
    """x -> Q -> DQ -> Conv -> Q -> Tanh'd on the host behind a DQ: int8 leaves the region."""
    scale, zero = np.array(0.05, np.float32), np.array(3, np.int8)
    weight = np.arange(-4, 4).astype(np.int8).reshape(2, 4, 1, 1)
    stored = {
        "s": scale,
        "z": zero,
        "w": weight,
        "ws": np.array(0.1, np.float32),
        "wz": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        helper.make_node("Identity", ["cq"], ["h"]),
        helper.make_node("DequantizeLinear", ["h", "s", "z"], ["cd"]),
        helper.make_node("Tanh", ["cd"], ["y"]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 5, 5])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 5, 5])
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "q", [image], [result], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("units", "within"), [(1, True), (2, False)])
def test_a_quantized_tensor_may_be_off_by_one_unit(
    units: int, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(value: Any) -> Any:
        spoilt = value.copy()
        spoilt.flat[:5] += np.where(value.flat[:5] > 0, -units, units).astype(np.int8)
        return spoilt

    vendors.install(monkeypatch, wrong=interpreter(only("cq", change)))
    bundle = bundle_of(quantized(), tmp_path, rules=QUANTIZED)
    region = verify_regions(bundle)[0]
    (error,) = region.outputs
    assert (error.dtype, error.measure, error.absolute) == ("int8", "units", units)
    assert error.differing == 5 / 50
    assert error.within == within
    assert verify_regions(bundle, thresholds=read_thresholds({"quantized": "2"}))[0].within
    assert not verify_regions(bundle, thresholds=read_thresholds({"quantized": "0"}))[0].within


def test_the_operation_inside_quantized_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Conv that is off by four units, between its DequantizeLinear and its QuantizeLinear."""
    vendors.install(monkeypatch, wrong=interpreter(only("c", lambda value: value + np.float32(0.2))))
    fault = bisect_region(bundle_of(quantized(), tmp_path, rules=QUANTIZED), "npu_0")
    assert (fault.op, fault.operations) == ("Conv", ("c",))


def test_indices_must_be_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = "target: npu\ncost_model: dla\ndtype: [float32, int64]\nops:\n  - op: [Abs, ArgMax]\n"
    vendors.install(monkeypatch, wrong=interpreter(only("i", lambda value: value + 1)))
    text = "g (float[2, 4] x) => (int64[2, 1] y) { a = Abs(x) i = ArgMax <axis = 1> (a) y = Neg(i) }"
    bundle = bundle_of(parse(text), tmp_path, rules=rules)
    (region,) = verify_regions(bundle)
    assert not region.within
    assert region.outputs[0].problem == "is not equal, as int64 must be"
    assert region.outputs[0].differing == 1


def test_concluded_quantization_too(tmp_path: Path) -> None:
    """A bundle of lower precision on the reference codegen: all regions right, int8 at their borders."""
    text = """
    g (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
      a = Conv(x, w)  b = Relu(a)  c = Tanh(b)  y = Conv(c, w)
    }"""
    partition(
        parse(text),
        VANILLA,
        output=tmp_path / "b",
        strategy="all-supported",
        precision=Precision(quantize="int8", data="random"),
    )
    found = verify_against(tmp_path / "b", regions=True)
    assert found.passed
    assert {error.measure for error in found.boundary} == {"units"}
    assert {error.dtype for error in found.boundary} == {"int8"}
    assert all(region.outputs for region in verify_regions(open_bundle(tmp_path / "b")))
