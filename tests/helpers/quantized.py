"""Small models in QDQ form, with 8-bit activations and weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_RANDOM = np.random.default_rng(0)
CONSTANTS = {
    "w": _RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
    "ws": np.array([0.005, 0.01, 0.002, 0.004], np.float32),
    "wz": np.zeros(4, np.int8),
    "b": _RANDOM.integers(-500, 500, 4).astype(np.int32),
    "bs": np.array([0.0001, 0.0002, 0.00004, 0.00008], np.float32),
    "m": _RANDOM.integers(-127, 128, (16, 5)).astype(np.int8),
    "ms": np.float32(0.01),
    "mz": np.int8(0),
    "k": _RANDOM.integers(-500, 500, 5).astype(np.int32),
    "ks": np.float32(0.0002),
    "s": np.float32(0.02),
    "z": np.uint8(128),
    "zi": np.int8(3),
    "s1": np.float32(1 / 256),
    "z0": np.uint8(0),
    "low": np.float32(-0.31),
    "high": np.float32(0.77),
}

CONV = "d = DequantizeLinear(x, s, z) v = DequantizeLinear<axis=0>(w, ws, wz)" \
    " u = DequantizeLinear<axis=0>(b, bs) c = Conv<pads=[1,1,1,1]>(d, v, u)"  # fmt: skip
GEMM = "d = DequantizeLinear(x, s, z) v = DequantizeLinear(m, ms, mz)" \
    " u = DequantizeLinear(k, ks) c = Gemm(d, v, u)"  # fmt: skip
IMAGE = "g (uint8[1,3,8,8] x) => (uint8[1,4,8,8] y)"

MODELS = {
    "conv": f"{IMAGE} {{ {CONV} y = QuantizeLinear(c, s, z) }}",
    "conv and relu": f"{IMAGE} {{ {CONV} r = Relu(c) y = QuantizeLinear(r, s, z) }}",
    "conv and relu to zero": f"{IMAGE} {{ {CONV} r = Relu(c) y = QuantizeLinear(r, s, z0) }}",
    "conv and clip": f"{IMAGE} {{ {CONV} r = Clip(c, low, high) y = QuantizeLinear(r, s, z) }}",
    "gemm": f"g (uint8[2,16] x) => (uint8[2,5] y) {{ {GEMM} y = QuantizeLinear(c, s, z) }}",
    "gemm and relu": f"""g (uint8[2,16] x) => (uint8[2,5] y) {{
      {GEMM} r = Relu(c) y = QuantizeLinear(r, s, z) }}""",
    "two outputs, of inputs not in order": """
    g (uint8[2,16] p, uint8[2,16] o) => (uint8[2,16] t, uint8[2,16] y) {
      a = DequantizeLinear(o, s, z) e = DequantizeLinear(p, s, z)
      f = Sub(a, e) y = QuantizeLinear(f, s, z) h = DequantizeLinear(y, s, z)
      i = Sigmoid(h) t = QuantizeLinear(i, s1, z0) }""",
    "int8": """g (int8[1,3,8,8] x) => (int8[1,3,4,4] y) {
      d = DequantizeLinear(x, s, zi) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)
      y = QuantizeLinear(c, s, zi) }""",
    "floats that come and go": """g (float[2,16] x) => (float[2,16] y) {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d)
      e = QuantizeLinear(r, s, z) y = DequantizeLinear(e, s, z) }""",
}


def model(text: str) -> onnx.ModelProto:
    """Return the model of a text; CONSTANTS that it names are initializers, nodes are `n0`, `n1`, ..."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    used = {name for node in proto.graph.node for name in node.input}
    for name in CONSTANTS.keys() & used:
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(CONSTANTS[name]), name))
    proto.graph.initializer.sort(key=lambda tensor: tensor.name)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def feed(proto: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Return inputs of a model: integers over all of their range, floats around 0."""
    random = np.random.default_rng(seed)
    made = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [dim.dim_value for dim in kind.shape.dim]
        if dtype.kind == "f":
            made[value.name] = random.normal(size=shape).astype(dtype)
        else:
            info = np.iinfo(dtype)
            made[value.name] = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    return made


def list_codes(shape: Sequence[int], dtype: Any, first: int) -> NDArray[Any]:
    """Return integers of a type: its ends alone, both in turn, or all from one on."""
    ends = np.iinfo(dtype)
    step = 1 if ends.bits == 8 else 255
    codes = {0: [ends.min], 1: [ends.max], 2: [ends.min, ends.max]}
    chosen = codes.get(first, np.roll(np.arange(ends.min, ends.max + 1, step), first))
    return np.resize(chosen, shape).astype(dtype)
