"""What the dla refuses while it lowers: scales, sums and shapes beyond what the machine can hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dla_regions import agrees, floats, model, network

import byoc
from byoc.codegen import CompileError, find_codegen

RELU = "d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, t, z)"
CONV = """
  d = DequantizeLinear(x, s, z) e = DequantizeLinear(w, v, z) f = DequantizeLinear(b, u)
  c = Conv(d, e, f) y = QuantizeLinear(c, t, z)
"""
RESIDUAL = """
  d = DequantizeLinear(x, s, z) e = DequantizeLinear(w, s, z) f = DequantizeLinear(r, u, z)
  c = Conv(d, e) a = Add(c, f) m = Relu(a) y = QuantizeLinear(m, t, z)
"""
ZERO = {"z": np.int8(0)}


def scales(**given: float) -> dict[str, Any]:
    return {**ZERO, **{name: np.float32(value) for name, value in given.items()}}


def refusal(text: str, constants: dict[str, Any], folder: Path) -> CompileError:
    with pytest.raises(CompileError) as caught:
        network(model(text, constants), folder)
    return caught.value


@pytest.mark.parametrize("bad", [np.inf, np.nan, 0.0, -0.5, 2e36])
@pytest.mark.parametrize("where", ["s", "t"])
def test_a_scale_that_is_none(bad: float, where: str, tmp_path: Path) -> None:
    given = scales(**{"s": 0.5, "t": 0.5, where: bad})
    error = refusal(f"g (int8[4] x) => (int8[4] y) {{ {RELU} }}", given, tmp_path)
    assert str(error).startswith("a scale of ")
    assert error.nodes == ("r", "y")


def test_scales_too_far_apart(tmp_path: Path) -> None:
    text = f"g (int8[4] x) => (int8[4] y) {{ {RELU} }}"
    error = refusal(text, scales(s=1.0, t=2.0**-31), tmp_path)
    assert "a multiplier is at least 0 and less than 2**31" in str(error)
    assert error.nodes == ("r", "y")
    proto = model(text, scales(s=1.0, t=2.0**-30))
    agrees(proto, {"x": np.array([-128, -1, 1, 127], np.int8)}, tmp_path)


@pytest.mark.parametrize("bad", ["v", "u"])
def test_a_scale_of_weights_or_bias_that_is_not_finite(bad: str, tmp_path: Path) -> None:
    text = f"g (int8[1,2,3,3] x) => (int8[1,2,3,3] y) {{ {CONV} }}"
    given = scales(**{"s": 1.0, "t": 1.0, "u": 1.0, "v": 1.0, bad: np.inf})
    given |= {"w": np.ones((2, 2, 1, 1), np.int8), "b": np.ones(2, np.int32)}
    error = refusal(text, given, tmp_path)
    assert str(error) == "a scale of its weights or a bias is not finite"
    assert error.nodes == ("c", "y")


@pytest.mark.parametrize(
    ("bias", "fits"), [(2**31 - 1 - 4 * 127 * 127, True), (2**31 - 4 * 127 * 127, False)]
)
def test_sums_of_int32(bias: int, fits: bool, tmp_path: Path) -> None:
    text = f"g (int8[1,4,2,2] x) => (int8[1,2,2,2] y) {{ {CONV} }}"
    given = scales(s=0.5, v=0.5, u=0.25, t=2.0**23)
    given |= {"w": np.full((2, 4, 1, 1), 127, np.int8), "b": np.array([bias, 5], np.int32)}
    if fits:
        agrees(model(text, given), {"x": np.full((1, 4, 2, 2), 127, np.int8)}, tmp_path)
        return
    error = refusal(text, given, tmp_path)
    assert str(error).endswith(" and leave the range of int32")
    assert error.nodes == ("c", "y")


def test_a_bias_between_two_coarse_sums(tmp_path: Path) -> None:
    text = f"g (int8[1,2,3,3] x) => (int8[1,2,3,3] y) {{ {CONV} }}"
    given = {"w": np.ones((2, 2, 1, 1), np.int8), "b": np.array([5, 100], np.int32)}
    error = refusal(text, given | scales(s=16.0, v=1.0, u=1.0, t=1.0), tmp_path)
    assert str(error) == "the bias does not fit into an int32 at its scale, or is too fine for it"
    assert error.nodes == ("c", "y")
    proto = model(text, given | scales(s=16.0, v=1.0, u=1.0, t=32.0))
    agrees(proto, {"x": np.arange(-9, 9, dtype=np.int8).reshape(1, 2, 3, 3)}, tmp_path)


def residual(scale: float, step: float) -> tuple[str, dict[str, Any]]:
    text = f"g (int8[1,4,3,3] x, int8[1,2,3,3] r) => (int8[1,2,3,3] y) {{ {RESIDUAL} }}"
    given = {**scales(s=1.0, u=scale, t=step), "w": np.full((2, 4, 1, 1), -127, np.int8)}
    return text, given


@pytest.mark.parametrize(("scale", "step"), [(508.0, 0.1), (508.0, 1.0), (64516.0, 0.1), (5e5, 0.1)])
def test_a_residual_that_brings_a_far_sum_back(scale: float, step: float, tmp_path: Path) -> None:
    inputs = {"x": np.full((1, 4, 3, 3), 127, np.int8), "r": np.full((1, 2, 3, 3), 127, np.int8)}
    agrees(model(*residual(scale, step)), inputs, tmp_path)


def test_a_residual_that_no_sum_could_be_brought_back_by(tmp_path: Path) -> None:
    error = refusal(*residual(1e6, 0.1), tmp_path)
    assert str(error) == "its residual's scale is 1e+07 times its result's"
    assert error.nodes == ("c", "a", "m", "y")


def test_a_mean_of_more_than_64_bits(tmp_path: Path) -> None:
    text = """g (int8[1,2,300,300] x) => (int8[1,2,1,1] y) {
      d = DequantizeLinear(x, s, z) p = GlobalAveragePool(d) y = QuantizeLinear(p, t, z) }"""
    error = refusal(text, scales(s=1e-5, t=1.0), tmp_path)
    assert str(error) == "the mean of 90000 numbers by a scale of 1e-05 needs more than 64 bits"
    assert error.nodes == ("p", "y")
    agrees(model(text, scales(s=1.0, t=1.0)), {"x": np.full((1, 2, 300, 300), 77, np.int8)}, tmp_path)


REFUSED = {
    "a window of ceil_mode that starts in the padding": (
        "g (float[1,3,5,1] x) => (float[1,3,3,2] y) { y = MaxPool<kernel_shape=[3,6], strides=[3,8],"
        " pads=[0,5,2,3], ceil_mode=1>(x) }",
        "'y' should have the shape (1, 3, 3, 2), but MaxPool makes (1, 3, 2, 1)",
    ),
    "a window without a position": (
        "g (float[1,1,1,5] x) => (float[1,1,2,5] y)"
        " { y = MaxPool<kernel_shape=[2,1], dilations=[2,1], pads=[1,0,2,0]>(x) }",
        "a window lies in the padding alone",
    ),
    "a convolution of padding": (
        "g (float[1,2,4,4] x) => (float[1,2,8,8] y) { y = Conv<pads=[2,2,2,2]>(x, w) }",
        "a window lies in the padding alone",
    ),
    "a product over nothing": (
        "g (float[2,0] x) => (float[2,3] y) { y = Gemm(x, none) }",
        "it reads a tensor without elements, but its result has some",
    ),
    "five axes, stretched in the middle": (
        "g (float[1,3,2,1,1] x) => (float[1,3,2,1,1] y) { y = Sum(five, x) }",
        "the machine has four axes, but only some of the axes that share one are broadcast",
    ),
    "a bound that is no number": (
        "g (float[4] x) => (float[4] y) { y = Clip(x, nan) }",
        "a bound of a Clip must be one number",
    ),
    "a variance below zero": (
        "g (float[1,2,3,3] x) => (float[1,2,3,3] y) { y = BatchNormalization(x, p, p, p, q) }",
        "the factors of a BatchNormalization must be finite",
    ),
}  # fmt: skip
STORED = {
    "w": floats(2, 2, 1, 1),
    "none": floats(0, 3),
    "five": floats(1, 3, 1, 1, 1),
    "nan": np.float32(np.nan),
    "p": np.ones(2, np.float32),
    "q": np.full(2, -1, np.float32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    text, reason = REFUSED[name]
    error = refusal(text, STORED, tmp_path)
    assert (str(error), error.nodes) == (reason, ("y",))


def test_a_part_of_a_split_with_a_shape_of_its_own(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[4,3] a, float[4,3] b) <float[4,3] p, float[4,3] q> {
      p, q = Split<axis=1, num_outputs=2>(x) a = Relu(p) b = Relu(q) }"""
    proto = model(text, opset=18)
    proto.graph.value_info[1].type.tensor_type.shape.dim[1].dim_value = 2
    with pytest.raises(CompileError) as caught:
        network(proto, tmp_path)
    assert str(caught.value) == "'q' should have the shape (4, 2), but Split makes (4, 3)"
    assert caught.value.nodes == ("p",)


def test_a_split_of_operator_set_1_without_an_axis(tmp_path: Path) -> None:
    text = "g (float[4,6] x) => (float[1,6] a, float[3,6] b) { a, b = Split<split=[1,3]>(x) }"
    made = network(model(text, opset=1), tmp_path)
    assert [port.shape for port in made.outputs] == [(1, 6), (3, 6)]
    assert [(layer.y.name, layer.start) for layer in made.layers] == [("a", 0), ("b", 6)]


def test_a_check_refuses_a_broadcast_that_would_be_wrong() -> None:
    text, reason = REFUSED["five axes, stretched in the middle"]
    found: Any = find_codegen("dla")
    (verdict,) = found.check(model(text, STORED), found.Options())
    assert not verdict
    assert reason in str(verdict)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_bias_times_beta_0_is_not_read(value: float, tmp_path: Path) -> None:
    given = {"w": floats(2, 4), "b": np.full(4, value, np.float32)}
    proto = model("g (float[3,2] x) => (float[3,4] y) { y = Gemm<beta=0.0>(x, w, b) }", given)
    agrees(proto, {"x": floats(3, 2)}, tmp_path)


@pytest.mark.filterwarnings("error")
def test_a_clip_without_a_bound(tmp_path: Path) -> None:
    x = np.array([np.inf, -np.inf, 1, -1], np.float32)
    proto = model(
        "g (float[4] x) => (float[4] y) { y = Clip(x, low) }", {"low": np.zeros(1, np.float32)}
    )
    agrees(proto, {"x": x}, tmp_path)
    text = f"g (int8[4] x) => (int8[4] y) {{ {RELU.replace('Relu(d)', 'Clip(d, low)')} }}"
    proto = model(text, {**scales(s=0.01, t=0.01), "low": np.float32(-0.5)})
    agrees(proto, {"x": np.array([-128, -1, 1, 127], np.int8)}, tmp_path)


def test_integers_without_zero_points(tmp_path: Path) -> None:
    text = """g (int8[4] x) => (int8[4] y)
      { d = DequantizeLinear(x, s) r = Tanh(d) y = QuantizeLinear<output_dtype=3>(r, s) }"""
    proto = model(text, {"s": np.float32(0.02)}, opset=21)
    agrees(proto, {"x": np.array([-128, -1, 1, 127], np.int8)}, tmp_path)


def test_a_bias_that_is_computed_of_integers(tmp_path: Path) -> None:
    text = f"""g (int8[1,4,2,2] x) => (int8[1,2,2,2] y) {{ i = Identity(h)
      {CONV.replace("(b, u)", "(i, u)")} }}"""
    given = scales(s=0.1, v=0.1, u=0.01, t=2.0)
    given |= {"w": np.ones((2, 4, 1, 1), np.int8), "h": np.array([-3000, 5000], np.int32)}
    agrees(model(text, given), {"x": np.full((1, 4, 2, 2), 7, np.int8)}, tmp_path)


def test_the_groups_beside_a_refused_one_are_compiled(tmp_path: Path) -> None:
    text = """g (int8[4,4] x) => (int8[4,4] y) {
      a = DequantizeLinear(x, s, z) b = Relu(a) c = QuantizeLinear(b, s, z)
      d = DequantizeLinear(c, s, z) e = Sigmoid(d) f = QuantizeLinear(e, s, z)
      h = DequantizeLinear(f, s, z) i = Relu(h) y = QuantizeLinear(i, t, z) }"""
    proto = model(text, scales(s=0.1, t=1e-11))
    result = byoc.partition(proto, "dla", output=tmp_path / "b", strategy="all-supported", verify=False)
    assert len(result.report.regions) == 1
    (refused,) = result.report.refusals
    assert set(refused.nodes) == {"h", "i", "y"}
