"""Quantized tensors with a scale and a zero point for each channel."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dla_regions import agrees, bytes_of, model, network
from hypothesis import given
from hypothesis import strategies as st

from byoc.codegen import CompileError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Encoding:
    """Scales and zero points of a tensor: of as many channels, or one of each where there are none."""

    channels: int
    dtype: str
    spread: float
    seed: int = 0

    @property
    def scale(self) -> Any:
        """Numbers from 1 / 128, one of them `spread` times as large."""
        random = np.random.default_rng(self.seed)
        count = self.channels or 1
        scales = (random.uniform(1, self.spread, count) / 128).astype(np.float32)
        return scales if self.channels else scales[0]

    @property
    def zero(self) -> Any:
        """Zero points from anywhere in the range."""
        found = bytes_of(self.channels or 1, dtype=self.dtype, seed=self.seed + 1)
        return found if self.channels else found[0]


def qdq(middle: str, shapes: tuple[Shape, Shape], x: Encoding, y: Encoding, **constants: Any) -> Any:
    """Return the model of some lines from `d`, a tensor of real numbers, to `r`."""
    given, made = (",".join(map(str, shape)) for shape in shapes)
    text = f"""g ({x.dtype}[{given}] x) => ({y.dtype}[{made}] y) {{
      d = DequantizeLinear<axis=1>(x, s, z) {middle} y = QuantizeLinear<axis=1>(r, t, u) }}"""
    scales = {"s": x.scale, "z": x.zero, "t": y.scale, "u": y.zero}
    return model(text, {**scales, **constants}, opset=21)


encodings = st.builds(
    Encoding,
    st.integers(0, 1),
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from([1.0, 3.0, 300.0]),
    st.integers(0, 99),
)


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a convolution of each channel alone, whose tensors may have scales by channel."""
    channels, times = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    made, kernel = channels * times, draw(st.integers(1, 3))
    pads = [draw(st.integers(0, kernel - 1)) for _ in range(4)]
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size = (draw(st.integers(5, 9)), draw(st.integers(5, 9)))
    each = draw(encodings), draw(encodings)
    x = Encoding(each[0].channels * channels, each[0].dtype, each[0].spread, each[0].seed)
    y = Encoding(each[1].channels * made, each[1].dtype, each[1].spread, each[1].seed)
    weights = bytes_of(made, 1, kernel, kernel, seed=draw(st.integers(0, 9))) // 2
    scales = np.random.default_rng(1).uniform(0.004, 0.008, made).astype(np.float32)
    bias_scales = (np.repeat(np.broadcast_to(x.scale, channels), times) * scales).astype(np.float32)
    out = [
        (size[axis] + pads[axis] + pads[axis + 2] - dilation * (kernel - 1) - 1) // stride + 1
        for axis in (0, 1)
    ]
    attributes = (
        f"group={channels}, pads={pads}, strides=[{stride},{stride}], dilations=[{dilation},{dilation}]"
    )
    clamp = draw(st.sampled_from(["", "r = Relu(c)", "r = Clip(c, low, high)"]))
    text = f"""e = DequantizeLinear<axis=0>(w, ws) f = DequantizeLinear<axis=0>(b, bs)
      {"c" if clamp else "r"} = Conv<{attributes}>(d, e, f) {clamp}"""
    proto = qdq(
        text, ((1, channels, *size), (1, made, *out)), x, y, w=weights, ws=scales,
        b=np.arange(made, dtype=np.int32) * 50 - 90, bs=bias_scales,
        low=np.float32(-0.25), high=np.float32(0.5),
    )  # fmt: skip
    return proto, bytes_of(1, channels, *size, dtype=x.dtype)


@given(depthwise())
def test_a_depthwise_convolution_has_scales_by_channel(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Any, Any]
) -> None:
    proto, x = case
    agrees(proto, {"x": x}, tmp_path_factory.mktemp("region"))


C = 7
IMAGE = (2, C, 6, 5)
SAME = (IMAGE, IMAGE)
LATER = Encoding(C, "uint8", 30.0, 5)
ALONE = Encoding(0, "int8", 1.0, 3)
MIDDLES = {
    "sum": "k = DequantizeLinear(o, p, q) r = Add(d, k)",
    "clamped sum": "k = DequantizeLinear(o, p, q) a = Add(k, d) r = Relu(a)",
    "product": "k = DequantizeLinear(o, p, q) r = Mul(d, k)",
    "relu": "r = Relu(d)",
    "relu6": "r = Clip(d, low, high)",
    "sigmoid": "r = Sigmoid(d)",
    "hard swish": "r = HardSwish(d)",
    "gelu": "r = Gelu(d)",
    "convolution": "e = DequantizeLinear(w, v) r = Conv(d, e)",
    "residual": "e = DequantizeLinear(w, v) k = DequantizeLinear(x, p, q) c = Conv(d, e) r = Add(c, k)",
    "clamped residual": """e = DequantizeLinear(w, v) k = DequantizeLinear(x, p, q)
      c = Conv(d, e) a = Add(k, c) r = Relu(a)""",
}
POOLS = {
    "greatest": "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>",
    "mean": "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>",
    "mean with padding": "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>",
}


@pytest.mark.parametrize("y", [LATER, Encoding(C, "int8", 300.0, 8)])
@pytest.mark.parametrize("middle", MIDDLES)
def test_results_have_scales_by_channel(middle: str, y: Encoding, tmp_path: Path) -> None:
    constants = {
        "o": bytes_of(*IMAGE, seed=2), "p": np.float32(0.01), "q": np.int8(7),
        "w": bytes_of(C, C, 1, 1, seed=4), "v": np.float32(0.003),
        "low": np.float32(-0.2), "high": np.float32(0.9),
    }  # fmt: skip
    proto = qdq(MIDDLES[middle], SAME, ALONE, y, **constants)

    agrees(proto, {"x": bytes_of(*IMAGE)}, tmp_path)
    agrees(proto, {"x": bytes_of(*IMAGE)}, tmp_path, scratchpad="1024")  # tiles of few channels


@pytest.mark.parametrize("x", [ALONE, Encoding(C, "uint8", 30.0, 6)])
@pytest.mark.parametrize("y", [LATER, Encoding(0, "uint8", 1.0, 4)])
@pytest.mark.parametrize("pool", POOLS)
def test_pools_have_scales_by_channel(pool: str, x: Encoding, y: Encoding, tmp_path: Path) -> None:
    y = Encoding(y.channels, x.dtype, y.spread, y.seed)
    proto = qdq(f"r = {POOLS[pool]}(d)", SAME, x, y)
    agrees(proto, {"x": bytes_of(*IMAGE, dtype=x.dtype)}, tmp_path)
    made = (2, C, 1, 1)
    agrees(
        qdq("r = GlobalAveragePool(d)", (IMAGE, made), x, y),
        {"x": bytes_of(*IMAGE, dtype=x.dtype)},
        tmp_path,
    )


@pytest.mark.parametrize(
    ("middle", "x", "y"),
    [
        ("e = DequantizeLinear(w, v) r = Conv(d, e)", Encoding(C, "int8", 3.0), ALONE),
        ("r = Add(d, d)", Encoding(C, "int8", 3.0), ALONE),
        ("r = Relu(d)", Encoding(C, "int8", 3.0), ALONE),
        ("r = Concat<axis=1>(d)", ALONE, LATER),
        ("r = Transpose<perm=[0,1,2,3]>(d)", ALONE, LATER),
    ],
)
def test_others_have_one_scale(middle: str, x: Encoding, y: Encoding, tmp_path: Path) -> None:
    constants = {"w": bytes_of(C, C, 1, 1, seed=4), "v": np.float32(0.003)}
    proto = qdq(middle, SAME, x, y, **constants)

    with pytest.raises(CompileError, match="a scale for each channel, but must have one scale"):
        network(proto, tmp_path)
