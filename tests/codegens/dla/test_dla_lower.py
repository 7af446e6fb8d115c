"""Lowering for the dla: what becomes one layer, the numbers that it has, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    MachineLayer,
    MoveLayer,
    PoolLayer,
)
from byoc.codegens.dla.compiler.lower_convolutions import (
    ConvWeights,
    normalization_weights,
    requantize_weights,
)
from byoc.codegens.dla.compiler.output_shapes import Clamp, LayerTensor
from dla_regions import agrees, bytes_of, floats, mentioned, model, network

from byoc.codegen import CompileError

IMAGE = "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
CONV = "c = Conv<pads=[1,1,1,1]>(x, w, b)"
CONSTANTS = {
    "w": floats(4, 3, 3, 3),
    "b": floats(4, seed=1),
    "s": floats(4, seed=2),
    "t": floats(4, seed=3),
    "m": floats(4, seed=4),
    "v": np.abs(floats(4, seed=5)) + 0.5,
    "low": np.float32(-0.5),
    "high": np.float32(0.25),
    "shape": np.array([1, -1], np.int64),
    "half": np.float32(0.5),
}
QUANTIZED = {
    "w": bytes_of(4, 3, 3, 3),
    "ws": np.array([0.5, 0.25, 0.125, 0.0625], np.float32),
    "wz": np.zeros(4, np.int8),
    "b": np.array([100, -200, 300, 5], np.int32),
    "bs": np.array([0.25, 0.125, 0.0625, 0.03125], np.float32),
    "s": np.float32(0.5),
    "z": np.int8(3),
    "u": np.float32(2.0),
    "q": np.int8(-7),
}
QDQ = (
    "d = DequantizeLinear(x, s, z) e = DequantizeLinear<axis=0>(w, ws, wz)"
    " f = DequantizeLinear<axis=0>(b, bs) c = Conv<pads=[1,1,1,1]>(d, e, f)"
)


def layers(text: str, folder: Path, constants: dict[str, object] | None = None) -> list[MachineLayer]:
    """Return the layers of a model, without those that reorder its inputs and outputs."""
    given = mentioned(text, CONSTANTS if constants is None else constants)
    return [layer for layer in network(model(text, given), folder).layers if layer.nodes]


def refusal(text: str, folder: Path, constants: dict[str, object] | None = None) -> CompileError:
    with pytest.raises(CompileError) as caught:
        layers(text, folder, constants)
    return caught.value


def test_a_convolution_takes_in_what_follows_it(tmp_path: Path) -> None:
    (layer,) = layers(
        f"g (float[1,3,6,6] x, float[1,4,6,6] z) => (float[1,4,6,6] y) {{ {CONV}"
        " n = BatchNormalization(c, s, t, m, v) a = Sum(z, n) r = Relu(a) y = Clip(r, low, high) }",
        tmp_path,
    )

    assert isinstance(layer, ConvLayer)
    assert layer.nodes == ("c", "n", "a", "r", "y")
    assert (layer.y.name, layer.residual.name if layer.residual else "") == ("y", "z/image")
    assert layer.clamp == Clamp(0.0, 0.25)
    scale = CONSTANTS["s"] / np.sqrt(CONSTANTS["v"] + 1e-5)
    expected = CONSTANTS["w"].transpose(0, 2, 3, 1) * scale[:, None, None, None]
    np.testing.assert_allclose(layer.weights, expected, rtol=1e-6)
    bias = (CONSTANTS["b"] - CONSTANTS["m"]) * scale + CONSTANTS["t"]
    np.testing.assert_allclose(layer.bias, bias, rtol=1e-5)


def test_what_somebody_else_reads_is_a_layer_of_its_own(tmp_path: Path) -> None:
    found = layers(
        f"g (float[1,3,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] c) {{ {CONV} y = Relu(c) }}",
        tmp_path,
    )

    assert [type(layer) for layer in found] == [ConvLayer, ActivationLayer]


def test_two_sums_are_not_one_layer(tmp_path: Path) -> None:
    found = layers(f"{IMAGE} {{ {CONV} a = Add(c, c) y = Add(a, half) }}", tmp_path)

    assert [type(layer) for layer in found] == [ConvLayer, EltwiseLayer, EltwiseLayer]


def test_a_quantized_group_is_one_layer_of_integers(tmp_path: Path) -> None:
    (layer,) = layers(
        f"g (int8[1,3,6,6] x) => (int8[1,4,6,6] y) {{ {QDQ} r = Relu(c) y = QuantizeLinear(r, u, q) }}",
        tmp_path,
        QUANTIZED,
    )

    assert isinstance(layer, ConvLayer)
    np.testing.assert_array_equal(layer.weights, QUANTIZED["w"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(layer.bias, QUANTIZED["b"])
    np.testing.assert_array_equal(layer.multipliers, 0.5 * QUANTIZED["ws"] / 2)
    assert (layer.x.scale, layer.x.zero, layer.y.scale, layer.y.zero) == (0.5, 3, 2.0, -7)
    assert layer.clamp.saturate_limits(layer.y) == (-7, 127)


def test_negative_factors_change_the_sign_of_weights() -> None:
    weights = ConvWeights(
        np.array([5, -6], np.int8).reshape(2, 1, 1, 1), np.array([0.5, -0.25]), np.array([3.0, 1.0])
    )

    found = requantize_weights(weights, 2.0, 4.0)

    assert found is not None
    assert found.weights.ravel().tolist() == [5, 6]
    assert found.bias.tolist() == [3, 2]
    assert found.multipliers.tolist() == [0.25, 0.125]


@pytest.mark.parametrize(
    ("stored", "factor", "bias"), [(-128, -1.0, 0.0), (1, 1e-9, 1e3)], ids=["sign", "bias"]
)
def test_integers_that_do_not_fit(stored: int, factor: float, bias: float) -> None:
    weights = ConvWeights(np.full((1, 1, 1, 1), stored, np.int8), np.array([factor]), np.array([bias]))

    assert requantize_weights(weights, 1.0, 1.0) is None


@pytest.mark.parametrize(("factor", "bias"), [(1e-3, 20.0), (1.0, 0.25)], ids=["digits", "half"])
def test_a_bias_is_as_exact_as_float32(factor: float, bias: float) -> None:
    """A dead channel has steps so fine that the digits of float32 are many; a quarter is a real loss."""
    real = np.array([bias * (1 + 2**-24)])
    weights = ConvWeights(np.ones((1, 1, 1, 1), np.int8), np.array([factor]), real)

    found = requantize_weights(weights, 1.0, 1e-9)

    assert (None if found is None else found.bias.tolist()) == (None if bias < 1 else [20000])


def test_a_channel_without_weights_is_its_bias() -> None:
    weights = ConvWeights(np.ones((1, 1, 1, 1), np.int8), np.zeros(1), np.array([3.5]))

    found = requantize_weights(weights, 1.0, 0.5)

    assert found is not None
    assert found.weights.ravel().tolist() == [0]
    assert found.bias[0] * found.multipliers[0] == pytest.approx(7.0)


@pytest.mark.parametrize(("factor", "shift"), [(0.3, 2.0), (-1e-6, 50.0), (0.0, 1.0)])
def test_a_normalization_alone_is_one_weight_for_each_channel(factor: float, shift: float) -> None:
    weights = normalization_weights(np.array([factor]), np.array([shift]), 0.1)

    assert 0 <= weights.stored.ravel()[0] <= 127
    real = weights.stored.ravel()[0] * weights.factors[0]
    assert real == pytest.approx(factor, rel=1e-12) or weights.stored.ravel()[0] == 0
    assert requantize_weights(weights, 0.1, 0.1) is not None


def test_limits_are_those_of_the_type_at_most() -> None:
    y = LayerTensor("y", (1, 1, 1, 1), "int8", 0.5, 3)

    assert Clamp(1, 8).saturate_limits(y) == (1, 8)
    assert Clamp(-1e9, 1e9).saturate_limits(y) == (-128, 127)
    assert Clamp().saturate_limits(y) == (-128, 127)


def test_clamps_one_after_another() -> None:
    assert Clamp(0, 6).followed_by(Clamp(-1, 4)) == Clamp(0, 4)
    assert Clamp(0, 1).followed_by(Clamp(2, 3)) == Clamp(2, 2)


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("1,3,4,4", "1,48", [MoveLayer]),
        ("1,48", "1,3,4,4", [MoveLayer]),
        ("1,5,1,1", "1,5", []),
        ("2,3,4", "2,12", []),
        ("2,3,4", "6,4", []),
        ("2,3,2,2", "4,6", [MoveLayer]),
        ("1,3,4,4", "1,4,3,4", [MoveLayer, MoveLayer]),
    ],
)
def test_a_reshape_moves_what_has_to_move(
    before: str, after: str, kinds: list[type], tmp_path: Path
) -> None:
    shape = np.array([int(each) for each in after.split(",")])
    border = f"g (float[{before}] x) => (float[{after}] y)"
    pool = "MaxPool<kernel_shape=[1,1]>"  # it is of images
    first, last = (
        f"{pool}({name})" if len(each.split(",")) == 4 else f"Add({name}, {name})"
        for name, each in (("x", before), ("b", after))
    )
    text = f"{border} {{ a = {first} b = Reshape(a, shape) y = {last} }}"

    found = network(model(text, {"shape": shape}), tmp_path).layers

    borders = [layer for layer in found if not layer.nodes]
    inside = [layer for layer in found if layer.nodes]
    assert [type(layer) for layer in inside[1:-1]] == kinds
    assert all(isinstance(layer, MoveLayer) for layer in borders)


def test_pools_and_rows_beside_one_another(tmp_path: Path) -> None:
    pool, concat = layers(
        "g (float[1,3,6,6] x) => (float[1,6,6,6] y) {"
        " p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) y = Concat<axis=1>(p, x) }",
        tmp_path,
    )

    assert isinstance(pool, PoolLayer)
    assert pool.average
    assert isinstance(concat, ConcatLayer)
    assert (concat.axis, concat.y.extents) == (3, (1, 6, 6, 6))


@pytest.mark.parametrize(
    ("text", "reason", "nodes"),
    [
        (
            "g (float[2,3] x) => (float[2,3] y) { a = Cos(x) y = Sin(a) }",
            "the machine has no Cos, Sin",
            ("a", "y"),
        ),
        (
            "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
            "'x' is float32[N, 3]: all extents must be known (--dim gives a model's)",
            ("y",),
        ),
        (
            "g (float[1,3,6,6] x, float[4,3,3,3] k) => (float[1,4,4,4] y) { y = Conv(x, k) }",
            "the weights 'k' must be constant",
            ("y",),
        ),
        (
            "g (float[1,3,6,6] x, float h) => (float[1,3,6,6] y) { y = Clip(x, low, h) }",
            "the bounds of a Clip must be constant",
            ("y",),
        ),
        (
            "g (float[1,3,6,6] x) => (float[1,3,5,5] y, int64[1,3,5,5] i)"
            " { y, i = MaxPool<kernel_shape=[2,2]>(x) }",
            "'i' is int64, but must be float32, int8, uint8 or int16",
            (),
        ),
        (
            "g (double[2] x) => (double[2] y) { y = Relu(x) }",
            "'x' is float64, but must be float32, int8, uint8 or int16",
            (),
        ),
    ],
)
def test_what_is_refused(text: str, reason: str, nodes: tuple[str, ...], tmp_path: Path) -> None:
    error = refusal(text, tmp_path)

    assert (str(error), error.nodes) == (reason, nodes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (int8[1,4,2,2] x) => (int8[1,4,2,2] y)"
            " { d = DequantizeLinear<axis=1>(x, ws, wz) a = Relu(d) y = QuantizeLinear(a, u, q) }",
            "activations have a scale for each channel, but must have one scale",
        ),
    ],
)
def test_scales_by_channel_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    assert str(refusal(text, tmp_path, QUANTIZED)) == reason


@pytest.mark.parametrize(
    "body",
    [
        "a = Sigmoid(d)",
        "a = HardSwish(d)",
        "a = MaxPool<kernel_shape=[1,1]>(d)",
        "a = Reshape(d, shape)",
        "a = Dropout(d)",
        "a = Concat<axis=1>(d, d)",
        "a = Mul(d, d)",
    ],
)
@pytest.mark.parametrize("clamp", ["r = Relu(a)", "r = Clip(a, low, high)"])
def test_a_clamp_is_part_of_any_quantized_operation(body: str, clamp: str, tmp_path: Path) -> None:
    channels = 8 if "Concat" in body else 4
    text = f"g (int8[1,4,8,8] x) => (int8[1,{channels},8,8] y) {{" + (
        f" d = DequantizeLinear(x, s, z) {body} {clamp} y = QuantizeLinear(r, t, z) }}"
    )
    given = {
        **{"s": np.float32(0.05), "t": np.float32(0.02), "z": np.int8(3)},
        **{"low": np.float32(-0.2), "high": np.float32(0.7), "shape": np.array([1, 4, 8, 8])},
    }
    x = np.arange(-128, 128).astype(np.int8).reshape(1, 4, 8, 8)
    agrees(model(text, mentioned(text, given)), {"x": x}, tmp_path)
