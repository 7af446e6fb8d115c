"""The dla's convolutions against onnxruntime: floats within 1e-5, int8 within one and mostly equal."""

from dataclasses import replace

import numpy as np
import pytest
from byoc.codegens.dla.machine import ABSENT, Conv, ConvFlags, DType, to_multiplier
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import Array, onnx_run, run_one, to_rows
from dla_cases import Case, bytes_of, close, floats, same_integers
from hypothesis import assume, given
from hypothesis import strategies as st

INF = float("inf")
SX, SY = np.float32(0.0417), np.float32(0.0931)
CONVOLUTIONS = {
    "plain": Case(),
    "pointwise": Case(kernel=(1, 1)),
    "padded": Case(pads=(1, 1, 1, 1)),
    "padded unevenly": Case(pads=(2, 0, 1, 2)),
    "strided": Case(strides=(2, 3), pads=(1, 1, 1, 1)),
    "dilated": Case(dilations=(2, 3), pads=(2, 3, 2, 3)),
    "oblong": Case(kernel=(1, 5), pads=(0, 2, 0, 2)),
    "grouped": Case(groups=4, pads=(1, 1, 1, 1)),
    "grouped and strided": Case(groups=2, strides=(2, 2), pads=(1, 1, 1, 1)),
    "depthwise": Case(groups=8, makes=8, pads=(1, 1, 1, 1)),
    "depthwise, strided and dilated": Case(groups=8, makes=8, strides=(2, 2), dilations=(2, 2)),
    "depthwise, two for each": Case(groups=8, makes=16, pads=(1, 1, 1, 1)),
    "large kernel": Case(channels=3, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
}


def weights_of(case: Case, seed: int) -> Array:
    """Return random weights [out, in per group, rows, cols]."""
    return floats(seed, case.makes, case.channels // case.groups, *case.kernel)


def packed(weights: Array) -> Array:
    return np.ascontiguousarray(weights.transpose(0, 2, 3, 1))


def float_conv(case: Case, **more: object):
    return lambda **boxes: Conv(
        0,
        flags=ConvFlags.ONLY,
        **{"accumulator": ABSENT, "residual": ABSENT, **boxes},
        **case.geometry,
        groups=case.groups,
        **more,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return any convolutions that have an output."""
    pair = lambda low, high: draw(st.tuples(st.integers(low, high), st.integers(low, high)))  # noqa: E731
    groups = draw(st.integers(1, 4))
    case = Case(
        channels=groups * draw(st.integers(1, 3)),
        makes=groups * draw(st.integers(1, 3)),
        kernel=pair(1, 4),
        strides=pair(1, 3),
        dilations=pair(1, 2),
        pads=(*pair(0, 3), *pair(0, 3)),
        groups=groups,
        size=pair(3, 9),
    )
    assume(min(case.out) > 0)
    return case


def check_float(case: Case) -> None:
    x, w, b = floats(1, 1, case.channels, *case.size), weights_of(case, 2), floats(3, case.makes)
    text = f"""g (float[1,{case.channels},{case.size[0]},{case.size[1]}] x,
      float[{case.makes},{w.shape[1]},{case.kernel[0]},{case.kernel[1]}] w, float[{case.makes}] b) =>
      (float[N,C,H,W] y) {{ y = Conv<group={case.groups}, {case.attributes}>(x, w, b) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "b": b}))
    arrays = {"x": to_rows(x), "weights": packed(w).reshape(1, 1, -1), "parameters": b}
    close(run_one(float_conv(case), arrays, (*case.out, case.makes)), theirs)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_float_convolutions(case: Case):
    check_float(case)


@given(cases())
def test_any_float_convolution(case: Case):
    check_float(case)


def test_a_float_convolution_adds_the_residual_before_the_clamp():
    case = Case(pads=(1, 1, 1, 1))
    x, w, z = floats(1, 1, 8, *case.size), weights_of(case, 2), floats(3, 1, 12, *case.size)
    text = f"""g (float[1,8,11,9] x, float[12,8,3,3] w, float[1,12,11,9] z) => (float[N,C,H,W] y)
      {{ c = Conv<{case.attributes}>(x, w) a = Add(c, z) y = Relu(a) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "z": z}))
    arrays = {"x": to_rows(x), "weights": packed(w).reshape(1, 1, -1), "residual": to_rows(z)}
    mine = run_one(float_conv(case, parameters=ABSENT, low=0.0), arrays, (*case.out, 12))
    assert (theirs == 0).any()
    close(mine, theirs)


def quantized_conv(case: Case, scales: Array, weights: Array, bias: Array, low: float = -INF):
    """Return a QDQ convolution's command and its parameters, for int8 with the zero points 5 and -7."""
    made = [to_multiplier(float(np.float64(SX) * scale / np.float64(SY))) for scale in scales]
    parameters = np.array([bias, *np.array(made).T]).astype(np.int32)
    more = {"x_zero": 5, "y_zero": -7, "low": low}
    arrays = {"weights": packed(weights).reshape(1, 1, -1), "parameters": parameters.reshape(1, 1, -1)}
    return float_conv(case, **more), arrays


def quantized_case(case: Case):
    x = bytes_of(1, np.int8, 1, case.channels, *case.size)
    w = bytes_of(2, np.int8, case.makes, case.channels // case.groups, *case.kernel)
    terms = w[0].size
    scales = (np.linspace(0.6, 1.4, case.makes) * 0.02 / np.sqrt(terms)).astype(np.float32)
    bias = np.random.default_rng(4).integers(-4000, 4000, case.makes).astype(np.int32)
    return x, w, scales, bias


@pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_int8_convolutions(case: Case, relu: bool):
    x, w, scales, bias = quantized_case(case)
    text = f"""g (int8[1,{case.channels},{case.size[0]},{case.size[1]}] x,
      int8[{case.makes},{w.shape[1]},{case.kernel[0]},{case.kernel[1]}] w, float[{case.makes}] ws,
      int32[{case.makes}] b, float[{case.makes}] bs) => (int8[N,C,H,W] y)
      <float sx = {{{SX}}}, int8 zx = {{5}}, float sy = {{{SY}}}, int8 zy = {{-7}}> {{
      d = DequantizeLinear(x, sx, zx) v = DequantizeLinear<axis=0>(w, ws)
      u = DequantizeLinear<axis=0>(b, bs) c = Conv<group={case.groups}, {case.attributes}>(d, v, u)
      r = {"Relu" if relu else "Identity"}(c) y = QuantizeLinear(r, sy, zy) }}"""
    theirs = to_rows(onnx_run(text, {"x": x, "w": w, "ws": scales, "b": bias, "bs": SX * scales}))
    make, arrays = quantized_conv(case, scales, w, bias, -7 if relu else -INF)
    mine = run_one(make, {"x": to_rows(x), **arrays}, (*case.out, case.makes), DType.INT8)
    same_integers(mine, theirs)


def test_a_convolution_that_needs_more_than_x_and_its_padding_is_an_error():
    case = Case(pads=(1, 1, 1, 1))
    arrays = {"x": floats(1, 11, 9, 8), "weights": packed(weights_of(case, 2)).reshape(1, 1, -1)}
    with pytest.raises(
        SimulationError, match=r"CONV .*windows need 14 rows, but x has 13 with the padding"
    ):
        run_one(float_conv(case, parameters=ABSENT), arrays, (12, 9, 12))


def test_a_padded_tile_that_is_too_large_to_simulate_is_an_error():
    case = Case(pads=(2**31, 1, 1, 1))
    arrays = {"x": floats(1, 11, 9, 8), "weights": packed(weights_of(case, 2)).reshape(1, 1, -1)}
    message = r"CONV .*windows and padding hold 18\d{10} values; 268435456 can be simulated"
    with pytest.raises(SimulationError, match=message):
        run_one(float_conv(case, parameters=ABSENT), arrays, (11, 9, 12))


def test_a_sum_that_leaves_int32_is_an_error():
    case = Case(channels=1, makes=1, kernel=(1, 1), size=(1, 1))
    make, arrays = quantized_conv(
        case, np.float32([0.1]), np.int8([[[[127]]]]), np.array([2**31 - 1], np.int32)
    )
    with pytest.raises(SimulationError, match="a sum leaves the range of int32"):
        run_one(make, {"x": np.full((1, 1, 1), 127, np.int8), **arrays}, (1, 1, 1), DType.INT8)


def test_sums_are_exact_where_float32_is_not():
    x = bytes_of(1, np.uint8, 2, 3, 3000) | 129
    weights = np.abs(bytes_of(2, np.int8, 5, 1, 1, 3000)) | 65
    bias = np.arange(5, dtype=np.int32)
    arrays = {"x": x, "weights": weights.reshape(1, 1, -1), "parameters": np.tile(bias, 3)}
    case = Case(kernel=(1, 1))
    mine = run_one(
        lambda y, **boxes: Conv(
            0, ConvFlags.FIRST, accumulator=y, y=replace(y, dtype=DType.UINT8), residual=ABSENT,
            **boxes, **case.geometry,
        ),
        arrays, (2, 3, 5), DType.INT32,
    )  # fmt: skip
    exact = x.astype(np.int64) @ weights.reshape(5, -1).astype(np.int64).T + bias
    assert (np.abs(exact) > 2**24).any()
    assert (mine == exact).all()
