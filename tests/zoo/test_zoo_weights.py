"""Generated weights and inputs, and light models made runnable with them."""

import hashlib
from math import sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pydantic import ValidationError

from byoc import zoo
from byoc.errors import InputError
from byoc.zoo import _classic_models as classics
from byoc.zoo._classic_models import WeightGraph, choose_spread, make_runnable
from byoc.zoo._sample_inputs import (
    InputSpec,
    UniformSpread,
    derive_seed,
    draw_uniform,
    make_inputs,
    make_integers,
    make_page,
    make_voice,
)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("shufflenet", "db1df57b945759eece4e8dba001e1384924713c40a952ace433e8b777d2a5a36"),
        ("squeezenet", "ced332f9e61b7b1ae2378c1fe9c3c512082aefdc384ab164491c48bfd707c456"),
    ],
)
def test_a_model_has_the_same_weights_everywhere(name: str, digest: str) -> None:
    total = hashlib.sha256()
    for tensor in sorted(zoo.load(name).graph.initializer, key=lambda tensor: tensor.name):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            total.update(tensor.name.encode() + b"\0" + tensor.raw_data)
    assert total.hexdigest() == digest


def test_values_are_what_the_raw_bits_say() -> None:
    words = [int(word) for word in np.random.PCG64(7).random_raw(2)]
    halves = [(word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
    signed = [half - (1 << 16 if half >= 1 << 15 else 0) for half in halves]
    expected = [3.0 + 0.5 * half / (1 << 15) for half in signed]
    values = draw_uniform(7, (2, 3), UniformSpread(3.0, 0.5))
    assert values.shape == (2, 3)
    assert values.ravel().tolist() == pytest.approx(expected[:6], abs=3e-7)


def test_a_longer_draw_continues_a_shorter_one() -> None:
    chunk = 4 << 17
    long = draw_uniform(1, (2 * chunk + 5,), UniformSpread(0.0, 1.0))
    assert np.array_equal(draw_uniform(1, (chunk + 1,), UniformSpread(0.0, 1.0)), long[: chunk + 1])
    assert not np.array_equal(long[:chunk], long[chunk : 2 * chunk])


def test_values_fill_the_spread() -> None:
    values = draw_uniform(2, (1000, 1000), UniformSpread(1.0, 0.2))
    assert values.min() >= np.float32(0.8)
    assert values.max() <= np.float32(1.2)
    assert values.mean() == pytest.approx(1.0, abs=1e-3)
    assert values.std() == pytest.approx(0.2 / sqrt(3), rel=1e-2)


def test_seeds_tell_names_apart() -> None:
    assert derive_seed("a", "bc") != derive_seed("ab", "c")
    assert derive_seed("a", "bc") == derive_seed("a", "bc")


def test_a_kernel_is_scaled_by_its_fan_in() -> None:
    text = """
        x = Conv<group = 2>(image, kernel)
        r = Relu(x)
        f = Flatten(r)
        a = Gemm<transB = 1>(f, tall)
        b = Gemm(a, wide, bias)
    """
    wiring = _wiring(text)
    assert choose_spread("kernel", (8, 2, 3, 3), wiring).reach == pytest.approx(sqrt(3 / 18))
    assert choose_spread("tall", (10, 50), wiring).reach == pytest.approx(sqrt(3 / 50))
    assert choose_spread("wide", (10, 50), wiring).reach == pytest.approx(sqrt(3 / 10))
    assert choose_spread("bias", (50,), wiring).centre == 0


def test_a_relu_before_a_kernel_doubles_its_variance() -> None:
    wiring = _wiring("r = Relu(image) d, mask = Dropout(r) x = Conv(d, kernel)")
    assert choose_spread("kernel", (8, 2, 3, 3), wiring).reach == pytest.approx(sqrt(2 * 3 / 18))


def test_a_residual_branch_adds_little() -> None:
    wiring = _wiring("x = Conv(image, kernel) n = BatchNormalization(x,s,b,m,v) y = Sum(n, image)")
    assert choose_spread("kernel", (8, 2, 1, 1), wiring).reach < sqrt(3 / 2) / 2


def test_use_decides_and_not_the_name() -> None:
    wiring = _wiring("""
        n = BatchNormalization(image, bias, variance, mean, weight)
        u = Unsqueeze<axes = [1, 2]>(b)
        y = Mul(n, u)
    """)
    near_one = [choose_spread(name, (3,), wiring).centre for name in ("bias", "weight", "b")]
    near_zero = [choose_spread(name, (3,), wiring).centre for name in ("variance", "mean")]
    assert near_one == [1, 1, 1]
    assert near_zero == [0, 0]


def test_an_unknown_use_is_refused() -> None:
    with pytest.raises(InputError, match="slope is input 1 of PRelu: no rule for its values"):
        choose_spread("slope", (3,), _wiring("y = PRelu(image, slope)"))


def _wiring(body: str) -> WeightGraph:
    return WeightGraph.from_graph(
        onnx.parser.parse_graph(f"g (float[1,3,8,8] image) => (float y) {{ {body} }}")
    )


def test_a_photo_has_the_mean_and_deviation_asked_for() -> None:
    feed = InputSpec(like="photo", shape=(1, 3, 512, 512), centre=120, scale=50)
    values = make_inputs({"x": feed}, 0)["x"]
    assert values.dtype == np.float32
    assert abs(values.mean() - 120) < 25
    assert 35 < values.std() < 65


def test_clipped_is_within_its_limits() -> None:
    feed = InputSpec(like="photo", shape=(1, 3, 64, 64), centre=120, scale=200, low=0, high=255)
    values = make_inputs({"x": feed}, 0)["x"]
    assert (values.min(), values.max()) == (0, 255)


def test_a_batch_holds_different_images() -> None:
    values = make_inputs({"x": InputSpec(like="photo", shape=(3, 1, 8, 8))}, 0)["x"]
    assert len(np.unique(values.reshape(3, -1), axis=0)) == 3


@pytest.mark.parametrize("shape", [(1, 76, 32, 1), (1, 80, 800), (1, 1, 149, 64), (2, 40, 64)])
def test_a_spectrogram_is_smooth_in_both_directions(shape: tuple[int, ...]) -> None:
    values = make_inputs({"x": InputSpec(like="photo", shape=shape)}, 0)["x"]
    assert values.shape == shape
    plane = values[0].squeeze()
    for first, second in ((plane[1:], plane[:-1]), (plane[:, 1:], plane[:, :-1])):
        assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.3


def test_a_page_is_paper_with_ink_on_it() -> None:
    sheet = make_page(0, 224, 224)
    assert set(np.unique(sheet).tolist()) == {-1, 1}
    assert 0.05 < (sheet < 0).mean() < 0.4
    assert not np.array_equal(sheet, make_page(1, 224, 224))
    assert make_page(0, 5, 5).shape == (1, 1, 5, 5)


def test_a_voice_is_periodic_and_within_range() -> None:
    wave = make_voice(0, 16_000)
    assert 0.3 < abs(wave).max() <= 1
    assert 110 <= np.argmax(abs(np.fft.rfft(wave))) < 240
    assert not np.array_equal(wave, make_voice(1, 16_000))


def test_integers_fill_their_range() -> None:
    assert set(make_integers(0, (10_000,), 3, 9).tolist()) == set(range(3, 10))
    assert make_integers(0, (2, 3), 5, 5).tolist() == [[5] * 3] * 2


def test_inputs_that_are_alike_differ_and_types_are_kept() -> None:
    token = InputSpec(like="integers", shape=(1, 64), type="int64", low=0, high=511)
    made = make_inputs({"a": token, "b": token, "rate": InputSpec(like="value", shape=(), value=8.5)}, 1)
    assert not np.array_equal(made["a"], made["b"])
    assert made["a"].dtype == np.int64
    assert (made["rate"].shape, float(made["rate"])) == ((), 8.5)
    again, other = make_inputs({"a": token}, 1), make_inputs({"a": token}, 2)
    assert np.array_equal(made["a"], again["a"])
    assert not np.array_equal(made["a"], other["a"])


def test_noise_has_its_deviation() -> None:
    values = make_inputs({"x": InputSpec(like="noise", shape=(10_000,), centre=2, scale=3)}, 0)["x"]
    assert values.mean() == pytest.approx(2, abs=0.1)
    assert values.std() == pytest.approx(3, rel=0.03)


def test_integers_without_a_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="integers need low and high"):
        InputSpec(like="integers", shape=(1,))


LIGHT = """
<ir_version: 3, opset_import: ["" : 9]>
tiny (float[10,3,4,4] image, float[1] queue, int64[4] w__SHAPE, int64[4] v__SHAPE, float[2] b,
      float[10] k, int64[2] flat, int64[2] square) => (float[10,10] y)
<int64[4] w__SHAPE = {2, 3, 3, 3}, int64[4] v__SHAPE = {1, 1, 10, 8}, float[2] b = {7.0, 7.0},
 float[10] k = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
 int64[2] flat = {10, 8}, int64[2] square = {10, 8}, float[1] queue = {0.0}>
{
    w = ConstantOfShape<value = float[1] {0.02}>(w__SHAPE)
    v = ConstantOfShape<value = float[1] {0.02}>(v__SHAPE)
    [y] c = Conv<kernel_shape = [3, 3]>(image, w, b)
    r = Relu(c)
    f = Reshape(r, flat)
    m = Reshape(v, square)
    y = Gemm<transB = 1>(f, m, k)
}
"""


@pytest.fixture
def light() -> onnx.ModelProto:
    return onnx.parser.parse_model(LIGHT)


def test_the_model_is_valid_and_has_a_batch_of_1(light: onnx.ModelProto) -> None:
    model = make_runnable(light, "tiny")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == [
        "Conv",
        "Relu",
        "Reshape",
        "Reshape",
        "Gemm",
    ]
    assert _dims(model.graph.input[0]) == [1, 3, 4, 4]
    assert _dims(model.graph.output[0]) == [1, 10]


def test_only_the_signal_is_reshaped_to_a_batch_of_1(light: onnx.ModelProto) -> None:
    stored = {t.name: numpy_helper.to_array(t) for t in make_runnable(light, "tiny").graph.initializer}
    assert stored["flat"].tolist() == [1, 8]
    assert stored["square"].tolist() == [10, 8]


def test_dead_inputs_and_initializers_as_inputs_go(light: onnx.ModelProto) -> None:
    graph = make_runnable(light, "tiny").graph
    assert [value.name for value in graph.input] == ["image"]
    assert {t.name for t in graph.initializer} == {"w", "v", "b", "k", "flat", "square"}


def test_stored_floats_get_new_values_too(light: onnx.ModelProto) -> None:
    stored = {t.name: numpy_helper.to_array(t) for t in make_runnable(light, "tiny").graph.initializer}
    assert abs(stored["b"]).max() <= 0.1


def test_a_nameless_node_takes_its_first_output_unless_taken(light: onnx.ModelProto) -> None:
    names = [node.name for node in make_runnable(light, "tiny").graph.node]
    assert names == ["y", "r", "f", "m", "y_"]


def test_the_structure_handed_in_is_not_changed(light: onnx.ModelProto) -> None:
    before = light.SerializeToString(deterministic=True)
    make_runnable(light, "tiny")
    assert light.SerializeToString(deterministic=True) == before


def test_the_numbers_depend_on_the_name_and_not_on_the_order(light: onnx.ModelProto) -> None:
    other_order = onnx.ModelProto()
    other_order.CopyFrom(light)
    other_order.graph.node[0].CopyFrom(light.graph.node[1])
    other_order.graph.node[1].CopyFrom(light.graph.node[0])
    assert _weights(make_runnable(other_order, "tiny")) == _weights(make_runnable(light, "tiny"))
    assert _weights(make_runnable(light, "other")) != _weights(make_runnable(light, "tiny"))


def test_two_open_inputs_are_refused(light: onnx.ModelProto) -> None:
    light.graph.initializer.remove(next(t for t in light.graph.initializer if t.name == "b"))
    with pytest.raises(InputError, match="zoo:tiny: has 2 inputs without a value"):
        make_runnable(light, "tiny")


def _weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in model.graph.initializer}


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_an_onnx_without_light_models_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(classics, "_FOLDER", tmp_path / "absent")
    assert "yunet" in {entry.name for entry in zoo.list_entries()}
    assert "the light models: the installed onnx" in zoo.find_problems()[0]
    with pytest.raises(InputError, match=r"carries no light models in .*absent"):
        zoo.load("squeezenet")
