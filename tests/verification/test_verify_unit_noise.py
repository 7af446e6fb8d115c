"""Regions of quantized layers may be off by what one unit in each layer comes to, and by no more."""

from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification import DEFAULT_THRESHOLDS, NoiseGauge, OutputError, read_thresholds

CHANNELS = 16
SHAPE = (1, CHANNELS, 12, 12)
INPUTS = {"q0": np.random.default_rng(0).integers(-128, 128, SHAPE).astype(np.int8)}
SHARE, LARGEST_SHARE = 1 / 8, 1 / 2
"""Shares of a layer's results that are a unit off: where it was compared, and where it was not."""


def make_layers(depth: int) -> ModelProto:
    """Return convolutions of int8 one after another, each of which keeps the size of the signal."""
    random = np.random.default_rng(1)
    stored = {"s": np.float32(0.02), "z": np.int8(0), "ws": np.float32(0.01)}
    nodes = []
    for i in range(depth):
        weight = random.normal(scale=100 / np.sqrt(9 * CHANNELS), size=(CHANNELS, CHANNELS, 3, 3))
        stored[f"w{i}"] = np.clip(np.rint(weight), -127, 127).astype(np.int8)
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", "ws", "z"], [f"v{i}"]),
            helper.make_node("Conv", [f"d{i}", f"v{i}"], [f"c{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("QuantizeLinear", [f"c{i}", "s", "z"], [f"q{i + 1}"]),
        ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT8, SHAPE) for name in ("q0", f"q{depth}")
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: ModelProto) -> dict[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), INPUTS)


def run_layers(model: ModelProto, share: float, seed: int = 5, step: int = 1) -> dict[str, Any]:
    """Run a model layer by layer, and move a share of each layer's results by some units."""
    random = np.random.default_rng(seed)
    depth = len(model.graph.node) // 4
    value = INPUTS["q0"]
    for i in range(depth):
        single = deepcopy(model)
        del single.graph.node[:]
        single.graph.node.extend(model.graph.node[4 * i : 4 * i + 4])
        single.graph.input[0].name, single.graph.output[0].name = f"q{i}", f"q{i + 1}"
        with without_optimizations():
            (made,) = run_session(open_session(single), {f"q{i}": value}).values()
        moves = (random.random(SHAPE) < share) * random.choice([-step, step], SHAPE)
        value = np.clip(made.astype(int) + moves, -128, 127).astype(np.int8)
    return {f"q{depth}": value}


def compare(
    model: ModelProto,
    actual: dict[str, Any],
    thresholds: Any = DEFAULT_THRESHOLDS,
    share: float = SHARE,
) -> OutputError:
    gauge = NoiseGauge(model, None, INPUTS, run(model), share=share)
    (error,) = gauge.compare(actual, thresholds, {model.graph.output[0].name})
    return error


@pytest.mark.parametrize("depth", [2, 4, 8])
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_layers_that_are_each_one_unit_off_are_right(depth: int, share: float) -> None:
    model = make_layers(depth)
    error = compare(model, run_layers(model, share))
    assert error.absolute > 1
    assert error.within
    assert error.noise_source in {
        "the layers before, one unit off", "rounding the activations to integers"
    }  # fmt: skip


def test_more_is_allowed_in_deeper_regions() -> None:
    allowed = [compare(model, run_layers(model, 0.1)).noise for model in map(make_layers, (2, 4, 8))]
    assert all(each is not None for each in allowed)
    assert allowed == sorted(allowed, key=float)  # type: ignore[arg-type]
    assert allowed[0] != allowed[-1]


def test_one_layer_alone_may_be_off_by_one_unit() -> None:
    model = make_layers(1)
    assert compare(model, run_layers(model, 0.5)).within
    assert not compare(model, run_layers(model, 0.01, step=2)).within


@pytest.mark.parametrize("depth", [2, 8])
def test_layers_that_are_off_everywhere_are_wrong(depth: int) -> None:
    model = make_layers(depth)
    assert not compare(model, run_layers(model, 0.7)).within


@pytest.mark.parametrize("depth", [2, 4, 16])
def test_layers_that_nobody_compared_may_be_off_in_half_of_their_results(depth: int) -> None:
    model = make_layers(depth)
    right = run_layers(model, 0.45)
    assert not compare(model, right).within
    found = compare(model, right, share=LARGEST_SHARE)
    assert found.within
    assert f"{found.noise:g} units is the noise of the layers before, up to half" in found.error_phrase
    assert not compare(model, run_layers(model, 0.8), share=LARGEST_SHARE).within


@pytest.mark.parametrize("share", [SHARE, LARGEST_SHARE])
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("fault", ["block", "scale", "channel", "zero"])
def test_planted_faults_are_errors(fault: str, depth: int, share: float) -> None:
    model = make_layers(depth)
    wrong = deepcopy(model)
    for tensor in wrong.graph.initializer:
        if tensor.name == f"w{depth // 2}" and fault in {"block", "channel"}:
            value = numpy_helper.to_array(tensor).copy()
            value[: 4 if fault == "block" else 1, : 4 if fault == "block" else CHANNELS] = 0
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        if tensor.name == "ws" and fault == "scale":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(0.0105).reshape(()), "ws"))
    made = run(wrong)
    if fault == "zero":
        made = {name: np.zeros_like(value) for name, value in made.items()}
    assert not compare(model, made, share=share).within


def test_a_limit_that_is_asked_for_holds() -> None:
    model = make_layers(4)
    assert not compare(model, run_layers(model, 0.1), read_thresholds({"quantized": "1"})).within
