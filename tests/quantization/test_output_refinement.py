"""Finer types before an output, how many units and which, and weights rounded by what they add up to."""

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
from onnx.helper import make_node
from quantizing import built, quantize, ranges, samples, snr, target, values, weights

from byoc.model import Model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization import _weight_rounding
from byoc.quantization._quantization_trials import FinerUnits, OutputRefinement, list_rows, merge_units
from byoc.quantization._quantization_variants import (
    CoarseAccuracy,
    OutputAccuracies,
    measure_sign_accuracy,
    measure_size_accuracy,
)
from byoc.quantization._quantize_in_ranges import DataQuantizer
from byoc.quantization._weight_rounding import WeightedNode, count_large_nodes, descend, round_weights
from byoc.samples import NO_PREPROCESSING

SHAPE = [1, 8, 6, 6]


UNITS = {f"c{number}": [f"c{number}"] for number in range(4)}


def chain() -> Model:
    """Return four convolutions one after another, the last of which makes the output."""
    nodes = [make_node("Conv", [f"t{n}", f"w{n}"], [f"t{n + 1}"], f"c{n}") for n in range(4)]
    stored = {f"w{n}": weights(n, 8, 8, 1, 1) for n in range(4)}
    return built(nodes, {"t0": SHAPE}, {"t4": SHAPE}, stored)


def search(
    decibels: dict[tuple[int, int], float],
    has_wide: bool = True,
    seconds: tuple[float, float] = (0.01, 0.002),
) -> tuple[FinerUnits, int]:
    """Return the units that are found before a coarse output, and how many were tried.

    `decibels` are by the number of units in floating point and in 16 bits, 0 for all others; `seconds`
    is what each of these takes more.
    """
    tried = set()

    def measure(finer: FinerUnits) -> OutputAccuracies:
        tried.add(finer)
        of_sizes = decibels.get((len(finer.in_float), len(finer.wide)), 0.0)
        return OutputAccuracies(("t4",), np.ones((1, 1)), {"t4": CoarseAccuracy(of_sizes, 0.0)})

    def predict(finer: FinerUnits) -> float:
        return 1 + len(finer.in_float) * seconds[0] + len(finer.wide) * seconds[1]

    rows = {"t4": list_rows(chain().index, UNITS, "t4")}
    found = OutputRefinement(rows, (), measure, predict, 0.03, has_wide).find()
    return found.get("t4", FinerUnits()), len(tried)


def test_the_last_unit_is_in_floats_where_its_weights_are_too_coarse() -> None:
    """As in a heat map: 16 bits before it help once it is in floats, and are cheaper than floats."""
    heat = {(0, 1): 5.3, (1, 0): 6.7, (0, 2): 8.9, (1, 1): 17.7, (2, 0): 17.8, (1, 2): 17.9, (2, 1): 18}
    found, tried = search(heat)
    assert (found.in_float, found.wide) == (("c3",), ("c2",))
    assert tried < 9


def test_a_detour_by_16_bits_is_found_again() -> None:
    """Where they are the better first step, the last unit may still go to floats."""
    found, _ = search({(0, 1): 6.0, (1, 0): 1.0, (0, 2): 9.0, (1, 1): 20.0})
    assert (found.in_float, found.wide) == (("c3",), ("c2",))


def test_only_16_bits_are_taken_where_these_are_enough() -> None:
    found, _ = search({(0, 1): 20.0, (1, 0): 20.2, (0, 2): 20.2})
    assert (found.in_float, found.wide) == ((), ("c3",))


def test_without_16_bits_all_are_in_floats() -> None:
    found, tried = search({(1, 0): 5.0, (2, 0): 9.0, (3, 0): 9.2}, has_wide=False)
    assert (found.in_float, found.wide) == (("c3", "c2"), ())
    assert tried == 4


def test_nothing_is_finer_where_it_takes_too_long() -> None:
    assert search({(1, 0): 9.0}, seconds=(0.3, 0.3))[0] == FinerUnits()
    assert search({(1, 0): 11.0}, seconds=(0.3, 0.3))[0].in_float == ("c3",)


def choose_outputs(kept: tuple[str, ...] = (), **seconds: float) -> tuple[set[str], int]:
    """Return those of three outputs whose tail is finer, and how many variants were tried.

    Noise falls from 0.1 to 0.001 in `a`, from 0.01 to 0.001 in `b`, and stays in `c`; `seconds` is what
    the tail of each takes more.
    """
    noise = {"a": (0.1, 0.001), "b": (0.01, 0.001), "c": (0.001, 0.001)}
    tried = set()

    def measure(finer: FinerUnits) -> OutputAccuracies:
        tried.add(finer)
        row = [each[f"tail_{name}" in finer.in_float] for name, each in noise.items()]
        return OutputAccuracies(tuple(noise), np.array([row, row]), {})

    def predict(finer: FinerUnits) -> float:
        return 1 + sum(seconds[name] for name in noise if f"tail_{name}" in finer.in_float)

    rows = {name: [(f"tail_{name}", f"view_{name}")] for name in noise}
    found = OutputRefinement(rows, kept, measure, predict, 0.03, has_wide=False).find()
    return set(found), len(tried)


def test_tails_are_finer_before_the_outputs_that_gain() -> None:
    """One trial measures all: what an output gains is seen in its own noise."""
    assert choose_outputs(a=0.01, b=0.002, c=0.0) == ({"a", "b"}, 2)


def test_tails_of_all_outputs_take_three_per_cent_at_most() -> None:
    assert choose_outputs(a=0.025, b=0.006, c=0.0)[0] == {"a"}
    assert choose_outputs(a=0.035, b=0.006, c=0.0)[0] == {"b"}


def test_a_tail_that_is_kept_in_floats_gains_nothing_and_takes_no_share() -> None:
    assert choose_outputs(("c",), a=0.02, b=0.002, c=0.5)[0] == {"a", "b", "c"}


def test_accuracies_of_an_output_are_exchanged_alone() -> None:
    one = OutputAccuracies(("a", "b"), np.array([[0.1, 0.01]]), {"a": CoarseAccuracy(5.0, 1.0)})
    other = OutputAccuracies(("a", "b"), np.array([[0.001, 0.002]]), {"a": CoarseAccuracy(15.0, 2.0)})
    np.testing.assert_array_equal(one.replace_output("b", other).noise, [[0.1, 0.002]])
    assert one.replace_output("b", other).rate("a") == 6.0
    assert one.replace_output("a", other).rate("a") == 17.0
    assert one.score == pytest.approx((10 + 15) / 2)
    assert one.is_poor("a")
    assert not one.is_poor("b")
    assert not other.is_poor("a")


def test_units_that_several_outputs_share_are_in_floats_where_one_wants_it() -> None:
    parts = [FinerUnits(("a",), ("b",)), FinerUnits(("b", "c"), ("d",))]
    assert merge_units(parts) == FinerUnits(("a", "b", "c"), ("d",))


def test_units_that_a_target_refuses_in_16_bits_are_in_floating_point() -> None:
    assert FinerUnits(("a",), ("b", "c")).keep_quantized(["c", "d"]) == FinerUnits(("a", "b"), ("c",))


def test_what_is_done_is_said() -> None:
    assert FinerUnits(("a",), ("b", "c")).describe(["y"]) == (
        "units before 'y': 1 left in floating point, 2 computed in 16 bits"
    )
    assert FinerUnits(("a",)).describe(["v", "w", "x", "y", "z"]) == (
        "units before 'v', 'w', 'x' and 2 more outputs: 1 left in floating point"
    )


def test_signs_count_in_the_channel_that_keeps_them_worst() -> None:
    generator = np.random.default_rng(0)
    signal = generator.normal(0, 1, (1, 3, 20, 20))
    signal[0, 0] -= signal[0, 0].min()  # one sign alone: it does not count
    actual = signal.copy()
    above = np.flatnonzero(signal[0, 2] > 0)
    actual[0, 2].flat[above[:20]] *= -1
    kept = 2 * (len(above) - 20) if len(above) <= 200 else 2 * (400 - len(above))
    expected = -10 * np.log10(20 / (kept + 20))
    assert measure_sign_accuracy("y", [{"y": signal}], [{"y": actual}]) == pytest.approx(expected)
    assert measure_sign_accuracy("y", [{"y": signal}], [{"y": signal}]) == 30
    flat = signal[0, 2].ravel()
    others = actual[0, 2].ravel()
    assert measure_sign_accuracy("y", [{"y": flat}], [{"y": others}]) == pytest.approx(expected)


def test_errors_count_by_the_size_of_values() -> None:
    sizes = np.concatenate([np.geomspace(1, 1e4, 500), -np.geomspace(1, 1e4, 500)])
    near = float(np.quantile(np.abs(sizes), 0.1))
    of_share = measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes * 2}])
    of_step = measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes + 100 * near}])
    assert of_step < 5 < of_share < 30
    assert measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes}]) == 30
    assert measure_size_accuracy("y", [{"y": 0 * sizes}], [{"y": 0 * sizes}]) == 30


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


@pytest.mark.parametrize("largest", [1e18, 3e19, 1e30])
def test_inputs_whose_squares_are_not_finite_leave_the_nearest_integers(largest: float) -> None:
    """The first node reads them; what it makes is as large, too."""
    model = make_model()
    given = [{"x": np.float32(largest) * each["x"]} for each in samples(model)]
    plain = quantize(model, [target()], ranges(model, given))
    made = round_weights(plain.floats, plain.model, given)
    assert all(np.isfinite(each).all() for each in made.values())
    assert bool(made) == (largest < 1e19)


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
