"""Squared errors of weights in 4 bits: byoc, onnxruntime's quantizer and HQQ, block by block.

    python benchmarks/weights_in_blocks.py

Figures are the errors of seeded 512 x 256 weights as shares of those of onnxruntime's symmetric
quantizer. HQQ is the published iteration (Badri and Shaji, "Half-Quadratic Quantization of Large Machine
Learning Models", 2023): zeros are real numbers, which MatMulNBits of most accelerators has not.
"""

import numpy as np
import onnxruntime.capi._pybind_state as onnxruntime
from numpy.typing import NDArray

from byoc.quantization import round_to_blocks

Floats = NDArray[np.float32]
BLOCKS = (16, 32, 64, 128)
_POWER, _BETA, _KAPPA, _ROUNDS = 0.7, 10.0, 1.01, 20


def round_by_onnxruntime(weights: Floats, block: int, *, symmetric: bool) -> Floats:
    """Return weights `[N, K]`, K a multiple of the block, as onnxruntime's quantizer rounds them."""
    count, inputs = weights.shape
    blocks = inputs // block
    packed = np.zeros((count, blocks, block // 2), np.uint8)
    scales, points = (
        np.zeros(count * blocks, np.float32),
        np.zeros(count * ((blocks + 1) // 2), np.uint8),
    )
    rows = np.ascontiguousarray(weights.T)
    onnxruntime.quantize_matmul_4bits(packed, rows, scales, points, block, count, inputs, symmetric)
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(count, blocks, block)
    pairs = points.reshape(count, -1)
    zeros = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(count, -1)[:, :blocks, np.newaxis]
    moved = numbers.astype(np.float32) - (8 if symmetric else zeros.astype(np.float32))
    return (moved * scales.reshape(count, blocks, 1)).reshape(count, -1)


def round_by_hqq(weights: Floats, block: int) -> Floats:
    """Return weights `[N, K]` as HQQ rounds them: scales of min and max, zeros found in steps."""
    values = weights.reshape(len(weights), -1, block).astype(np.float64)
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    scale = 15 / (high - low)
    zero, beta = -low * scale, _BETA
    best, least = values, np.inf
    for _ in range(_ROUNDS):
        numbers = np.clip(np.rint(values * scale + zero), 0, 15)
        restored = (numbers - zero) / scale
        error = float(np.abs(values - restored).mean())
        if error >= least:
            break
        best, least = restored, error
        away = values - restored
        shrunk = np.abs(away) - np.abs(away).clip(1e-8) ** (_POWER - 1) / beta
        kept = np.sign(away) * np.maximum(shrunk, 0)
        zero = (numbers - (values - kept) * scale).mean(axis=-1, keepdims=True)
        beta *= _KAPPA
    return best.reshape(weights.shape).astype(np.float32)


def main() -> None:
    """Print the table."""
    generator = np.random.default_rng(1)
    drawn = {
        "normal": generator.standard_normal((256, 512)),
        "Student's t, 4 degrees": generator.standard_t(4, (256, 512)),
    }
    print(f"{'weights':24} {'':22}" + "".join(f"{block:>8}" for block in BLOCKS))
    for name, made in drawn.items():
        weights = made.astype(np.float32)
        rows = {
            "byoc, symmetric": lambda w, b: round_to_blocks(w, b).restore(),
            "byoc, with zeros": lambda w, b: round_to_blocks(w, b, symmetric=False).restore(),
            "onnxruntime, with zeros": lambda w, b: round_by_onnxruntime(w, b, symmetric=False),
            "HQQ": round_by_hqq,
        }
        for what, round_weights in rows.items():
            shares = []
            for block in BLOCKS:
                plain = np.square(round_by_onnxruntime(weights, block, symmetric=True) - weights).sum()
                shares.append(np.square(round_weights(weights, block) - weights).sum() / plain)
            print(f"{name:24} {what:23}" + "".join(f"{share:8.3f}" for share in shares))


if __name__ == "__main__":
    main()
