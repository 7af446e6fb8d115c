"""With samples at hand biases are corrected, ranges fixed, and tails left in float where that helps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper, numpy_helper
from onnx.helper import make_node
from quantizing import built, form, network, quantize, ranges, samples, snr, target, values, weights

from byoc.errors import InputError
from byoc.model import Model, prepare_model
from byoc.quantization import (
    Precision,
    Range,
    Ranges,
    _quantization_trials,
    _quantize_model,
    calibrate,
    choose_precision,
)
from byoc.quantization._accuracy_measures import find_logits, measure_noise_by_sample, run_with_logits
from byoc.quantization._biases import ChannelMeans, measure_bias_shifts
from byoc.quantization._equalization import count_usual_steps, fix_ranges
from byoc.quantization._precision import EFFORTS
from byoc.quantization._prepare_model import find_head_units, find_tail_units
from byoc.quantization._quantization_trials import QuantizationTrials, QuantizedOnData
from byoc.quantization._quantization_variants import (
    OutputAccuracies,
    QuantizationVariant,
    VariantMaker,
    measure_outputs,
    measure_size_accuracy,
)
from byoc.quantization._quantize_in_ranges import DataQuantizer
from byoc.quantization._quantize_model import prepare_floats
from byoc.samples import NO_PREPROCESSING


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of eight samples for `network` and `make_detector`."""
    for number, sample in enumerate(samples(network(), 8)):
        np.savez(tmp_path / f"{number}.npz", **{"x": np.abs(sample["x"])})
    return tmp_path


def read(folder: Path) -> list[dict[str, Any]]:
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def read_stored(model: Model) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in model.proto.graph.initializer}


def make_detector() -> Model:
    """Return a convolution behind which boxes and small scores are concatenated."""
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "conv"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Conv", ["r", "w1", "b1"], ["box"], "boxes"),
        make_node("Conv", ["r", "w2", "b1"], ["logit"], "logits"),
        make_node("Sigmoid", ["logit"], ["score"], "scores"),
        make_node("Concat", ["box", "score"], ["y"], "join", axis=1),
    ]
    stored = {
        "w0": weights(0, 8, 3, 1, 1),
        "b0": weights(1, 8),
        "w1": 300 * weights(2, 4, 8, 1, 1),
        "w2": weights(3, 4, 8, 1, 1),
        "b1": weights(4, 4),
    }
    return built(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]}, stored)


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(0, 1000))
def test_shifts_are_the_mean_errors_of_pointwise_convolutions(seed: int) -> None:
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Conv", ["r", "w1", "b0"], ["y"], "last", group=4),
    ]
    stored = {"w0": weights(seed, 8, 3, 1, 1), "b0": weights(1, 8), "w1": weights(seed + 1, 8, 2, 1, 1)}
    model = built(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]}, stored)
    given = samples(model, 2)
    to = target()
    floats = prepare_floats(model, [to])
    made = quantize(floats, [to], ranges(model, given[:1]))
    found = measure_bias_shifts(floats, made.model, ChannelMeans(given))
    assert sorted(found) == ["c", "y"]
    rounded = {name: values(made.model, given[0])[name] for name in ("x_dq", "w0_dq")}
    assert rounded["w0_dq"].shape == (8, 3, 1, 1)
    errors = []
    for one in given:
        x = values(made.model, one)["x_dq"]
        exact = np.einsum("oc,bchw->bohw", stored["w0"][:, :, 0, 0], one["x"])
        errors.append(np.einsum("oc,bchw->bohw", rounded["w0_dq"][:, :, 0, 0], x) - exact)
    np.testing.assert_allclose(found["c"], np.mean(errors, axis=(0, 1, 3, 4)), atol=1e-5)


def test_a_corrected_bias_has_no_mean_error(folder: Path) -> None:
    model, given, to = network(), read(folder), target()
    floats = prepare_floats(model, [to])
    found = ranges(floats, given)
    made = quantize(floats, [to], found).model
    shifts = measure_bias_shifts(floats, made, ChannelMeans(given))
    assert "c0" in shifts
    assert "c2" not in shifts, "it has no bias"
    corrected = quantize(floats, [to], type(found)(**{**vars(found), "shifts": shifts})).model
    means = [
        abs(
            np.mean(
                [values(one, each)["r0"] - values(floats, each)["r0"] for each in given], (0, 1, 3, 4)
            )
        )
        for one in (made, corrected)
    ]
    assert means[1].mean() < means[0].mean()


def test_operators_fix_ranges_that_were_measured_and_none_that_was_given() -> None:
    index = make_detector().index
    measured = ranges(make_detector())
    fixed = fix_ranges(index, measured)
    assert fixed.tensors["score"] == Range(0.0, 1.0)
    assert fixed.tensors["box"] == measured.tensors["box"]
    without = type(measured)(**{**vars(measured), "tensors": {"box": measured.tensors["box"]}})
    assert fix_ranges(index, without).tensors == without.tensors


def test_the_tail_is_what_no_linear_operator_follows() -> None:
    model = make_detector()
    ops = ["Conv", "Relu", "Sigmoid", "Concat"]
    units = quantize(model, [target(ops=ops)], ranges(model)).units
    assert find_tail_units(model.index, units) == ("scores", "join")
    assert (
        find_tail_units(network().index, quantize(network(), [target()], ranges(network())).units) == ()
    )


def test_the_head_is_what_no_linear_operator_precedes() -> None:
    nodes = [
        make_node("Mul", ["x", "k"], ["m"], "scale"),
        make_node("Add", ["m", "k"], ["a"], "shift"),
        make_node("Conv", ["a", "w"], ["c"], "conv"),
        make_node("Add", ["c", "a"], ["y"], "join"),
    ]
    stored = {"k": np.float32([[[2.0]], [[3.0]], [[4.0]]]), "w": weights(0, 3, 3, 1, 1)}
    model = built(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 3, 4, 4]}, stored)
    units = quantize(model, [target()], ranges(model)).units
    assert find_head_units(model.index, units) == ("scale", "shift")
    assert find_head_units(make_detector().index, {"relu": ("conv", "relu")}) == ()


def test_a_concat_of_boxes_and_scores_is_left_in_float(folder: Path) -> None:
    to = target(ops=["Conv", "Relu", "Sigmoid", "Concat"])
    found = DataQuantizer([to], folder, NO_PREPROCESSING, "minmax", None).quantize(make_detector())
    assert set(found.in_float) == {"scores", "join"}
    assert set(found.quantized.units) == {"relu", "boxes", "logits"}
    assert found.steps[-2].startswith("units before 'y': 2 left in floating point; 'join' leaves ")
    assert found.steps[-2].endswith(" of 255 steps to 'score'")
    plain = quantize(make_detector(), [to], found.ranges).model
    given = read(folder)[0]
    expected = values(make_detector(), given)["y"][:, 4:]
    assert snr(expected, values(plain, given)["y"][:, 4:]) < 15
    assert snr(expected, values(found.quantized.model, given)["y"][:, 4:]) > 30


def test_given_ranges_leave_a_concat_of_boxes_and_scores_in_float(folder: Path) -> None:
    """It said nothing: the scores had one value left, and the run was verified."""
    to = target(ops=["Conv", "Relu", "Sigmoid", "Concat"])
    wanted = Precision("int8", calibration=calibrate(make_detector(), read(folder)))
    found = choose_precision(make_detector(), [to], wanted)
    assert found.in_float == ("join",)
    assert set(found.units) == {"relu", "boxes", "logits", "scores"}
    (note,) = [each.text for each in found.notes if "steps" in each.text]
    assert note == "'join' leaves 0 of 255 steps to 'score', and is left in floating point"
    given = read(folder)[0]
    expected = values(make_detector(), given)["y"][:, 4:]
    assert snr(expected, values(found.model, given)["y"][:, 4:]) > 30


def test_a_concat_before_a_convolution_is_quantized_in_any_case(folder: Path) -> None:
    """A product of what is joined weighs the small values with the large ones."""
    known = [make_node("Conv", ["y", "w3"], ["z"], "last")]
    model = built(
        [*make_detector().index.nodes, *known],
        {"x": [1, 3, 8, 8]},
        {"z": [1, 2, 8, 8]},
        {**read_stored(make_detector()), "w3": weights(5, 2, 8, 1, 1)},
    )
    to = target(ops=["Conv", "Relu", "Sigmoid", "Concat"])
    wanted = Precision("int8", calibration=calibrate(model, read(folder)))
    assert choose_precision(model, [to], wanted).in_float == ()


def make_heat_map(*more: str) -> Model:
    """Return two convolutions, one of whose 24 results is 400 times as large, and `more` behind them."""
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "conv"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Conv", ["r", "w1", "b1"], ["t0"], "heat"),
        *(make_node(op, [f"t{i}"], [f"t{i + 1}"], op.lower()) for i, op in enumerate(more)),
    ]
    last = weights(2, 24, 8, 1, 1)
    last[3] *= 400
    stored = {"w0": weights(0, 8, 3, 1, 1), "b0": weights(1, 8), "w1": last, "b1": weights(4, 24)}
    shape = [1, 24, 8, 8] if "Transpose" not in more else [8, 8, 24, 1]
    return built(nodes, {"x": [1, 3, 8, 8]}, {f"t{len(more)}": shape}, stored)


@pytest.mark.parametrize("more", [(), ("Neg",), ("Transpose",)])
def test_what_makes_an_output_of_few_steps_is_left_in_float(folder: Path, more: tuple[str, ...]) -> None:
    def predict(model: Model) -> float:
        return 9.0 if any("w0" in node.input for node in model.index.nodes) else 1.0

    model, to = make_heat_map(*more), target(ops=["Conv", "Relu", "Transpose"])
    found = DataQuantizer([to], folder, NO_PREPROCESSING, "minmax", None, predict).quantize(model)
    assert set(found.in_float) == {"heat"} | ({"transpose"} & {each.lower() for each in more})
    assert set(found.quantized.units) == {"relu"}
    assert any("nine tenths of the values of" in step for step in found.steps)
    name = f"t{len(more)}"
    plain = quantize(model, [to], found.ranges).model
    usual = [
        measure_size_accuracy(
            name, *([values(one, each) for each in read(folder)] for one in (model, made))
        )
        for made in (plain, found.quantized.model)
    ]
    assert usual[0] < 15
    assert usual[1] == 30, "more does not count"


def test_an_output_of_few_steps_is_in_integers_where_floats_are_slow(folder: Path) -> None:
    def predict(model: Model) -> float:
        return (
            9.0
            if any("w1" in node.input for node in model.index.nodes if node.op_type == "Conv")
            else 1.0
        )

    quantizer = DataQuantizer([target()], folder, NO_PREPROCESSING, "minmax", None, predict)
    found = quantizer.quantize(make_heat_map())
    assert found.in_float == ()
    assert any(step.startswith("nine tenths of the values of 't0' lie") for step in found.steps)
    assert any("takes too long or is not there" in step for step in found.steps)


def test_it_is_in_16_bits_where_a_target_takes_it_so_and_floats_take_longer(folder: Path) -> None:
    def predict(model: Model) -> float:
        index = model.index
        wide = {name for name in index.types if index.get_dtype(name) == "int16"}
        in_float = any("w1" in node.input for node in index.nodes)
        return 1.5 if in_float or any(name.startswith("x") for name in wide) else 1.0

    model, to = make_heat_map(), target(ops=["Conv", "Relu"])
    quantizer = DataQuantizer([to], folder, NO_PREPROCESSING, "minmax", None, predict, [to])
    found = quantizer.quantize(model)
    assert found.in_float == ()
    assert found.wide_units is not None
    assert found.wide_units.names == {"heat"}
    assert any("units before 't0': 1 computed in 16 bits; nine" in step for step in found.steps)
    index = found.quantized.model.index
    made = {node.input[0]: node.output[0] for node in index.nodes if node.op_type == "QuantizeLinear"}
    assert index.get_dtype(made["t0_float"]) == "int16"
    given = read(folder)
    usual = measure_size_accuracy(
        "t0", *([values(one, each) for each in given] for one in (model, found.quantized.model))
    )
    assert usual > 15


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_a_calibration_file_tells_which_output_eight_bits_are_too_coarse_for(
    folder: Path, method: str
) -> None:
    """It said nothing: a map of logits kept none of its cells, and the run was verified."""
    to = target(ops=["Conv", "Relu", "Neg"])
    model, given = make_heat_map("Neg"), read(folder)
    measured = calibrate(model, given, method=method)
    ends = [np.quantile(values(model, each)["t1"].astype(np.float64), [0.05, 0.95]) for each in given]
    usual = measured.usual["t1"]
    assert (usual.low, usual.high) == pytest.approx(tuple(np.mean(ends, axis=0)), rel=1e-5)
    found = choose_precision(model, [to], Precision("int8", calibration=measured))
    (note,) = [each for each in found.notes if "nine tenths" in each.text]
    whole = measured.tensors["t1"]
    assert isinstance(whole, Range)
    steps = 255 * (usual.high - usual.low) / (max(whole.high, 0) - min(whole.low, 0))
    assert note.severity == "warning"
    assert note.text.startswith(
        f"nine tenths of the values of 't1' lie within {steps:.1f} of 255 steps, too few: --data FOLDER"
    )
    wide = choose_precision(model, [to], Precision("int16", calibration=measured))
    in_float = choose_precision(model, [target(ops=["Relu"])], Precision("int8", calibration=measured))
    fixed = make_heat_map("Sigmoid")
    given_ranges = calibrate(fixed, given)
    assert given_ranges.usual == {}
    assert not any("nine tenths" in each.text for each in (*wide.notes, *in_float.notes))


def test_usual_values_are_counted_in_steps_where_no_operator_fixes_the_range() -> None:
    heat = np.concatenate([np.linspace(0, 2, 96), [255] * 4]).astype(np.float32)
    expected = [{"t2": heat[:50]}, {"t2": heat[50:]}]
    found = count_usual_steps(make_heat_map("Neg", "Transpose").index, expected)
    assert found == {"t2": pytest.approx(2 / 95 * (94.05 - 4.95), abs=1e-3)}
    assert count_usual_steps(make_heat_map("Sigmoid", "Transpose").index, expected) == {}
    even = [{"t2": np.linspace(-1, 1, 100, dtype=np.float32)}]
    assert count_usual_steps(make_heat_map("Neg", "Transpose").index, even) == {}


def test_the_best_of_what_is_tried_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to, scores, finish = target(), list[float](), QuantizationTrials.finish

    def note_score(trials: QuantizationTrials) -> QuantizedOnData:
        scores.append(trials.best.score)
        return finish(trials)

    monkeypatch.setattr(QuantizationTrials, "finish", note_score)
    found = DataQuantizer([to], folder, NO_PREPROCESSING, None, None).quantize(network())
    assert found.ranges.method in ("minmax", "mse")
    expected = [values(network(), one)["y"] for one in read(folder)]
    plain = quantize(network(), [to], ranges(network(), read(folder))).model
    noise = [
        snr(np.stack(expected), np.stack([values(one, each)["y"] for each in read(folder)]))
        for one in (plain, found.quantized.model)
    ]
    assert "biases are corrected" in found.steps[-1]
    assert noise[0] < noise[1]
    kept = [values(found.quantized.model, each) for each in read(folder)]
    own = measure_outputs([{"y": each} for each in expected], [{"y": each["y"]} for each in kept], ())
    assert scores[0] < own.score, "each half has the ranges and the correction of the other"


def test_a_variant_that_is_better_by_chance_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges and channels are changed for a quarter of a decibel and more: less is chance."""
    monkeypatch.setattr(_quantization_trials, "LEAST_GAIN", 100.0)
    found = DataQuantizer([target()], folder, NO_PREPROCESSING, None, None).quantize(network())
    assert found.ranges.method == "minmax"
    assert not any("equalized" in step for step in found.steps)


@pytest.mark.parametrize(
    ("node", "low", "high"),
    [
        (make_node("HardSwish", ["x"], ["y"]), -3, 20),
        (make_node("HardSigmoid", ["x"], ["y"]), -2.5, 2.5),
        (make_node("HardSigmoid", ["x"], ["y"], alpha=1 / 6), -3, 3),
        (make_node("Sigmoid", ["x"], ["y"]), -8, 8),
        (make_node("Tanh", ["x"], ["y"]), -4, 4),
        (make_node("LeakyRelu", ["x"], ["y"]), -30, 20),
    ],
)
def test_what_is_read_has_no_range_where_all_is_one_number(node: Any, low: float, high: float) -> None:
    model = built([make_node("Neg", ["in"], ["x"]), node], {"in": [1, 4, 2, 2]}, {"y": [1, 4, 2, 2]}, {})
    measured = Ranges("minmax", 1, "", {"x": Range(-30.0, 20.0), "y": Range(-0.4, 20.0)})
    fixed, of_result = (fix_ranges(model.index, measured).tensors[name] for name in ("x", "y"))
    assert isinstance(fixed, Range)
    assert isinstance(of_result, Range)
    assert (fixed.low, fixed.high) == (pytest.approx(low), pytest.approx(high))
    for near, far in ((low, -30), (high, 20)):
        made = [values(model, {"in": np.full((1, 4, 2, 2), -x, np.float32)})["y"] for x in (near, far)]
        np.testing.assert_allclose(*made, atol=(of_result.high - of_result.low) / 255 / 6)


def test_what_something_else_reads_as_well_keeps_its_range() -> None:
    nodes = [make_node("Neg", ["in"], ["x"]), make_node("HardSwish", ["x"], ["y"])]
    measured = Ranges("minmax", 1, "", {"x": Range(-30.0, 20.0)})
    shape = [1, 4, 2, 2]
    for more, outputs in (([make_node("Relu", ["x"], ["z"])], ["y", "z"]), ([], ["x", "y"])):
        model = built([*nodes, *more], {"in": shape}, dict.fromkeys(outputs, shape), {})
        assert fix_ranges(model.index, measured).tensors == measured.tensors


def test_noise_is_a_share_of_the_mean_signal_of_each_output() -> None:
    def sample(y: float, z: float) -> dict[str, Any]:
        return {
            "y": np.full(2, y, np.float32),
            "z": np.full(1, z, np.float32),
            "n": np.zeros(1, np.int64),
        }

    found = measure_noise_by_sample([sample(3, 1), sample(1, 1)], [sample(3, 2), sample(2, 1)])
    np.testing.assert_allclose(found, [[0, 1], [2 / 10, 0]])  # the signal of y is 18 and 2, of z 1 and 1
    assert measure_noise_by_sample([], []).size == 0


def test_random_data_chooses_nothing() -> None:
    found = DataQuantizer([target()], "random", NO_PREPROCESSING, None, None).quantize(network())
    assert (found.ranges.method, found.steps, found.in_float) == ("minmax", (), ())
    assert form(found.quantized.model, "r0")[2] == "int8"


def make_classifier(*behind: str) -> Model:
    """Return a Gemm and a Softmax over 4 classes of 2 rows, and operators behind it."""
    nodes = [
        make_node("Gemm", ["x", "w"], ["t"], "gemm"),
        make_node("Softmax", ["t"], ["p" if behind else "y"], "softmax", axis=1),
        *(make_node(op, ["p"], ["y"], op.lower()) for op in behind),
    ]
    w = np.random.default_rng(3).normal(size=(8, 4)).astype(np.float32)
    return built(nodes, {"x": [2, 8]}, {"y": [2, 4]}, {"w": w})


@pytest.mark.parametrize("behind", [(), ("Identity",), ("Flatten",)])
def test_logits_of_a_softmax_are_run_beside_its_classes(behind: tuple[str, ...]) -> None:
    model = make_classifier(*behind)
    given = np.random.default_rng(4).normal(size=(2, 8)).astype(np.float32)
    (found,) = run_with_logits(model, [{"x": given}])
    assert set(found) == {"y", "logits of y"}
    sums = np.exp(found["logits of y"])
    assert found["y"] == pytest.approx(sums / sums.sum(axis=1, keepdims=True), abs=1e-6)
    assert found["logits of y"].mean(axis=1) == pytest.approx([0, 0], abs=1e-6)


def test_a_softmax_that_is_read_by_more_than_views_has_no_logits_of_its_own() -> None:
    assert find_logits(make_classifier("Neg").index) == {}
    (found,) = run_with_logits(network(), samples(network(), 1))
    assert set(found) == {"y"}


def test_effort_says_how_many_variants_are_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, list[int]] = {}
    asked = []
    quantize, find_refusals = VariantMaker.quantize, _quantize_model.find_refusals

    def count(self: VariantMaker, variant: QuantizationVariant, half: int | None) -> Any:
        tried.setdefault(self.request.effort, []).append(-1 if half is None else half)
        return quantize(self, variant, half)

    def count_questions(*given: Any) -> Any:
        asked.append(given)
        return find_refusals(*given)

    monkeypatch.setattr(VariantMaker, "quantize", count)
    monkeypatch.setattr(_quantize_model, "find_refusals", count_questions)
    for effort in EFFORTS:
        DataQuantizer([target()], folder, NO_PREPROCESSING, None, "int8", effort=effort).quantize(
            network()
        )
    quick, normal, thorough = (tried[effort] for effort in EFFORTS)
    assert len(quick) < len(normal) < len(thorough)
    assert thorough.count(0) == thorough.count(1)  # both halves of each variant
    assert 0 not in normal, "what is fitted to one half is measured on the other"
    assert len(asked) <= sum(map(len, tried.values())), "targets are asked once for each variant"


def test_effort_is_for_data() -> None:
    with pytest.raises(InputError, match="--effort quick: is for --data alone"):
        Precision(quantize="int8", effort="quick")
    with pytest.raises(InputError, match="effort: long is not among quick, normal, thorough"):
        Precision(quantize="int8", data="random", effort="long")


def test_less_than_ten_decibels_are_warned_of() -> None:
    accuracies = OutputAccuracies(("y", "z"), np.asarray([[0.2, 0.01], [0.2, 0.01]]), {})
    assert accuracies.list_warnings() == [
        "only 7.0 dB are left of 'y' on the samples: --accuracy-budget keeps more"
    ]
    assert replace(accuracies, noise=np.full((2, 2), 0.09)).list_warnings() == []


@pytest.mark.parametrize(
    ("behind", "largest"),
    [
        ([make_node("MatMul", ["p", "v"], ["y"])], 0.04),
        ([make_node("Transpose", ["p"], ["t"]), make_node("MatMul", ["v", "t"], ["y"])], 0.04),
        ([make_node("MatMul", ["p", "w"], ["y"])], 1.0),
        ([make_node("Identity", ["p"], ["y"])], 1.0),
        ([make_node("MatMul", ["p", "v"], ["m"]), make_node("Add", ["m", "p"], ["y"])], 1.0),
    ],
)
def test_weights_of_attentions_alone_keep_the_range_that_was_measured(
    behind: list[NodeProto], largest: float
) -> None:
    """Answers may be surer than on the samples; weights that mix values over many keys are small."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [make_node("Softmax", ["x"], ["p"], axis=-1), *behind],
        "g",
        [value("x", 1, [8, 8]), value("v", 1, [8, 8])],
        [value("y", 1, [8, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    index, measured = (
        prepare_model(model, "m.onnx", None).index,
        Ranges("minmax", 1, "", {"p": Range(0.0, 0.04)}),
    )
    assert fix_ranges(index, measured).tensors["p"] == Range(0.0, largest)
