"""What a depthwise convolution alone reads has a scale for each channel where rules name the axis."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers.support import parse
from onnx import helper, numpy_helper
from onnx.helper import make_node
from quantizing import (
    built,
    groups,
    node,
    quantize,
    quantize_on_data,
    ranges,
    samples,
    save,
    snr,
    stored,
    target,
    texts,
    values,
    weights,
)

from byoc.model import Model, convert_opset, prepare_model
from byoc.quantization import (
    ChannelRange,
    Precision,
    Ranges,
    calibrate,
    choose_precision,
    read_ranges,
)
from byoc.rules import Target

SHAPE = [1, 4, 8, 8]
WIDTHS = np.float32([1, 0.01, 30, 0.2]).reshape(4, 1, 1, 1)
EACH = {"quantized": {"per_channel": None, "axis": 1}}
ONE = {"quantized": {"per_channel": False}}
DEPTHWISE = {"expr": "attr.group == X.shape[1]", "reason": "it is not depthwise"}


def make_target(*more: Any) -> Target:
    """Return a target whose depthwise convolutions may read scales by channel, which any Conv makes."""
    rules = [
        {"op": "Conv", "quantized": True, "tensors": {"X": ONE, "Y": EACH}},
        {"op": "Conv", "quantized": True, "tensors": {"X": EACH, "Y": EACH}, "where": [DEPTHWISE]},
        {"op": "Relu", "quantized": True, "tensors": {"X": ONE, "Y": EACH}},
    ]
    return target(ops=[*rules, *more, "Add"])


def make_model(*more: Any, group: int = 4, times: int = 1) -> Model:
    """Return a pointwise convolution of channels of other widths, and one in groups behind it.

    The second makes so many `times` as many channels.
    """
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "point"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Conv", ["r", "w1", "b1"], ["y"], "deep", group=group, pads=[1, 1, 1, 1]),
        *more,
    ]
    known = {
        "w0": WIDTHS * weights(0, 4, 4, 1, 1),
        "b0": np.float32([0, 0.001, 0, 0.1]),
        "w1": weights(1, 4 * times, 4 // group, 3, 3) / np.repeat(WIDTHS, times, 0),
        "b1": weights(2, 4 * times),
    }
    outputs = {name: SHAPE for each in more for name in each.output}
    outputs["y"] = [1, 4 * times, 8, 8]
    return built(nodes, {"x": SHAPE}, outputs, known)


def measure(model: Model) -> Ranges:
    """Return ranges of tensors, and of the channels of each image."""
    given = samples(model)
    channels = {}
    for name in ("x", "c", "r", "y"):
        seen = np.concatenate([values(model, one)[name] for one in given])
        channels[name] = ChannelRange(
            seen.min((0, 2, 3)).astype(np.float64), seen.max((0, 2, 3)).astype(np.float64)
        )
    return replace(ranges(model, given), channels=channels)


def read_axis(model: Model, name: str) -> int | None:
    """Return the axis of the QuantizeLinear of a tensor, None where it has one scale."""
    for each in model.index.nodes:
        known = {entry.key: entry.value for entry in each.metadata_props}
        if each.op_type == "QuantizeLinear" and known.get("byoc.tensor") == name:
            found = {a.name: helper.get_attribute_value(a) for a in each.attribute}
            return found.get("axis")
    raise KeyError(name)


def test_each_channel_has_its_range() -> None:
    model, to = make_model(), make_target()
    found = measure(model)
    made = quantize(model, [to], replace(found, channels={"r": found.channels["r"]}))
    assert made.channels == ("r",)
    assert set(made.units) == {"relu", "deep"}
    assert set(groups(made.model, to)) == {"relu", "deep"}
    assert [read_axis(made.model, name) for name in ("x", "r", "y")] == [None, 1, None]
    quantizer = next(n for n in made.model.index.nodes if n.op_type == "QuantizeLinear" and n.attribute)
    scale = stored(made.model, quantizer.input[1])
    np.testing.assert_allclose(scale, found.channels["r"].high / 255, rtol=1e-6)
    assert stored(made.model, quantizer.input[2]).tolist() == [-128] * 4
    bias = node(made.model, node(made.model, "y_float").input[2])
    weight = node(made.model, node(made.model, "y_float").input[1])
    np.testing.assert_array_equal(
        stored(made.model, bias.input[1]), scale * stored(made.model, weight.input[1])
    )
    integers = numpy_helper.to_array(made.model.index.initializers[bias.input[0]])
    steps = stored(made.model, bias.input[1])
    np.testing.assert_allclose(integers * steps, weights(2, 4), atol=steps.max() / 2)


def test_the_bias_of_channels_that_one_channel_makes_has_its_scale() -> None:
    """A depthwise convolution may make several channels of each: they are neighbours."""
    model, to = make_model(times=2), make_target()
    found = measure(model)

    made = quantize(model, [to], replace(found, channels={"r": found.channels["r"]})).model

    bias, weight = (node(made, node(made, "y_float").input[i]) for i in (2, 1))
    scale = np.repeat(read_scales(made)["r"][0], 2)
    expected = scale.astype(np.float32) * stored(made, weight.input[1])
    np.testing.assert_allclose(stored(made, bias.input[1]), expected, rtol=1e-6)
    given = samples(model, 1)[0]
    assert snr(values(model, given)["y"], values(made, given)["y"]) > 30


def test_a_channel_of_rounding_errors_has_a_scale_that_is_no_finer_than_float32() -> None:
    """Of 1e-30 its multiplier on dla would have been above 2**31, and the unit went to the host."""
    model, to = make_model(), make_target()
    wide = ChannelRange(np.array([0.0, 0.0, -3e-31, 0.0]), np.array([2.0, 1e-30, 0.0, 1e-6]))
    made = quantize(model, [to], replace(measure(model), channels={"r": wide}))
    assert made.channels == ("r",)
    scale, points = read_scales(made.model)["r"]
    np.testing.assert_allclose(scale, np.float64([2, 2**-23, 2**-23, 1e-6]) / 255, rtol=1e-6)
    assert points == [-128] * 4


def test_channels_of_other_widths_keep_their_values() -> None:
    model, to = make_model(), make_target()
    found = measure(model)
    given = samples(model, 1)[0]
    expected = values(model, given)["y"]
    noise = [
        snr(expected[:, 1], values(quantize(model, [to], each).model, given)["y"][:, 1])
        for each in (found, replace(found, channels={}))
    ]
    assert noise[0] > 35
    assert noise[1] < 15


@pytest.mark.parametrize(
    ("model", "to"),
    [
        (make_model(group=2), make_target()),  # several channels are added up
        (
            make_model(make_node("Add", ["r", "r"], ["z"], "more")),
            make_target(),
        ),  # which takes one scale
        (make_model(make_node("Neg", ["r"], ["z"], "host")), target()),  # no rule names the axis
    ],
)
def test_others_have_one_scale(model: Model, to: Target, tmp_path: Path) -> None:
    for made in (
        quantize(model, [to], measure(model)),
        quantize_on_data(model, to, save(samples(model), tmp_path), "minmax"),
    ):
        assert read_axis(made.model, "r") is None
        assert {"relu", "deep"} <= set(made.units)


def test_what_a_rule_refuses_has_one_scale_and_stays_quantized() -> None:
    small = {"expr": "X.shape[1] == 8", "reason": "it is not of 8 channels"}
    to = make_target()
    rule = {"op": "Conv", "quantized": True, "tensors": {"X": EACH, "Y": EACH}, "where": [small]}
    other = target(
        ops=[{"op": "Conv", "quantized": True, "tensors": {"X": ONE, "Y": EACH}}, rule, "Relu"]
    )
    model = make_model()
    found = measure(model)
    assert read_axis(quantize(model, [to], found).model, "r") == 1
    made = quantize(model, [other], found)
    assert read_axis(made.model, "r") is None
    assert set(made.units) == {"relu", "deep"}


def test_channels_are_measured_on_data(tmp_path: Path) -> None:
    model, to = make_model(), make_target()
    found = quantize_on_data(model, to, save(samples(model, 8), tmp_path))
    assert [read_axis(found.model, name) for name in ("x", "r", "y")] == [None, 1, None]
    assert any("biases are corrected" in text for text in texts(found))
    given = samples(model, 9)[8]
    assert snr(values(model, given)["y"], values(found.model, given)["y"]) > 35


def read_scales(model: Model) -> dict[str, list[Any]]:
    """Return scales and zero points of the activations, by the names of the tensors."""
    found = {}
    for each in model.index.nodes:
        known = {entry.key: entry.value for entry in each.metadata_props}
        if each.op_type == "QuantizeLinear" and "byoc.tensor" in known:
            found[known["byoc.tensor"]] = [stored(model, read).tolist() for read in each.input[1:]]
    return found


@pytest.mark.parametrize("opset", [13, 18])
def test_a_calibration_file_gives_the_scales_of_the_data(opset: int, tmp_path: Path) -> None:
    proto, to = deepcopy(make_model().proto), make_target()
    convert_opset(proto, opset)
    model = prepare_model(proto, "test")
    folder = tmp_path / "data"
    folder.mkdir()
    given = samples(model, 6)
    save(given, folder)
    calibrate(model, folder, tmp_path / "c.yaml")
    found = read_ranges(tmp_path / "c.yaml")
    assert list(found.channels) == ["r"]
    seen = np.concatenate([values(model, one)["r"] for one in given])
    np.testing.assert_array_equal(found.channels["r"].low, seen.min((0, 2, 3)))
    np.testing.assert_array_equal(found.channels["r"].high, seen.max((0, 2, 3)))
    from_file = quantize(model, [to], found)
    assert from_file.channels == ("r",)
    from_data = quantize_on_data(model, to, folder, "minmax")
    assert not any("equalized" in text for text in texts(from_data))
    assert read_scales(from_file.model) == read_scales(from_data.model)
    assert len(read_scales(from_file.model)["r"][0]) == 4


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_what_onnxruntime_optimizes_to_something_that_it_refuses_is_said(dtype: str, bias: bool) -> None:
    proto, to = deepcopy(make_model().proto), make_target()
    deep = next(each for each in proto.graph.node if each.name == "deep")
    if not bias:
        del deep.input[2]
    model = prepare_model(proto, "test")
    wanted = Precision(dtype, calibration=calibrate(model, samples(model)))
    found = choose_precision(model, [to], wanted)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # as on Arm
    session = onnxruntime.InferenceSession(found.model.proto.SerializeToString(), options)
    warnings = [note.text for note in found.notes if note.severity == "warning"]
    if bias:
        assert warnings == []
        session.run(None, samples(model, 1)[0])
        return
    machines = " on Arm" if dtype == "int8" else ""
    assert warnings == [
        "'deep': scales by channel and no bias, which onnxruntime's optimizations "
        f"cannot run{machines}: "
        "applications that open the model themselves set session.disable_quant_qdq to 1"
    ]
    with pytest.raises(Exception, match="QLinearConv : input zero point must be a scalar"):
        session.run(None, samples(model, 1)[0])
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(found.model.proto.SerializeToString(), options)
    session.run(None, samples(model, 1)[0])


def test_channels_of_symmetric_ranges_and_of_half_precision(tmp_path: Path) -> None:
    proto = parse("g (float16[1, 2, 2, 2] x) => (float16[1, 2, 2, 2] y) { y = Conv<group = 2>(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((2, 1, 1, 1), np.float16), "w"))
    model = prepare_model(proto, "test")
    data = [{"x": np.float16([[[[-4, 1], [0, 0]], [[0.25, 0.5], [0.5, 0.5]]]])}]
    plain, symmetric = (calibrate(model, data, symmetric=wide) for wide in (False, True))
    assert plain.channels["x"].low.tolist() == [-4.0, 0.25]
    assert plain.channels["x"].high.tolist() == [1.0, 0.5]
    assert symmetric.channels["x"].low.tolist() == [-4.0, -0.5]
    assert symmetric.channels["x"].high.tolist() == [4.0, 0.5]
    empty = {"x": np.zeros((0, 2, 2, 2), np.float16)}
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    dynamic = prepare_model(proto, "test")
    for order in ([empty, *data], [*data, empty]):
        assert calibrate(dynamic, order).channels["x"].low.tolist() == [-4.0, 0.25]
    assert calibrate(dynamic, [empty]).channels == {}


def test_ranges_of_the_same_samples_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network runs 74 times; 88 times where each variant measures its halves anew."""
    model, to = make_model(make_node("Relu", ["y"], ["z"], "tail")), make_target()
    folder, runs = save(samples(model, 4), tmp_path), []
    compiled = onnxruntime.capi._pybind_state.InferenceSession  # which every session runs
    run = compiled.run

    def count(session: Any, *given: Any) -> Any:
        runs.append(session)
        return run(session, *given)

    monkeypatch.setattr(compiled, "run", count)
    quantize_on_data(model, to, folder)
    assert 20 < len(runs) <= 80


def test_a_tensor_of_unknown_shape_has_one_scale(tmp_path: Path) -> None:
    text = """
g (float[N] x, int64[rank] shape) => (float[A, B, C, D] y) {
  r = Reshape(x, shape)
  y = Conv<group = 4>(r, w)
}
"""
    proto = parse(text)
    proto.graph.initializer.append(numpy_helper.from_array(weights(0, 4, 1, 1, 1), "w"))
    model = prepare_model(proto, "test")
    assert model.index.get_shape("r") is None
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    folder = save([{"x": x, "shape": np.array([1, 4, 2, 2])}] * 4, tmp_path)
    found = quantize_on_data(model, make_target(), folder, "minmax")
    assert "y" in found.units
    assert read_axis(found.model, "r") is None


def test_a_tensor_that_is_infinite_in_half_of_the_samples_has_no_range(tmp_path: Path) -> None:
    text = """
g (float[1,2,8,8] x) => (float[1,2,8,8] y) <float one = {1}> {
  a = Div(one, x)
  b = Relu(a)
  c = Conv<group = 2>(b, w)
  d = Relu(c)
  e = Div(one, d)
  y = Conv<group = 2>(e, w)
}
"""
    proto = parse(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.full((2, 1, 1, 1), 0.5, np.float32), "w"))
    for number in range(8):
        x = np.linspace(0.5, 2, 128, dtype=np.float32).reshape(1, 2, 8, 8)
        x[0, 0, 0, 0] = number % 2  # 1 / x is infinite in the first, the third and so on
        np.savez(tmp_path / f"{number}.npz", x=x)

    model = prepare_model(proto, "test")
    found = quantize_on_data(model, make_target(), tmp_path).model

    assert read_axis(found, "e") == 1
    assert "b" not in read_scales(found) or read_axis(found, "b") is None
