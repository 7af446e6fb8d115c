"""The simulator: runs a program with numpy, one instruction after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]


def run(
    program: Sequence[Mapping[str, Any]],
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
) -> dict[str, Array]:
    """Return the named outputs, float32 arrays."""
    memory: dict[str, Array] = {**weights, **inputs}
    for step in program:
        operands = [memory[name] for name in step["in"] if name]
        if step["do"] == "conv":
            result = _convolve(operands, step["strides"], step["pads"])
            memory[step["out"]] = np.maximum(result, 0) if step["relu"] else result
        elif step["do"] == "relu":
            memory[step["out"]] = np.maximum(operands[0], 0)
        else:
            memory[step["out"]] = operands[0] + operands[1]
    return {name: memory[name] for name in outputs}


def _convolve(operands: Sequence[Array], strides: Sequence[int], pads: Sequence[int]) -> Array:
    """Return the convolution of an image (N, C, H, W) with a kernel (M, C, kH, kW), plus a bias (M,)."""
    image, kernel = operands[0], operands[1]
    top, left, bottom, right = pads
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    result = np.tensordot(windows, kernel, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
    if len(operands) > 2:
        result = result + operands[2].reshape(1, -1, 1, 1)
    return np.ascontiguousarray(result, dtype=np.float32)
