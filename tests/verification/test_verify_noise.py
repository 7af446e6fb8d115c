"""Noise told from error: rounding of the last operators, quantized activations, and planted errors."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import Ran, parse
from interpreting import RULES, bundle_of, interpreter, only, right
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.pipeline import partition
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    NoiseGauge,
    OutputError,
    compare_tensors,
    read_thresholds,
    run_plain,
    verify_against,
)

Array = NDArray[Any]


X = {"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}


# All results lie near exp(-14), where onnxruntime's Sigmoid is as exact as near 1/2.
SATURATED = """
g (float[1, 64] x) => (float[1, 64] y) <float[1] c = {-14}> { a = Add(x, c) y = Sigmoid(a) }"""


QUANTIZED_RULES = """
target: npu
cost_model: dla
dtype: [int8, float32]
quantization:
  activations: {dtype: int8, symmetric: false, per_channel: false}
  weights: {dtype: int8, symmetric: true, per_channel: false}
  scales: any
ops:
  - op: [MatMul, Relu]
    quantized: true
"""


def judge(
    model: ModelProto,
    actual: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    inputs: Mapping[str, Any] = X,
    quantized: Sequence[str] = (),
) -> OutputError:
    """Return the error of what `actual` makes of the expected outputs, its noise measured."""
    expected = run_plain(model, prepare_model(model, "model"), inputs)
    made = actual(expected)
    gauge = NoiseGauge(model, None, inputs, expected)
    errors = compare_tensors(expected, made, DEFAULT_THRESHOLDS, quantized)
    (error,) = gauge.allow(errors, made, DEFAULT_THRESHOLDS)
    return error


def sigmoid(value: Array) -> Array:
    return (1 / (1 + np.exp(-value.astype(np.float64)))).astype(np.float32)


def test_a_saturated_sigmoid_has_the_resolution_of_one() -> None:
    exact = sigmoid(X["x"] - np.float32(14))
    error = judge(parse(SATURATED), lambda _: {"y": exact})
    assert error.relative > 5e-3, "far beyond the tolerance"
    assert error.within
    assert error.noise is not None
    assert 2e-7 < error.noise < 5e-7, "an epsilon of 1, or a few"
    assert error.noise_source == "rounding in the last operators"
    assert error.relative_noise == pytest.approx(error.noise / np.ptp(exact), rel=0.05)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda y: y * np.float32(1.2), id="scale"),
        pytest.param(lambda y: y * np.float32(0), id="zero"),
        pytest.param(lambda y: y[:, ::-1].copy(), id="order"),
    ],
)
def test_an_error_above_the_resolution_is_one_there_too(spoil: Callable[[Array], Array]) -> None:
    error = judge(parse(SATURATED), lambda made: {"y": spoil(made["y"])})
    assert error.noise is not None
    assert not error.within
    assert error.error_phrase.endswith(" is the noise of rounding in the last operators")


# A Softmax, a normalization, a Sigmoid with a usual range, and a difference of large numbers.
ORDINARY = {
    "softmax": "g (float[1, 64] x) => (float[1, 64] y) { a = Mul(x, x) y = Softmax(a) }",
    "norm": """g (float[1, 64] x) => (float[1, 64] y) <float[1] k = {100}, float[1] s = {1}> {
        a = Add(x, k) o = Sub(x, x) u = Add(o, s) v = Flatten <axis = 0> (u) w = Squeeze(v)
        y = LayerNormalization(a, w) }""",
    "sigmoid": "g (float[1, 64] x) => (float[1, 64] y) { a = Add(x, x) y = Sigmoid(a) }",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_one_percent_is_an_error_of_every_ordinary_tail(name: str) -> None:
    error = judge(parse(ORDINARY[name]), lambda made: {"y": made["y"] * np.float32(1.01)})
    assert not error.within
    assert error.noise is not None
    assert error.noise < 0.01 * error.absolute


def test_a_softmax_before_opset_13_is_over_all_axes_from_the_first_one() -> None:
    model = parse("g (float[1, 8, 2, 4] x) => (float[1, 8, 2, 4] y) { a = Mul(x, x) y = Softmax(a) }")
    model.opset_import[0].version = 11
    inputs = {"x": X["x"].reshape(1, 8, 2, 4)}
    error = judge(model, lambda made: {"y": made["y"] * np.float32(1.01)}, inputs)
    assert not error.within
    assert error.noise is not None
    assert error.noise < 0.01 * error.absolute


def test_a_difference_of_large_numbers_has_their_resolution() -> None:
    """a is near 1e4 with an epsilon of 1e-3, and y is what is left of it: about 0.1."""
    text = """g (float[1, 64] x) => (float[1, 64] y) <float[1] k = {10000}, float[1] s = {0.1}> {
        t = Mul(x, s) a = Add(t, k) y = Sub(a, k) }"""
    exact = X["x"] * np.float32(0.1)
    error = judge(parse(text), lambda _: {"y": exact})
    assert error.relative > 1e-4
    assert error.within
    assert error.noise is not None
    assert 1e-3 < error.noise < 1e-2
    assert not judge(parse(text), lambda _: {"y": exact * np.float32(1.2)}).within


@cache
def amplifying() -> tuple[ModelProto, Mapping[str, Array]]:
    """Return a network whose sums cancel, by a factor of 5,000, before the last product; its weights."""
    generator = np.random.default_rng(1)
    first = generator.standard_normal((64, 64)).astype(np.float32)
    near = first * (1 + 2e-4 * generator.standard_normal((64, 64))).astype(np.float32)
    weights = {"a": first, "b": near, "c": generator.standard_normal((64, 64)).astype(np.float32)}
    model = parse("""g (float[1, 64] x) => (float[1, 64] y) {
        m = MatMul(x, a) n = MatMul(x, b) d = Sub(m, n) y = MatMul(d, c) }""")
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return model, weights


def compute_amplified(**spoiled: Array) -> Array:
    """Return the output of the network in float64, rounded once; some weights may be others."""
    weights = {
        name: spoiled.get(name, value).astype(np.float64) for name, value in amplifying()[1].items()
    }
    x = X["x"].astype(np.float64)
    made: Array = ((x @ weights["a"] - x @ weights["b"]) @ weights["c"]).astype(np.float32)
    return made


def test_sums_that_cancel_make_noise_further_on() -> None:
    error = judge(amplifying()[0], lambda _: {"y": compute_amplified()})
    assert error.relative > 1e-4
    assert error.noise_source == "the order in which contractions add up"
    assert error.within
    assert error.noise is not None
    assert error.noise < 20 * error.absolute


def zero_block(weights: Array) -> Array:
    """Return weights of which a block of four rows is zero."""
    made = weights.copy()
    made[:4] = 0
    return made


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda w: w * np.float32(1.05), id="scale"),
        pytest.param(lambda w: w[:, ::-1], id="order"),
        pytest.param(zero_block, id="block"),
    ],
)
def test_a_wrong_weight_is_above_the_noise_of_sums(spoil: Callable[[Array], Array]) -> None:
    wrong = compute_amplified(c=spoil(amplifying()[1]["c"]))
    error = judge(amplifying()[0], lambda _: {"y": wrong})
    assert error.noise is not None
    assert not error.within


def test_what_the_user_asks_holds_as_it_is() -> None:
    model, exact = parse(SATURATED), sigmoid(X["x"] - np.float32(14))
    expected = run_plain(model, prepare_model(model, "model"), X)
    for thresholds in (read_thresholds({"float32": "1e-4"}), read_thresholds({}, 60)):
        gauge = NoiseGauge(model, None, X, expected)
        made = {"y": exact}
        (error,) = gauge.allow(compare_tensors(expected, made, thresholds), made, thresholds)
        assert not error.within
        assert error.noise is None


def test_a_right_bundle_is_written_and_nothing_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    exact = sigmoid(X["x"] - np.float32(14))
    vendors.install(monkeypatch, wrong=interpreter(only("y", lambda _: exact)))
    bundle = bundle_of(parse(SATURATED), tmp_path)
    found = verify_against(bundle.folder, inputs=X, regions=True)
    assert found.outputs[0].relative > 5e-3
    assert found.passed
    np.savez(tmp_path / "x.npz", **X)
    ran = byoc("verify", bundle.folder, "--inputs", tmp_path / "x.npz", "--bisect")
    assert ran.code == 0
    assert "There is no region to narrow: each is within its tolerance" in ran.out
    assert "by rounding in the last operators" in ran.out
    spoilt = interpreter(only("y", lambda value: value * np.float32(1.5)))
    vendors.install(monkeypatch, wrong=spoilt)
    assert not verify_against(bundle.folder, inputs=X, regions=True).passed


def dense(weight: Array, quantized: bool) -> ModelProto:
    """Two layers of 64 numbers with int8 weights, the activations int8 as well where `quantized`."""
    stored = {
        "w": weight,
        "ws": np.array(0.01, np.float32),
        "s": np.array(0.05, np.float32),
        "t": np.array(0.03, np.float32),
        "z": np.array(0, np.int8),
    }
    nodes = [helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["wd"])]
    read = "x"
    for layer, made in enumerate(("a", "y")):
        if quantized:
            scale = "t" if layer else "s"
            nodes += [
                helper.make_node("QuantizeLinear", [read, scale, "z"], [f"q{layer}"]),
                helper.make_node("DequantizeLinear", [f"q{layer}", scale, "z"], [f"d{layer}"]),
            ]
            read = f"d{layer}"
        nodes.append(helper.make_node("MatMul", [read, "wd"], [made]))
        read = made
    shape = [1, 64]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHT = np.random.default_rng(1).integers(-40, 40, (64, 64)).astype(np.int8)


def spoil_weight(name: str) -> Array:
    """Return the weights with a planted error."""
    spoilt = WEIGHT.copy()
    match name:
        case "zeroed block":
            spoilt[:16, :16] = 0
        case "scale":
            spoilt = np.round(WEIGHT * 1.05).astype(np.int8)
        case "axis":
            spoilt = WEIGHT.T.copy()
    return spoilt


@pytest.mark.parametrize("name", ["zeroed block", "scale", "axis"])
@pytest.mark.parametrize("quantized", [True, False])
def test_a_planted_error_is_one_with_quantized_weights_and_activations(
    name: str, quantized: bool
) -> None:
    model, other = dense(WEIGHT, quantized), dense(spoil_weight(name), quantized)
    error = judge(model, lambda _: run_plain(other, prepare_model(other, "other"), X))
    assert error.tolerance == 1e-4
    assert error.noise is not None
    assert not error.within


def test_steps_of_quantized_activations_are_noise() -> None:
    """Values near a tie are rounded to the other integer: a part of the noise of all rounding."""
    model = dense(WEIGHT, quantized=True)
    moved = {"x": X["x"] + np.float32(2e-3)}
    error = judge(model, lambda _: run_plain(model, prepare_model(model, "model"), moved))
    assert error.relative > 1e-4
    assert error.within
    assert error.noise_source == "rounding the activations to integers"
    alone = dense(WEIGHT, quantized=False)
    assert not judge(alone, lambda _: run_plain(alone, prepare_model(alone, "alone"), moved)).within


def test_partition_refuses_a_zeroed_block_of_quantized_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """partition and verify say the same of the same bundle."""
    zeroed = dense(spoil_weight("zeroed block"), quantized=False)
    made = run_plain(zeroed, prepare_model(zeroed, "zeroed"), X)["y"]

    def spoil(node: NodeProto, model: ModelProto, values: list[Any]) -> Sequence[Any]:
        return [made] if node.output[0] == "y" else values

    rules = RULES.replace("Conv,", "Conv, MatMul,").replace("float32", "[float32, int8]")
    model = dense(WEIGHT, quantized=False)
    for spoiling, passes in ((right, True), (spoil, False)):
        vendors.install(monkeypatch, wrong=interpreter(spoiling))
        bundle = bundle_of(model, tmp_path, rules=rules)
        assert len(bundle.manifest.regions) == 1
        assert verify_against(bundle.folder, model_file(model, tmp_path), regions=True).passed is passes
        try:
            partition(
                model,
                tmp_path / "npu.yaml",
                output=tmp_path / "c",
                strategy="all-supported",
                codegen="wrong",
                strict=True,
            )
            written = True
        except InputError:
            written = False
        assert written is passes


def model_file(model: ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


PRODUCT_RULES = """
target: npu
cost_model: dla
dtype: any
ops: [{op: com.microsoft.MatMulNBits}]
"""


def make_product() -> tuple[ModelProto, Array]:
    """Return a model of one product whose activations may be rounded to int8, and its weights."""
    random = np.random.default_rng(4)
    packed = random.integers(0, 256, (32, 2, 16)).astype(np.uint8)
    scales = (0.05 + 0.01 * random.random((32, 2))).astype(np.float32)
    attributes = {"K": 64, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(32, 2, 32).astype(np.float32) - 8
    weights = (numbers * scales[..., None]).reshape(32, 64).T
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), weights


@pytest.mark.parametrize(
    ("spoil", "passes"),
    [
        (lambda weights: weights, True),
        (lambda weights: 1.05 * weights, False),
        (lambda weights: np.where(np.arange(32) < 16, weights, 0), False),
        (lambda weights: np.roll(weights, 1, axis=0), False),
    ],
    ids=["exact", "scale", "zeroed block", "rolled"],
)
def test_a_product_may_leave_its_activations_as_they_are(
    spoil: Callable[[Array], Array], passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accuracy_level` 4 lets onnxruntime round them to int8; it asks nobody to."""
    model, weights = make_product()
    x = {"x": np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)}
    made = x["x"].astype(np.float64) @ spoil(weights)
    vendors.install(monkeypatch, wrong=interpreter(only("y", lambda _: made.astype(np.float32))))
    bundle = bundle_of(model, tmp_path, rules=PRODUCT_RULES)
    onnx.save(model, tmp_path / "m.onnx")
    found = verify_against(bundle, tmp_path / "m.onnx", inputs=x, regions=True)
    (error,) = found.outputs
    assert error.relative > 1e-3, "beyond the tolerance: onnxruntime rounds"
    assert found.passed is passes
    assert [each.within for each in (error, *found.regions)] == [passes, passes]
    if passes:
        assert error.noise_source.startswith("rounding the activations of products")


CASTS = {"bfloat16": 16, "float16": 10, "float8e4m3fn": 17}


ROUND_TRIP = """g (float[4096,32] x) => (float[4096,{width}] y) <float[32,8] v = {{{weights}}}> {{
    a = {operator}(x)
    b = Cast <to = {to}> (a)
    c = Cast <to = 1> (b)
    {tail}
}}"""


TAILS = {
    "alone": (32, "y = Relu(c)"),
    "deep": (8, "d = MatMul(c, v)\n e = Cast <to = {to}> (d)\n y = Cast <to = 1> (e)"),
}


@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("operator", ["Tanh", "Exp", "Identity"])
@pytest.mark.parametrize("tail", TAILS)
def test_a_round_trip_through_a_short_dtype_may_flip_few_elements_and_not_be_left_out(
    dtype: str, operator: str, tail: str
) -> None:
    generator = np.random.default_rng(5)
    weights = ", ".join(f"{weight:.4f}" for weight in generator.normal(size=256))
    width, lines = TAILS[tail]
    to = CASTS[dtype]
    model = parse(
        ROUND_TRIP.format(
            width=width, weights=weights, operator=operator, to=to, tail=lines.format(to=to)
        ),
        ir=10,
        opset=21,
    )
    inputs = {"x": generator.normal(size=(4096, 32)).astype(np.float32)}
    prepared = prepare_model(model, "model")
    expected = run_plain(model, prepared, inputs)
    # What operators make may be some units of float32 off, before the cast rounds it.
    other = onnx.ModelProto()
    other.CopyFrom(model)
    step = generator.choice([1 - 2.0**-18, 1, 1 + 2.0**-18], size=(4096, 32)).astype(np.float32)
    other.graph.initializer.append(onnx.numpy_helper.from_array(step, "step"))
    other.graph.node.insert(1, onnx.helper.make_node("Mul", ["a", "step"], ["moved"]))
    other.graph.node[2].input[0] = "moved"
    flipped = run_plain(other, prepared, inputs)
    # An accelerator that computes in float32 throughout.
    without = onnx.ModelProto()
    without.CopyFrom(model)
    for node in without.graph.node:
        if node.op_type == "Cast":
            node.op_type = "Identity"
            del node.attribute[:]
    dropped = run_plain(without, prepared, inputs)
    gauge = NoiseGauge(model, None, inputs, expected)
    assert not np.array_equal(flipped["y"], expected["y"])
    (right,) = gauge.compare(flipped, DEFAULT_THRESHOLDS)
    (wrong,) = gauge.compare(dropped, DEFAULT_THRESHOLDS)
    if (operator, tail) == ("Identity", "alone"):
        assert not right.within, "inputs are the same on both sides"
    else:
        assert right.within
    assert not wrong.within


def test_what_is_computed_in_bfloat16_is_held_to_its_tolerance() -> None:
    model = parse(
        """g (float[8] x, float[8] z) => (float[8] y, float[8] w) {
            a = Cast <to = 16> (x)
            b = Add(a, a)
            c = Cast <to = 1> (b)
            y = Sin(c)
            d = Cast <to = 16> (z)
            w = Cast <to = 1> (d)
        }""",
        ir=10,
        opset=21,
    )
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    expected = {"y": np.sin(2 * x), "w": x}
    gauge = NoiseGauge(model, None, {"x": x, "z": x}, expected)
    near = {name: value + np.float32(0.02) for name, value in expected.items()}
    computed, passed = gauge.compare(near, DEFAULT_THRESHOLDS)
    assert computed.within
    assert computed.noise_source == "computing in bfloat16"
    assert not passed.within
    far, _ = gauge.compare({"y": expected["y"] + np.float32(0.15), "w": x}, DEFAULT_THRESHOLDS)
    assert not far.within
