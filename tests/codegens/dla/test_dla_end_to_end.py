"""The dla from a model to numbers: operators one by one, whole networks, quantized and striped."""

from pathlib import Path

import numpy as np
import pytest
from dla_regions import NETWORK, WEIGHTS, agrees, bytes_of, floats, mentioned, model, network

import byoc
from byoc.codegen import CompileError

IMAGE = "g (float[2,6,7,9] x) => (float[{}] y)"
CONSTANTS = {
    "w": floats(4, 6, 3, 3),
    "grouped": floats(9, 2, 3, 3),
    "deep": floats(6, 1, 3, 3),
    "b": floats(4),
    "k": floats(6, 1, 1),
    "m": floats(5, 8),
    "n": floats(5),
    "one": np.float32(0.75),
    "zero": np.float32(0.0),
    "shape": np.array([2, 3, 2, 63]),
    "back": np.array([2, 9, 7, 6]),
}
# What a model computes, and the shape of it.
FLOATS = {
    "strides and unequal pads": ("2,4,4,4", "y = Conv<strides=[2,2], pads=[1,0,1,1]>(x, w, b)"),
    "dilations": ("2,4,7,9", "y = Conv<dilations=[2,2], pads=[2,2,2,2]>(x, w)"),
    "groups": ("2,9,5,7", "y = Conv<group=3>(x, grouped)"),
    "depthwise": ("2,6,5,7", "c = Conv<group=6>(x, deep) y = Relu(c)"),
    "a residual": ("2,6,7,9", "c = Conv<group=6, pads=[1,1,1,1]>(x, deep) a = Add(x, c) y = Relu(a)"),
    "ceil_mode": ("2,6,4,5", "y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)"),
    "padding counts": (
        "2,6,4,5",
        "y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x)",
    ),
    "padding does not count": (
        "2,6,4,5",
        "y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
    ),
    "a global pool": ("2,6,1,1", "p = GlobalAveragePool(x) y = Mul(p, one)"),
    "a channel": ("2,6,7,9", "a = Mul(x, k) y = Add(one, a)"),
    "a channel for each image": ("2,6,7,9", "p = GlobalAveragePool(x) s = Sigmoid(p) y = Mul(x, s)"),
    "three operands": ("2,6,7,9", "y = Sum(x, k, x)"),
    "channels beside one another": (
        "2,12,7,9",
        "a = Relu(x) c = Concat<axis=1>(a, x) y = Clip(c, zero, one)",
    ),
    "rows beside one another": ("2,6,14,9", "y = Concat<axis=2>(x, x)"),
    "columns beside one another": ("2,6,7,18", "y = Concat<axis=3>(x, x)"),
    "images beside one another": ("4,6,7,9", "y = Concat<axis=0>(x, x)"),
    "functions": (
        "2,6,7,9",
        "a = Tanh(x) b1 = HardSwish(a) c = LeakyRelu(b1) d = Elu(c) y = HardSigmoid(d)",
    ),
    "another image": ("2,9,7,6", "y = Reshape(x, back)"),
    "rows of another length": ("2,3,2,63", "f = Flatten(x) r = Relu(f) y = Reshape(r, shape)"),
    "an image as a row": ("2,378", "r = Relu(x) y = Flatten(r)"),
}


@pytest.mark.parametrize("stripes", ["no", "yes"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, stripes: str, tmp_path: Path) -> None:
    extents, text = FLOATS[name]
    proto = model(f"{IMAGE.format(extents)} {{ {text} }}", mentioned(text, CONSTANTS))

    agrees(proto, {"x": floats(2, 6, 7, 9, seed=7)}, tmp_path, scratchpad="4096", stripes=stripes)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("scratchpad", ["2048", "65536"])
def test_fully_connected(rows: int, scratchpad: str, tmp_path: Path) -> None:
    proto = model(
        f"g (float[{rows},8] x) => (float[{rows},5] y)"
        " { y = Gemm<transB=1, alpha=0.5, beta=2.0>(x, m, n) }",
        {"m": CONSTANTS["m"], "n": CONSTANTS["n"]},
    )

    agrees(proto, {"x": floats(rows, 8)}, tmp_path, scratchpad=scratchpad)


@pytest.mark.parametrize("scratchpad", ["2048", "65536"])
@pytest.mark.parametrize("shape", ["7,8", "3,7,8"])
def test_a_product_by_a_matrix(shape: str, scratchpad: str, tmp_path: Path) -> None:
    extents = [int(extent) for extent in shape.split(",")]
    proto = model(
        f"g (float[{shape}] x) => (float[{shape[:-1]}5] y)"
        " { p = MatMul(x, m) r = Relu(p) y = Add(r, n) }",
        {"m": CONSTANTS["m"].T, "n": CONSTANTS["n"]},
    )

    agrees(proto, {"x": floats(*extents)}, tmp_path, scratchpad=scratchpad)


@pytest.mark.parametrize("shape", ["7,8", "3,7,8"])
def test_a_product_of_integers_by_a_matrix(shape: str, tmp_path: Path) -> None:
    extents = [int(extent) for extent in shape.split(",")]
    constants = {
        **{name: SCALES[name] for name in ("s", "z", "u", "q")},
        "m": bytes_of(8, 4),
        "ms": SCALES["ws"],
        "mz": SCALES["wz"],
    }
    proto = model(
        f"g (int8[{shape}] x) => (int8[{shape[:-1]}4] y) {{ d = DequantizeLinear(x, s, z)"
        " e = DequantizeLinear<axis=1>(m, ms, mz) p = MatMul(d, e) y = QuantizeLinear(p, u, q) }",
        constants,
    )

    agrees(proto, {"x": bytes_of(*extents)}, tmp_path)


@pytest.mark.parametrize(
    ("given", "made", "matrix"),
    [("2,3,7,8", "2,3,7,5", (1, 3, 8, 5)), ("3,7,8", "2,3,7,5", (2, 3, 8, 5))],
)
def test_a_product_that_the_machine_has_not(
    given: str, made: str, matrix: tuple[int, ...], tmp_path: Path
) -> None:
    text = f"g (float[{given}] x) => (float[{made}] y) {{ y = MatMul(x, m) }}"

    with pytest.raises(CompileError, match="a MatMul must be by a constant matrix, or of 2 to 4 axes"):
        network(model(text, {"m": floats(*matrix)}), tmp_path)


@pytest.mark.parametrize("scratchpad", ["2048", "16384"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_over_parts_of_its_channels(groups: int, scratchpad: str, tmp_path: Path) -> None:
    proto = model(
        f"g (float[1,64,5,5] x) => (float[1,40,3,3] y) {{ y = Conv<group={groups}>(x, w) }}",
        {"w": floats(40, 64 // groups, 3, 3)},
    )

    agrees(proto, {"x": floats(1, 64, 5, 5)}, tmp_path, scratchpad=scratchpad)


SCALES = {
    "s": np.float32(0.02),
    "z": np.int8(3),
    "u": np.float32(0.05),
    "q": np.int8(-7),
    "sp": np.float32(0.03),
    "zp": np.uint8(120),
    "w": bytes_of(4, 4, 3, 3),
    "ws": np.array([0.005, 0.01, 0.002, 0.004], np.float32),
    "wz": np.zeros(4, np.int8),
    "b": bytes_of(4, dtype="int16").astype(np.int32),
    "bs": np.array([0.0001, 0.0002, 0.00004, 0.00008], np.float32),
}
QDQ_CONV = (
    "e = DequantizeLinear<axis=0>(w, ws, wz) f = DequantizeLinear<axis=0>(b, bs)"
    " c = Conv<pads=[1,1,1,1]>(d, e, f)"
)
INTEGERS = {
    "conv": QDQ_CONV + " y = QuantizeLinear(c, u, q)",
    "conv and relu": QDQ_CONV + " r = Relu(c) y = QuantizeLinear(r, u, q)",
    "conv and residual": QDQ_CONV + " a = Add(c, d) r = Relu(a) y = QuantizeLinear(r, u, q)",
    "max": "p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(d) y = QuantizeLinear(p, u, q)",
    "mean": "p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(d) y = QuantizeLinear(p, s, z)",
    "sum": "a = Add(d, d) y = QuantizeLinear(a, u, q)",
    "product": "a = Mul(d, d) y = QuantizeLinear(a, u, q)",
    "concat": "a = Concat<axis=1>(d, d) y = QuantizeLinear(a, u, q)",
    "table": "a = Sigmoid(d) y = QuantizeLinear(a, u, q)",
    "elu": "a = Elu(d) y = QuantizeLinear(a, s, z)",
    "unsigned": "a = Relu(d) y = QuantizeLinear(a, sp, zp)",
    "another scale": "a = Relu(d) g1 = QuantizeLinear(a, u, q) h = DequantizeLinear(g1, u, q)"
    " i = Flatten(h) y = QuantizeLinear(i, s, z)",
}


@pytest.mark.parametrize("scratchpad", ["1024", "65536"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, scratchpad: str, tmp_path: Path) -> None:
    text = "d = DequantizeLinear(x, s, z) " + INTEGERS[name]
    shape = {"concat": "1,8,6,6", "another scale": "1,144"}.get(name, "1,4,6,6")
    kind = "uint8" if name == "unsigned" else "int8"
    proto = model(f"g (int8[1,4,6,6] x) => ({kind}[{shape}] y) {{ {text} }}", mentioned(text, SCALES))

    agrees(proto, {"x": bytes_of(1, 4, 6, 6)}, tmp_path, scratchpad=scratchpad)


@pytest.mark.parametrize("stripes", ["no", "yes"])
def test_a_network_of_each_kind_of_layer(stripes: str, tmp_path: Path) -> None:
    agrees(
        model(NETWORK, WEIGHTS),
        {"x": floats(1, 6, 20, 20, seed=7)},
        tmp_path,
        scratchpad="4096",
        stripes=stripes,
    )


def partitioned(folder: Path, name: str, **options: str) -> byoc.Result:
    return byoc.partition(
        f"zoo:{name}",
        "dla",
        output=folder / "b",
        strategy="all-supported",
        codegen_options=options,
        strict=True,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squeezenet", {"scratchpad": "131072"}),
        ("squeezenet", {"scratchpad": "2097152", "stripes": "yes"}),
        ("shufflenet", {}),
    ],
)
def test_networks(name: str, options: dict[str, str], tmp_path: Path) -> None:
    result = partitioned(tmp_path, name, **options)

    assert result.verification is not None
    assert result.verification.passed
    assert max(output.relative for output in result.verification.outputs) < 1e-4
