"""Equalization and groups of channels keep what a network computes, and make it accurate in integers."""

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
from onnx.helper import get_node_attr_value, make_node
from quantizing import OPS, built, quantize, ranges, samples, snr, target, values, weights

from byoc.model import Model
from byoc.quantization._channel_classes import find_channel_classes, measure_channels
from byoc.quantization._channel_groups import GroupedModel, find_channel_groups
from byoc.quantization._equalization import equalize
from byoc.quantization._quantize_in_ranges import DataQuantizer
from byoc.samples import NO_PREPROCESSING

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


CHANNELS = 32


SPREAD_BY_GROUPS = (
    np.random.default_rng(7).permutation(np.geomspace(1.0, 100.0, CHANNELS)).astype(np.float32)
)


"""The ranges of the channels that the first depthwise convolution reads."""


def make_grouped_network(
    before: Sequence[NodeProto] = (), read: str = "a", after: Sequence[NodeProto] = (), last: str = "e"
) -> Model:
    """Return two depthwise convolutions, each of what a convolution and a HardSwish make."""
    nodes = [
        make_node("Conv", ["x", "w0"], ["c"], "first"),
        make_node("HardSwish", ["c"], ["a"], "activation"),
        *before,
        make_node("Conv", [read, "w1", "b1"], ["d"], "depthwise", group=CHANNELS, pads=[1, 1, 1, 1]),
        make_node("HardSwish", ["d"], ["e"], "behind"),
        *after,
        make_node("Conv", [last, "w2", "b2"], ["f"], "second"),
        make_node("HardSwish", ["f"], ["g"], "activation2"),
        make_node("Conv", ["g", "w3"], ["h"], "depthwise2", group=16),
        make_node("Conv", ["h", "w4"], ["y"], "last"),
    ]
    stored = {
        "w0": weights(0, CHANNELS, 3, 1, 1) * SPREAD_BY_GROUPS.reshape(-1, 1, 1, 1),
        "w1": weights(1, CHANNELS, 1, 3, 3) / SPREAD_BY_GROUPS.reshape(-1, 1, 1, 1),
        "b1": weights(2, CHANNELS),
        "w2": weights(3, 16, CHANNELS, 1, 1) * np.geomspace(1, 20, 16).reshape(-1, 1, 1, 1).astype("f4"),
        "b2": weights(4, 16),
        "w3": weights(5, 16, 1, 1, 1),
        "w4": weights(6, 4, 16, 1, 1),
        "k": np.asarray([0.5], np.float32),
    }
    return built(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, stored)


def list_groups(model: Model, name: str) -> list[int]:
    """Return how many channels each group of a depthwise convolution has."""
    nodes = [node for node in model.index.nodes if node.name.startswith(f"{name}_group")]
    return [get_node_attr_value(node, "group") for node in nodes]


def predict_groups(grouped: GroupedModel) -> float:
    """Return seconds, 10 without groups and 1 for each group more."""
    counts = [len(list_groups(grouped.model, name)) for name in ("depthwise", "depthwise2")]
    return 10.0 + sum(max(count - 1, 0) for count in counts)


@pytest.mark.parametrize(("most", "sizes"), [(0.1, (2, 0)), (1.0, (3, 2))])
def test_groups_compute_the_same_with_less_noise(most: float, sizes: tuple[int, int]) -> None:
    model = make_grouped_network([make_node("Add", ["a", "k"], ["s"], "add")], "s")
    given = samples(model, 8)
    chosen = find_channel_groups(model, given, ()).choose(predict_groups, most)
    found = chosen.model
    groups = list_groups(found, "depthwise"), list_groups(found, "depthwise2")
    assert tuple(map(len, groups)) == sizes and chosen.count == sum(map(bool, sizes))
    assert all(sum(each) in (0, CHANNELS, 16) and min(each, default=4) >= 4 for each in groups)
    assert {chosen.sources[f"e_group{number + 1}"] for number in range(sizes[0])} == {"e"}
    expected, actual = values(model, given[0])["y"], values(found, given[0])["y"]
    assert np.abs(expected - actual).max() <= 2e-6 * np.abs(expected).max()
    noise = []
    for one in (model, found):
        made = quantize(one, [target(ops=[*OPS, "HardSwish"])], ranges(one, given)).model
        noise.append(snr(expected, values(made, given[0])["y"]))
    assert noise[1] > noise[0] + (6 if sizes[1] else 3)


def test_groups_are_those_that_lower_the_noise_most_for_their_time() -> None:
    """A step that is dear is left for one elsewhere, and what does not add up is taken back."""
    model = make_grouped_network()
    groups = find_channel_groups(model, samples(model, 8), ())

    def predict(grouped: GroupedModel) -> float:
        first, second = (list_groups(grouped.model, name) for name in ("depthwise", "depthwise2"))
        return 10.0 + (5.0 if first else 0.0) + (0.2 if second else 0.0)

    assert not list_groups(groups.choose(predict, 0.03).model, "depthwise")
    assert sum(list_groups(groups.choose(predict, 0.03).model, "depthwise2")) == 16
    assert groups.choose(predict, 0.01).model is model

    def predict_both(grouped: GroupedModel) -> float:
        return predict(grouped) + (1.0 if grouped.count == 2 else 0.0)

    assert groups.choose(predict_both, 0.52).count == 1
    assert groups.choose(predict_both, 0.62).count == 2


def test_what_stays_in_one_group() -> None:
    model = make_grouped_network()
    given = samples(model, 2)
    assert len(find_channel_groups(model, given, ()).chains) == 2
    assert len(find_channel_groups(model, given, {"a"}).chains) == 1, "a has a scale for each channel"
    pool = [make_node("GlobalAveragePool", ["e"], ["p"]), make_node("Mul", ["e", "p"], ["m"], "gate")]
    gated = make_grouped_network(after=pool, last="m")
    assert len(find_channel_groups(gated, given, ()).chains) == 1, "a gate reads e in its order"
    branch = [make_node("Add", ["a", "a"], ["s"], "twice")]
    assert len(find_channel_groups(make_grouped_network(branch, "s"), given, ()).chains) == 1


@pytest.mark.parametrize("slower", [1.0, 1.05])
def test_groups_are_kept_unless_they_take_too_long(slower: float) -> None:
    model = make_grouped_network()
    data = samples(model, 8)

    def predict(made: Model) -> float:
        return slower if any("_group" in node.name for node in made.index.nodes) else 1.0

    to = target(ops=[*OPS, "HardSwish"])
    found = DataQuantizer([to], data, NO_PREPROCESSING, "minmax", None, predict).quantize(model)
    has_groups = bool(list_groups(found.floats, "depthwise"))
    assert has_groups == (slower == 1)
    assert has_groups == any("groups with scales of their own" in step for step in found.steps)
