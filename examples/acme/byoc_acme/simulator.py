"""The simulator: runs a program with numpy, one instruction after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Step = Mapping[str, Any]


def run(
    program: Sequence[Step],
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
) -> dict[str, Array]:
    """Return the named outputs: float32 arrays, and int8 ones of quantized instructions."""
    memory: dict[str, Array] = {**weights, **inputs}
    for step in program:
        operands = [memory[name] for name in step["in"] if name]
        memory[step["out"]] = _integers(step, operands) if "to" in step else _floats(step, operands)
    return {name: memory[name] for name in outputs}


def _floats(step: Step, operands: Sequence[Array]) -> Array:
    if step["do"] == "conv":
        result = _convolve(operands, step["strides"], step["pads"]).astype(np.float32)
        return _rectify(result) if step["relu"] else result
    return _rectify(operands[0]) if step["do"] == "relu" else operands[0] + operands[1]


def _integers(step: Step, operands: Sequence[Array]) -> Array:
    """Return what a quantized instruction makes: real values of sums in integers, quantized again."""
    scales = step["scales"]
    wide = [_subtract_zero(each, scale) for each, scale in zip(operands, scales, strict=False)]
    if step["do"] == "conv":  # the sums are whole numbers, which float64 holds exactly
        real = _convolve(wide, step["strides"], step["pads"])
        real = real * (scales[0]["scale"] * np.reshape(scales[1]["scale"], (-1, 1, 1)))
        real = _rectify(real) if step["relu"] else real
    else:
        real = sum(each * scale["scale"] for each, scale in zip(wide, scales, strict=True))
    rounded = np.rint(real / step["to"]["scale"]) + step["to"]["zero"]
    low, high = step["limits"]
    result: Array = np.clip(rounded, low, high).astype(step["to"]["dtype"])
    return result


def _rectify(values: Array) -> Array:
    result: Array = np.maximum(values, 0)
    return result


def _subtract_zero(stored: Array, scale: Step) -> Array:
    zero = np.asarray(scale["zero"])  # of all, or of each channel
    shape = (-1,) + (1,) * (stored.ndim - 1) if zero.ndim else ()
    result: Array = stored.astype(np.float64) - zero.reshape(shape)
    return result


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
    return np.ascontiguousarray(result)
