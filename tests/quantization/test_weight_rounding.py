"""Weights are rounded by the errors of the sums that they are in, on samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from quantizing import built, quantize, ranges, samples, snr, target, values, weights

from byoc.model import Model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization import _weight_rounding
from byoc.quantization._quantize_in_ranges import DataQuantizer
from byoc.quantization._weight_rounding import WeightedNode, count_large_nodes, descend, round_weights
from byoc.samples import NO_PREPROCESSING

NODES: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "Conv": ([6, 4, 3, 2], [2, 4, 7, 6], {"strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}),
    "grouped Conv": ([6, 2, 3, 3], [1, 4, 5, 6], {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise Conv": ([8, 1, 3, 3], [1, 4, 5, 6], {"group": 4}),
    "ConvTranspose": ([4, 3, 3, 2], [1, 4, 4, 5], {"strides": [2, 1], "group": 2, "dilations": [1, 2]}),
    "Gemm": ([5, 4], [3, 5], {}),
    "transposed Gemm": ([4, 5], [3, 5], {"transB": 1}),
    "MatMul": ([5, 4], [2, 3, 5], {}),
}


@pytest.mark.parametrize("what", NODES)
def test_patches_are_what_weights_are_multiplied_with(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products of weights as rows with all patches are all results of the node."""
    monkeypatch.setattr(_weight_rounding, "_PATCHES", 10_000)
    shape, extents, attributes = NODES[what]
    node = helper.make_node(what.rsplit(maxsplit=1)[-1], ["x", "w"], ["y"], "n", **attributes)
    value, x = weights(1, *shape), weights(2, *extents)
    proto = built([node], {"x": extents}, {"y": []}, {"w": value}).proto
    with without_optimizations():
        expected = np.asarray(run_session(open_session(proto), {"x": x})["y"])
    weighted = WeightedNode(node, tuple(shape))
    rows = weighted.to_rows(value)
    np.testing.assert_array_equal(weighted.from_rows(rows), value)
    assert rows.shape[2] == weighted.inputs
    patches = weighted.take_patches(x, np.random.default_rng(0))
    found = np.matmul(patches, rows.swapaxes(1, 2))  # [groups, patches, outputs of a group]
    if "Conv" in what:
        count, *places = len(x), *expected.shape[2:]
        found = found.reshape(weighted.groups, count, *places, -1)
        found = np.moveaxis(found, (1, 0, -1), (0, 1, 2)).reshape(expected.shape)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def measure_loss(
    one: NDArray[np.float64], other: NDArray[np.float64], products: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.einsum("gmd,gde,gme->gm", one - other, products, one - other)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.sampled_from([3, 5, 140]))
def test_the_error_gets_smaller(seed: int, groups: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    patches = generator.standard_normal((groups, 50, count)) @ generator.standard_normal((count, count))
    products = np.matmul(patches.swapaxes(1, 2), patches) / 50
    exact = generator.uniform(-9, 9, (groups, 4, count))
    start = np.rint(exact)
    found = descend(exact, start, products)
    assert np.array_equal(found, np.rint(found))
    assert found.min() >= start.min()
    assert found.max() <= start.max()
    damped = products + 0.01 * np.einsum("gii->gi", products).mean(1)[:, None, None] * np.eye(count)
    before, after = (measure_loss(exact, each, damped) for each in (start, found))
    assert np.all(after <= before * (1 + 1e-9))


def test_two_equal_inputs_make_up_for_each_other() -> None:
    """Their weights' sum counts alone, 5.8, which the nearest integers miss by 0.8."""
    exact, start = np.array([[[2.4, 3.4], [9.0, 9.0]]]), np.array([[[2.0, 3.0], [9.0, 9.0]]])
    found = descend(exact, start, np.ones((1, 2, 2)))
    assert found[0].sum(axis=1).tolist() == [6.0, 18.0]


def test_what_is_never_seen_stays() -> None:
    start = np.array([[[1.0, 2.0]]])
    assert np.array_equal(descend(start + 0.4, start, np.zeros((1, 2, 2))), start)


def make_model() -> Model:
    """Return convolutions with one scale for weights of other widths."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], "mix"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1"], ["y"], "out", pads=[1, 1, 1, 1]),
    ]
    widths = np.float32([1, 0.3, 0.02, 0.02]).reshape(4, 1, 1, 1)
    stored = {
        "w0": weights(0, 16, 3, 1, 1),
        "b0": weights(1, 16),
        "w1": widths * weights(2, 4, 16, 3, 3),
    }
    return built(nodes, {"x": [1, 3, 12, 12]}, {"y": [1, 4, 12, 12]}, stored)


def measure_narrow_channels(model: Model, quantized: Model, given: Any) -> float:
    """Return how far the channels of small weights are above their errors, in dB."""
    pairs = [[values(each, one)["y"][:, 2:] for each in (model, quantized)] for one in given]
    return snr(*map(np.stack, zip(*pairs, strict=True)))


def test_it_keeps_more_of_a_network() -> None:
    to = target(weights={"dtype": "int8", "symmetric": True, "per_channel": False})
    model = make_model()
    seen, held = samples(model, 12)[:8], samples(model, 12)[8:]
    given = ranges(model, seen)
    plain = quantize(model, [to], given)
    made = round_weights(plain.floats, plain.model, seen)
    assert set(made) == {"w0", "w1"}
    rounded = quantize(model, [to], replace(given, weights=made))
    before, after = (measure_narrow_channels(model, each.model, held) for each in (plain, rounded))
    assert after > before + 2
    again = round_weights(plain.floats, plain.model, seen[::-1])
    assert np.mean(again["w1"] == made["w1"]) > 0.95  # other patches, nearly the same integers


@pytest.mark.parametrize("worse", [False, True])
def test_data_rounds_weights_where_that_is_better(
    worse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    for number, sample in enumerate(samples(model, 8)):
        np.savez(tmp_path / f"{number}.npz", **sample)
    to = target(weights={"dtype": "int8", "symmetric": True, "per_channel": False})
    if worse:
        monkeypatch.setattr(_weight_rounding, "descend", lambda weights, start, _: start + 2)
    found = DataQuantizer([to], tmp_path, NO_PREPROCESSING, "minmax", None).quantize(model)
    assert bool(found.ranges.weights) != worse
    assert any(step.startswith("weights are rounded") for step in found.steps) != worse


def test_nodes_of_many_inputs_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    given = samples(model)
    plain = quantize(model, [target()], ranges(model, given))
    assert count_large_nodes(plain.floats, plain.model) == 0
    monkeypatch.setattr(_weight_rounding, "MAX_INPUTS", 100)
    rounded = set(round_weights(plain.floats, plain.model, given))
    assert rounded == {"w0"}
    count = count_large_nodes(plain.floats, plain.model)
    assert count > 0
    for number, sample in enumerate(given):
        np.savez(tmp_path / f"{number}.npz", **sample)
    found = DataQuantizer([target()], tmp_path, NO_PREPROCESSING, "minmax", None).quantize(model)
    assert found.steps[-1] == (
        f"weights keep the nearest integers where nodes add up over 4,608 products, as {count} do"
    )


def test_samples_are_run_again_where_moments_need_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    given = samples(model)
    plain = quantize(model, [target()], ranges(model, given))
    at_once = round_weights(plain.floats, plain.model, given)
    monkeypatch.setattr(_weight_rounding, "_MEMORY", 1)
    one_by_one = round_weights(plain.floats, plain.model, given)
    assert set(at_once) == set(one_by_one)
    for name, value in at_once.items():
        np.testing.assert_array_equal(value, one_by_one[name])
