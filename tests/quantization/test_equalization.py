"""Equalization keeps what a network computes, and makes depthwise convolutions accurate in integers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto
from onnx.helper import make_node
from quantizing import built, quantize, ranges, samples, snr, target, values, weights

from byoc.model import Model
from byoc.quantization._calibrators import measure_channels
from byoc.quantization._channel_classes import find_channel_classes
from byoc.quantization._equalization import equalize

SPREAD = np.geomspace(1.0, 100.0, 8).astype(np.float32)
"""The ranges of the channels that a depthwise convolution reads."""


def make_network(
    activation: str, after: Sequence[NodeProto] = (), last: str = "d", opset: int = 17
) -> Model:
    """Return a pointwise convolution of channels of very different ranges, then a depthwise one."""
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "pointwise"),
        make_node(activation, ["c"], ["a"], "activation"),
        make_node("Conv", ["a", "w1", "b1"], ["d"], "depthwise", group=8, pads=[1, 1, 1, 1]),
        *after,
        make_node("Conv", [last, "w2"], ["y"], "last"),
    ]
    stored: dict[str, NDArray[Any]] = {
        "w0": weights(0, 8, 3, 1, 1) * SPREAD.reshape(-1, 1, 1, 1),
        "b0": weights(1, 8) * SPREAD,
        "w1": weights(2, 8, 1, 3, 3) / SPREAD.reshape(-1, 1, 1, 1),
        "b1": weights(3, 8),
        "w2": weights(4, 4, 8, 1, 1),
        "k": np.asarray([0.5], np.float32),
    }
    return built(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, stored, opset)


def check_same(model: Model, other: Model, inputs: Mapping[str, Any]) -> None:
    expected, actual = values(model, inputs)["y"], values(other, inputs)["y"]
    assert np.abs(expected - actual).max() <= 2e-6 * np.abs(expected).max()


def test_depthwise_inputs_get_the_levels_of_the_widest_channel() -> None:
    model = make_network("Relu")
    given = samples(model, 8)
    found = equalize(model, given)
    check_same(model, found, given[0])
    reach = np.max([values(found, one)["a"].max(axis=(0, 2, 3)) for one in given], axis=0)
    np.testing.assert_allclose(reach, reach.max(), rtol=1e-4)
    to = target()
    noise = []
    for one in (model, found):
        made = quantize(one, [to], ranges(one, given)).model
        noise.append(snr(values(model, given[0])["y"], values(made, given[0])["y"]))
    assert noise[1] > noise[0] + 6


@pytest.mark.parametrize("activation", ["Sigmoid", "HardSwish", "Softplus"])
def test_what_keeps_no_factor_fixes_channels(activation: str) -> None:
    model = make_network(activation)
    classes = find_channel_classes(model.index)
    assert classes.fixed[classes.of_tensor["c"]].all()
    assert classes.fixed[classes.of_tensor["a"]].all()
    assert classes.fixed[classes.of_tensor["x"]].all()
    assert not classes.fixed[classes.of_tensor["d"]].any()


BETWEEN: Mapping[str, tuple[list[NodeProto], str]] = {
    "residual": ([make_node("Add", ["d", "a"], ["s"], "add")], "s"),
    "pool": ([make_node("MaxPool", ["d"], ["s"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], "s"),
    "gate": (
        [make_node("Sigmoid", ["x2"], ["g"], "sigmoid"), make_node("Mul", ["d", "g"], ["s"], "mul")],
        "s",
    ),
    "constant": ([make_node("Mul", ["d", "k"], ["s"], "mul")], "s"),
    "concat": (
        [
            make_node("Split", ["d"], ["d0", "d1"], "split", axis=1),
            make_node("Relu", ["d0"], ["r0"], "relu"),
            make_node("LeakyRelu", ["d1"], ["r1"], "leaky"),
            make_node("Concat", ["r1", "r0"], ["s"], "concat", axis=1),
        ],
        "s",
    ),
    "difference of a constant": ([make_node("Sub", ["d", "k"], ["s"], "sub")], "s"),
}


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(sorted(BETWEEN)), st.sampled_from(["Relu", "LeakyRelu", "Identity"]))
def test_results_stay(between: str, activation: str) -> None:
    nodes, last = BETWEEN[between]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    if between == "gate":
        nodes = [make_node("GlobalAveragePool", ["a"], ["x2"], "mean"), *nodes]
    model = make_network(activation, nodes, last)
    given = samples(model, 4)
    found = equalize(model, given)
    assert found is not model
    check_same(model, found, given[3])


@pytest.mark.parametrize(
    ("nodes", "is_fixed"),
    [
        (
            [make_node("Transpose", ["d"], ["t"], perm=[0, 1, 3, 2]), make_node("Relu", ["t"], ["s"])],
            True,
        ),
        (BETWEEN["residual"][0], False),
        (BETWEEN["difference of a constant"][0], True),
        ([make_node("Div", ["k", "d"], ["s"], "div")], True),
    ],
)
def test_channels_of_a_depthwise_result(nodes: list[NodeProto], is_fixed: bool) -> None:
    classes = find_channel_classes(make_network("Relu", nodes, "s").index)
    assert classes.fixed[classes.of_tensor["d"]].all() == is_fixed
    assert classes.fixed[classes.of_tensor["d"]].any() == is_fixed


@pytest.mark.parametrize("opset", [13, 18])
def test_statistics_are_those_of_each_channel_without_what_is_not_finite(opset: int) -> None:
    model = make_network("Relu", opset=opset)
    given = samples(model, 3)
    found = measure_channels(model, ["c"], given, "test")["c"]
    seen = np.stack([values(model, one)["c"][0] for one in given])
    np.testing.assert_allclose(found.low, seen.min(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found.high, seen.max(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found.mean, seen.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.power, (seen**2).mean(axis=(0, 2, 3)), rtol=1e-4)
    given[1]["x"][:] = np.nan
    rest = measure_channels(model, ["c"], given, "test")["c"]
    np.testing.assert_allclose(rest.high, seen[[0, 2]].max(axis=(0, 2, 3)), rtol=1e-6)
    lost = measure_channels(model, ["c"], given[1:2], "test")["c"]
    assert np.all(lost.reach == 0)
