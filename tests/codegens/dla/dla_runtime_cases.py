"""Models that the conformance kit does not know: operators of onnxruntime alone, and 16 bits."""

from typing import Any

import numpy as np
import onnx
from dla_regions import bytes_of, floats, mentioned, runtime_model

_SUM = "(float[2,3,8] x, float[2,3,8] z) => (float[2,3,8] y) { y = com.microsoft.Skip"
_PRODUCT = "com.microsoft.MatMulNBits<K=64, N=4, bits=4, block_size=32>"
_CONSTANTS = {
    "gain": floats(8, seed=1),
    "shift": floats(8, seed=2),
    "bias": floats(8, seed=3),
    "numbers": np.random.default_rng(0).integers(0, 256, (4, 2, 16), np.uint8),
    "scales": np.abs(floats(8)) / 10,
    "zeros": np.random.default_rng(1).integers(0, 256, 4, np.uint8),
    "cos": floats(5, 4),
    "sin": floats(5, 4, seed=1),
    "filled": np.array([4], np.int32),
    "total": np.array(9, np.int32),
    "wide_cos": floats(9, 8),
    "wide_sin": floats(9, 8, seed=1),
    "half": np.float32(2.0**-9),
    "one": np.float32(2.0**-6),
    "eighth": np.float32(0.5),
    "none": np.int16(0),
    "small": np.int8(3),
    "bytes": bytes_of(4, 4, 3, 3),
    "steps": np.array([0.01, 0.02, 0.005, 0.01], np.float32),
    "positions": np.array([[0, 1, 2], [2, 3, 4]]),
}
_SIXTEEN = "d = DequantizeLinear(x, half, none) "
_TEXTS = {
    "Conv": [
        f"(int16[1,4,6,6] x) => (int16[1,4,6,6] y) {{ {_SIXTEEN}"
        " e = DequantizeLinear<axis=0>(bytes, steps) c = Conv<pads=[1,1,1,1]>(d, e)"
        " y = QuantizeLinear(c, one, none) }"
    ],
    "Identity": [
        f"(int16[2,5] x) => (int8[2,5] y) {{ {_SIXTEEN} i = Identity(d)"
        " y = QuantizeLinear(i, eighth, small) }"
    ],
    "SimplifiedLayerNormalization": [
        "(float[2,3,8] x) => (float[2,3,8] y) { y = SimplifiedLayerNormalization<axis=-1>(x, gain) }"
    ],
    "com.microsoft.SkipSimplifiedLayerNormalization": [
        f"{_SUM}SimplifiedLayerNormalization<epsilon=0.001>(x, z, gain, bias) }}"
    ],
    "com.microsoft.SkipLayerNormalization": [
        f"{_SUM}LayerNormalization<epsilon=0.001>(x, z, gain, shift, bias) }}"
    ],
    "com.microsoft.MatMulNBits": [
        f"(float[3,64] x) => (float[3,4] y) {{ y = {_PRODUCT}(x, numbers, scales) }}",
        f"(float[3,64] x) => (float[3,4] y) {{ y = {_PRODUCT}(x, numbers, scales, zeros) }}",
    ],
    "com.microsoft.RotaryEmbedding": [
        "(float[2,3,16] x) => (float[2,3,16] y)"
        " { y = com.microsoft.RotaryEmbedding(x, positions, cos, sin) }"
    ],
    "com.microsoft.GroupQueryAttention": [
        """(float[1,1,128] q, float[1,2,9,16] k, float[1,2,9,16] v) =>
          (float[1,1,64] y, float[1,2,9,16] nk, float[1,2,9,16] nv) {
          y, nk, nv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, do_rotary=1>
            (q, "", "", k, v, filled, total, wide_cos, wide_sin) }"""
    ],
    **{
        f"com.microsoft.{name}": [f"(float[2,8] x) => (float[2,8] y) {{ y = com.microsoft.{name}(x) }}"]
        for name in ("Gelu", "QuickGelu", "FastGelu")
    },
}


def _make_model(text: str) -> onnx.ModelProto:
    return runtime_model(f"g {text}", mentioned(text, _CONSTANTS))


RUNTIME_CASES: dict[str, Any] = {
    name: [_make_model(text) for text in texts] for name, texts in _TEXTS.items()
}
"""Models by operator, as `CodegenConformance.cases` takes them."""
