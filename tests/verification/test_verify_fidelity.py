"""A quantized network keeps its distance from the float model, as onnxruntime does with its integers."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import planted_layers, vendors
from onnx import helper, numpy_helper

import byoc
from byoc.verification import Verification

_SHAPE = (1, 6, 10, 10)
pytestmark = pytest.mark.processor
_DEPTH = 3


def make_model() -> onnx.ModelProto:
    """Return float convolutions with Relu, one after the other, whose weights int8 represents."""
    random = np.random.default_rng(4)
    nodes, tensors = [], []
    for i in range(_DEPTH):
        weight = random.integers(-127, 128, (6, 6, 3, 3)).astype(np.float32) / 400
        weight[:, 0, 0, 0] = np.float32(127 / 400)
        tensors.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes += [
            helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"x{i + 1}"], f"relu{i}"),
        ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, _SHAPE)
        for name in ("x0", f"x{_DEPTH}")
    ]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model, samples, and a bundle of it in int8 for a rough machine."""
    folder = tmp_path_factory.mktemp("fidelity")
    data = folder / "data"
    data.mkdir()
    for seed in range(2):
        given = np.random.default_rng(seed).normal(size=_SHAPE).astype(np.float32)
        np.savez(data / f"{seed}.npz", x0=given)
    onnx.save(make_model(), folder / "m.onnx")
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, rough=planted_layers.RoughMachine)
        byoc.partition(
            folder / "m.onnx",
            "dla",
            output=folder / "b",
            codegen="rough",
            cache=False,
            verify=False,
            strategy="all-supported",
            precision=byoc.Precision(quantize="int8", data=data, method="minmax"),
        )
    return folder


def verify(folder: Path, patch: pytest.MonkeyPatch, deviation: float) -> Verification:
    vendors.install(patch, rough=planted_layers.RoughMachine)
    patch.setattr(planted_layers.RoughMachine, "fault", None)
    patch.setattr(planted_layers.RoughMachine, "deviation", deviation)
    return byoc.verify(folder / "b", folder / "m.onnx", inputs=folder / "data")


def test_a_machine_that_rounds_a_little_otherwise_keeps_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify(folder, monkeypatch, 0.03)
    (output,) = found.outputs
    assert found.passed
    assert not output.is_tolerated
    assert output.fidelity is not None
    assert output.fidelity.signal_to_noise >= output.fidelity.reference - 1
    assert output.fidelity.reference > 20


def test_a_loss_is_refused_though_each_layer_is_within_one_unit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify(folder, monkeypatch, 0.95)
    (region,), (output,) = found.regions, found.outputs
    assert region.within
    assert region.layers is not None
    assert {error.largest for error in region.layers.errors} == {1.0}
    assert output.fidelity is not None
    assert output.fidelity.signal_to_noise < output.fidelity.reference - 2
    assert not output.within
    assert not found.passed
    assert "dB against the float model, onnxruntime" in output.error_phrase


def test_a_limit_of_the_user_holds_instead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, rough=planted_layers.RoughMachine)
    monkeypatch.setattr(planted_layers.RoughMachine, "deviation", 0.95)
    allowed = byoc.Thresholds(relative={"float32": 0.5}, asked=frozenset({"float32"}))
    found = byoc.verify(folder / "b", folder / "m.onnx", inputs=folder / "data", thresholds=allowed)
    assert found.outputs[0].within
    assert found.outputs[0].fidelity is None
