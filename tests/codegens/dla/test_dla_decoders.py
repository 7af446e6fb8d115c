"""What decoders consist of, on the dla: normalizations by root mean squares, gates, rotations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import ActivationLayer, NormalizeLayer
from byoc.codegens.dla.machine import DType, FunctionKind, Scale
from dla_bench import run_one
from dla_regions import agrees, floats, mentioned, model, network, runtime_model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.codegen import CompileError

_FACTORS = {"gain": floats(8, seed=1), "shift": floats(8, seed=2), "bias": floats(8, seed=3)}


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 3, 4, 8), (1, 3, 1, 8)], ids=str)
def test_normalizations_by_root_mean_squares(shape: tuple[int, ...], tmp_path: Path) -> None:
    extents = ",".join(map(str, shape))
    line = "y = RMSNormalization<epsilon=0.01>(x, gain)"
    text = f"g (float[{extents}] x) => (float[{extents}] y) {{ {line} }}"

    agrees(model(text, mentioned(text, _FACTORS), opset=23), {"x": floats(*shape)}, tmp_path)


def test_a_normalization_that_only_onnxruntime_has(tmp_path: Path) -> None:
    text = (
        "g (float[2,3,8] x) => (float[2,3,8] y) { y = SimplifiedLayerNormalization<axis=-1>(x, gain) }"
    )

    agrees(runtime_model(text, mentioned(text, _FACTORS)), {"x": floats(2, 3, 8)}, tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        "SkipSimplifiedLayerNormalization<epsilon=0.001>(x, z, gain)",
        "SkipSimplifiedLayerNormalization<epsilon=0.001>(x, z, gain, bias)",
        "SkipSimplifiedLayerNormalization<epsilon=0.001>(x, bias3, gain)",
        "SkipLayerNormalization<epsilon=0.001>(x, z, gain)",
        "SkipLayerNormalization<epsilon=0.001>(x, z, gain, shift)",
        "SkipLayerNormalization<epsilon=0.001>(x, z, gain, shift, bias)",
    ],
)
@pytest.mark.parametrize("sum_is_read", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)], ids=str)
def test_normalized_sums(call: str, sum_is_read: bool, skip: tuple[int, ...], tmp_path: Path) -> None:
    outputs, made = (
        ("y, m, v, s", "float[2,3,8] y, float[2,3,8] s") if sum_is_read else ("y", "float[2,3,8] y")
    )
    outputs = outputs.replace("m, v", '"", ""') if sum_is_read else outputs
    extents = ",".join(map(str, skip))
    text = f"g (float[2,3,8] x, float[{extents}] z) => ({made}) {{ {outputs} = com.microsoft.{call} }}"
    constants = mentioned(text, {**_FACTORS, "bias3": floats(2, 3, 8, seed=4)})

    agrees(runtime_model(text, constants), {"x": floats(2, 3, 8), "z": floats(*skip, seed=5)}, tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        *("Sqrt(x)", "Reciprocal(x)", "Neg(x)", "Exp(x)", "Sub(x, k)", "Sub(k, x)", "Div(k, x)"),
        *("com.microsoft.Gelu(x)", "com.microsoft.FastGelu(x)", "com.microsoft.QuickGelu<alpha=1.5>(x)"),
    ],
)
def test_elementwise_operators(call: str, tmp_path: Path) -> None:
    text = f"g (float[2,3,8] x) => (float[2,3,8] y) {{ y = {call} }}"
    proto = runtime_model(text, mentioned(text, {"k": np.abs(floats(8, seed=4)) + 1}))

    agrees(proto, {"x": np.abs(floats(2, 3, 8)) + np.float32(0.1)}, tmp_path)


@pytest.mark.parametrize("order", ["x, s", "s, x"])
def test_a_product_by_its_own_sigmoid_is_one_function(order: str, tmp_path: Path) -> None:
    lines = f"s = Sigmoid(x) m = Mul({order}) y = Mul(m, u)"
    text = f"g (float[2,3,8] x, float[2,3,8] u) => (float[2,3,8] y) {{ {lines} }}"
    proto = model(text)

    layers = network(proto, tmp_path).layers
    assert [layer.nodes for layer in layers] == [("s", "m"), ("y",)]
    assert isinstance(layers[0], ActivationLayer) and layers[0].function is FunctionKind.SWISH
    agrees(proto, {"x": 4 * floats(2, 3, 8), "u": floats(2, 3, 8, seed=1)}, tmp_path)


def test_a_sigmoid_that_is_read_twice_stays(tmp_path: Path) -> None:
    text = "g (float[2,8] x) => (float[2,8] y, float[2,8] s) { s = Sigmoid(x) y = Mul(x, s) }"

    agrees(model(text), {"x": floats(2, 8)}, tmp_path)


def test_a_decomposed_normalization_as_t5_has_it(tmp_path: Path) -> None:
    text = """g (float[2,3,8] x) => (float[2,3,8] y) {
      p = Pow(x, two) m = ReduceMean<keepdims=1>(p, last) e = Add(m, small) r = Sqrt(e)
      d = Div(x, r) y = Mul(gain, d) }"""
    constants = {"two": np.float32(2), "last": np.array([-1]), "small": np.float32(1e-3), **_FACTORS}

    agrees(model(text, mentioned(text, constants), opset=18), {"x": floats(2, 3, 8)}, tmp_path)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_rotations(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rotations of any shape, by ONNX's operator and that of com.microsoft, equal onnxruntime."""
    batch, heads, count = (data.draw(st.integers(1, 3)) for _ in range(3))
    half = data.draw(st.integers(1, 4))
    width = 2 * data.draw(st.integers(half, half + 2))
    four_axes, contrib = data.draw(st.booleans()), data.draw(st.booleans())
    attributes = {
        "interleaved": data.draw(st.integers(0, 1)),
        "num_heads": heads,
        "rotary_embedding_dim": 2 * half if 2 * half < width else 0,
    }
    shape = (batch, heads, count, width) if four_axes else (batch, count, heads * width)
    angles = data.draw(st.integers(0, 2**16))
    constants: dict[str, Any] = {
        name: floats(count + 4, half, seed=angles + seed) for seed, name in enumerate(("cos", "sin"))
    }
    positions = np.random.default_rng(angles).integers(0, count + 4, (batch, count))
    constants["positions"] = np.array([2]) if contrib and data.draw(st.booleans()) else positions
    extents = ",".join(map(str, shape))
    names = "x, positions, cos, sin" if contrib else "x, cos, sin, positions"
    given_ = {"x": floats(*shape, seed=angles)}
    inputs = f"float[{extents}] x"
    if not contrib and data.draw(st.booleans()):
        names = "x, cos, sin"
        for name in ("cos", "sin"):
            each = constants.pop(name)[positions]
            inputs += f", float[{batch},{count},{half}] {name}"
            given_[name] = each
        constants.pop("positions")
    stated = ", ".join(f"{name}={value}" for name, value in attributes.items())
    domain = "com.microsoft." if contrib else ""
    text = f"g ({inputs}) => (float[{extents}] y) {{ y = {domain}RotaryEmbedding<{stated}>({names}) }}"

    agrees(runtime_model(text, constants, opset=23), given_, tmp_path_factory.mktemp("case"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "(float[3,8] x, float[8] k) => (float[3,8] y) { y = RMSNormalization(x, k) }",
            "'k' must be const",
        ),
        (
            "(float[8,3] x) => (float[8,3] y) { y = RMSNormalization<axis=0>(x, gain) }",
            "over the last axis",
        ),
        (
            "(float[1,3,8] x, int64[1,3] p) => (float[1,3,8] y)"
            " { y = com.microsoft.RotaryEmbedding(x, p, table, table) }",
            "float32, int8, uint8 or int16",
        ),
        (
            "(float[1,3,8] x) => (float[1,3,8] y)"
            " { y = com.microsoft.RotaryEmbedding(x, far, table, table) }",
            "positions outside",
        ),
        (
            "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.FastGelu(x, gain) }",
            "an addition of its own",
        ),
        (
            "(float[8,8] x) => (float[8] y) { y = ReduceMean<keepdims=0>(x, first) }",
            "over the last axis",
        ),
    ],
)
def test_what_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    constants = {**_FACTORS, "table": floats(3, 4), "far": np.array([1]), "first": np.array([0])}
    proto = runtime_model(f"g {text}", mentioned(text, constants), opset=23)

    with pytest.raises(CompileError, match=reason):
        network(proto, tmp_path)


def test_integers_become_floats() -> None:
    x = np.array([[[-3, 7, 2**24 + 1, -(2**31)]]], np.int32)

    made = run_one(lambda x, y: Scale(0, x, y, low=-5.0), {"x": x}, x.shape, DType.FLOAT32)

    np.testing.assert_array_equal(made, np.maximum(x.astype(np.float32), np.float32(-5)))


def test_a_normalization_is_one_command(tmp_path: Path) -> None:
    text = "g (float[2,3,8] x) => (float[2,3,8] y) { y = RMSNormalization(x, gain) }"

    (layer,) = network(model(text, mentioned(text, _FACTORS), opset=23), tmp_path).layers
    assert isinstance(layer, NormalizeLayer)
