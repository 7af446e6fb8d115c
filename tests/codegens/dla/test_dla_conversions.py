"""Operators in floating point between quantized ones: the machine converts between the two."""

from pathlib import Path

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import ActivationLayer, ConvLayer
from dla_regions import agrees, bytes_of, executed, floats, mentioned, model, network

import byoc
from byoc.codegen import CompileError

CONSTANTS = {
    "s": np.float32(0.02), "z": np.int8(3), "u": np.float32(0.05), "q": np.int8(-7),
    "v": np.float32(0.0001), "o": np.int16(0),
    "w": bytes_of(4, 4, 3, 3), "ws": np.array([0.005, 0.01, 0.002, 0.004], np.float32),
    "k": floats(4, 4, 3, 3), "b": floats(4), "g": floats(6), "n": floats(6, seed=1),
    "c": bytes_of(1, 4, 1, 1), "each": floats(4, 1, 1), "zeros": np.zeros(4, np.int8),
    "many": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
}  # fmt: skip
FIRST = "e = DequantizeLinear<axis=0>(w, ws) i = Conv<pads=[1,1,1,1]>(d, e)"
PAIR = "j = QuantizeLinear(i, u, q) f = DequantizeLinear(j, u, q)"
LAST = "y = QuantizeLinear(r, v, o)"
CASES = {
    "a function that the machine has in integers": f"{FIRST} {PAIR} r = Exp(f) {LAST}",
    "a softmax": f"{FIRST} {PAIR} r = Softmax(f) {LAST}",
    "a normalization": f"{FIRST} {PAIR} r = LayerNormalization(f, g, n) {LAST}",
    "a difference": f"{FIRST} {PAIR} r = Sub(f, d) {LAST}",
    "a convolution of floats": f"{FIRST} {PAIR} r = Conv<pads=[1,1,1,1]>(f, k, b) {LAST}",
    "a Relu behind it": f"{FIRST} {PAIR} h = Conv<pads=[1,1,1,1]>(f, k, b) r = Relu(h) {LAST}",
    "a function behind it": f"{FIRST} {PAIR} h = Conv<pads=[1,1,1,1]>(f, k, b) r = Tanh(h) {LAST}",
    "a residual in integers": f"{FIRST} {PAIR} h = Conv<pads=[1,1,1,1]>(f, k) r = Add(h, d) {LAST}",
    "a constant in integers": f"{FIRST} {PAIR} t = Softmax(f) l = DequantizeLinear(c, s)"
    f" r = Mul(t, l) {LAST}",
    "parts": f"{FIRST} {PAIR} t, h = Split<axis=1, num_outputs=2>(f) r = Concat<axis=1>(h, t) {LAST}",
    "views of floats": f"{FIRST} {PAIR} t = Softmax(f) h = Transpose<perm=[0,1,3,2]>(t)"
    f" r = Sub(h, h) {LAST}",
    "two that read one": f"{FIRST} {PAIR} t = Softmax(f) h = Neg(f) r = Sub(t, h) {LAST}",
    "floats that leave": f"{FIRST} {PAIR} y = Softmax(f)",
    "integers that leave as floats": "y = Identity(d)",
    "floats that a maximum reads": f"{FIRST} {PAIR} h = MaxPool<kernel_shape=[2,2], pads=[1,0,0,1]>(f)"
    f" r = Softmax(h) {LAST}",
    "a Relu that makes floats": "y = Relu(d)",
    "a sum with floats": f"r = Add(d, each) {LAST}",
    "scales by channel": f"{FIRST} {PAIR} r = Softmax(f) y = QuantizeLinear<axis=1>(r, many, zeros)",
}  # fmt: skip
KINDS = {
    "floats that leave": "float",
    "integers that leave as floats": "float",
    "a Relu that makes floats": "float",
    "scales by channel": "int8",
}


@pytest.mark.parametrize("scratchpad", ["2048", "65536"])
@pytest.mark.parametrize("name", CASES)
def test_floats_between_integers(name: str, scratchpad: str, tmp_path: Path) -> None:
    text = f"d = DequantizeLinear(x, s, z) {CASES[name]}"
    proto = model(
        f"g (int8[1,4,6,6] x) => ({KINDS.get(name, 'int16')}[1,4,6,6] y) {{ {text} }}",
        mentioned(text, CONSTANTS),
        opset=21,
    )

    agrees(proto, {"x": bytes_of(1, 4, 6, 6)}, tmp_path, scratchpad=scratchpad)


def test_floats_that_enter_and_leave(tmp_path: Path) -> None:
    text = (
        "a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z) r = Add(d, f) t = Relu(r)"
        " y = QuantizeLinear(t, u, q)"
    )
    proto = model(
        f"g (float[2,3] x, float[2,3] f) => (int8[2,3] y) {{ {text} }}", mentioned(text, CONSTANTS)
    )

    agrees(proto, {"x": floats(2, 3), "f": floats(2, 3, seed=1)}, tmp_path)


def test_a_tensor_is_converted_once(tmp_path: Path) -> None:
    text = f"d = DequantizeLinear(x, s, z) {CASES['two that read one']}"
    proto = model(
        f"g (int8[1,4,6,6] x) => (int16[1,4,6,6] y) {{ {text} }}", mentioned(text, CONSTANTS), opset=21
    )

    layers = network(proto, tmp_path).layers

    made = [(layer.x.dtype, layer.y.dtype) for layer in layers if isinstance(layer, ActivationLayer)]
    assert sorted(made) == [("float32", "int16"), ("int8", "float32")]


def test_integers_stay_integers(tmp_path: Path) -> None:
    text = f"d = DequantizeLinear(x, s, z) {FIRST} h = Add(i, d) r = HardSwish(h) {LAST}"
    proto = model(
        f"g (int8[1,4,6,6] x) => (int16[1,4,6,6] y) {{ {text} }}", mentioned(text, CONSTANTS), opset=21
    )

    (layer,) = [each for each in network(proto, tmp_path).layers if isinstance(each, ConvLayer)]

    assert (layer.x.dtype, layer.y.dtype) == ("int8", "int16")
    assert layer.function is not None


def test_scales_by_channel_do_not_become_floats(tmp_path: Path) -> None:
    text = "d = DequantizeLinear<axis=1>(x, many, zeros) y = Softmax(d)"
    proto = model(
        f"g (int8[1,4,6,6] x) => (float[1,4,6,6] y) {{ {text} }}", mentioned(text, CONSTANTS), opset=21
    )

    with pytest.raises(CompileError, match="must have one scale"):
        executed(proto, {"x": bytes_of(1, 4, 6, 6)}, tmp_path)


@pytest.mark.parametrize(("function", "regions"), [("Softmax", 1), ("LogSoftmax", 2)])
def test_what_the_accelerator_takes_in_floats_is_in_the_region_of_its_neighbours(
    function: str, regions: int, tmp_path: Path
) -> None:
    """LogSoftmax is not taken: there the host converts, as at the ends of the network."""
    line = f"t = Conv<pads=[1,1,1,1]>(x, k, b) f = {function}(t) y = Conv<pads=[1,1,1,1]>(f, k)"
    proto = model(f"g (float[1,4,6,6] x) => (float[1,4,6,6] y) {{ {line} }}", mentioned(line, CONSTANTS))

    result = byoc.partition(
        proto,
        "dla",
        output=tmp_path / "b",
        strategy="all-supported",
        precision=byoc.Precision(quantize="int8", data="random"),
        strict=True,
    )

    assert len(result.plan.regions) == regions
    assert result.verification is not None
    assert result.verification.passed
    for _, region, _ in byoc.open_bundle(tmp_path / "b").regions():
        assert {contract.type.dtype for contract in (*region.inputs, *region.outputs)} == {"int8"}
