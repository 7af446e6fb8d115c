"""What a model in QDQ form says, worked out in float64: the number between its two rounded results.

onnxruntime computes the groups of a QDQ model in float32, and the dla in integers. Both are near what
the operators of ONNX say of real numbers, and here that is worked out: DequantizeLinear is exact in
float64, sums are off by some 1e-15 of the largest, and what QuantizeLinear then reads within 1e-9 of a
tie is taken to be one. A bias of int32 counts units of x_scale * w_scale, as in ONNX's QLinearConv; its
own scale is that product rounded to float32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from numpy.lib.stride_tricks import sliding_window_view
from onnx import NodeProto, helper, numpy_helper

from byoc.codegen import Region

Array = Any
Attributes = Mapping[str, Any]

_TIE = 1e-9  # of a unit: far above the error of float64, far below that of float32


def exact(region: Region, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a region by name, quantized ones as integers.

    Raises KeyError for an operator that is not known here.
    """
    model = onnx.load(region.path)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    values = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    values |= inputs
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        told = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        given = [values[name] if name else None for name in node.input]
        if node.op_type in ("Conv", "Gemm") and len(given) > 2:
            given[2] = _bias([makers.get(name) for name in node.input], values, given[2])
        values[node.output[0]] = _OPERATORS[node.op_type](told, *given)
    return {value.name: values[value.name] for value in model.graph.output}


def _bias(makers: Sequence[NodeProto | None], values: Mapping[str, Array], real: Array) -> Array:
    """Return the bias of a Conv or Gemm, `makers` being what made its inputs."""
    if not all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers):
        return real
    x, w, scale = (values[maker.input[1]].astype(np.float64) for maker in makers if maker is not None)
    assert np.allclose(x * w, scale, rtol=2.0**-23, atol=0)
    return real / scale * (x * w)


def _along(values: Array, told: Attributes, rank: int) -> Array:
    """Return scales or zero points so that they lie along their axis."""
    if values.size == 1:
        return values.reshape(())
    extents = [1] * rank
    extents[told.get("axis", 1)] = values.size
    return values.reshape(extents)


def _dequantize(told: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Array:
    start = 0 if zero is None else _along(zero, told, x.ndim).astype(np.int64)
    return (x.astype(np.int64) - start) * _along(scale, told, x.ndim).astype(np.float64)


def _quantize(told: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Array:
    zero = np.zeros((), np.uint8) if zero is None else zero
    real = x.astype(np.float64) / _along(scale, told, x.ndim).astype(np.float64)
    halves = np.rint(2 * real) / 2
    near = np.abs(real - halves) < _TIE
    rounded = np.rint(np.where(near, halves, real)) + _along(zero, told, x.ndim)
    limits = np.iinfo(zero.dtype)
    return np.clip(rounded, limits.min, limits.max).astype(zero.dtype)


def _windows(told: Attributes, x: Array, kernel: tuple[int, ...], fill: float) -> Array:
    """Return what each position of a window sees, [N, C, rows, columns, kernel rows, kernel columns]."""
    axes = len(kernel)
    pads = told.get("pads", [0] * 2 * axes)
    strides, dilations = told.get("strides", [1] * axes), told.get("dilations", [1] * axes)
    beyond = list(pads[axes:])
    if told.get("ceil_mode"):
        for axis in range(axes):
            room = x.shape[2 + axis] + pads[axis] + pads[axes + axis] - kernel[axis]
            beyond[axis] += -room % strides[axis]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:axes], beyond, strict=True)], constant_values=fill)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    seen = sliding_window_view(padded, extents, axis=tuple(range(2, 2 + axes)))
    steps = (slice(None, None, each) for each in strides)
    inside = (slice(None, None, each) for each in dilations)
    return seen[(slice(None), slice(None), *steps, *inside)]


def _conv(told: Attributes, x: Array, w: Array, b: Array | None = None) -> Array:
    groups = told.get("group", 1)
    seen = _windows(told, x.astype(np.float64), w.shape[2:], 0.0)
    axes = w.ndim - 2
    made = []
    for part, weights in zip(np.split(seen, groups, 1), np.split(w, groups), strict=True):
        # [N, positions..., C, kernel...] as a matrix of one row for each position
        rows = np.moveaxis(part, 1, 1 + axes)
        shape = rows.shape[: 1 + axes]
        matrix = rows.reshape(int(np.prod(shape)), -1) @ weights.reshape(len(weights), -1).T
        made.append(np.moveaxis(matrix.reshape(*shape, len(weights)), -1, 1))
    y = np.concatenate(made, 1)
    return y if b is None else y + b.reshape(-1, *(1,) * axes)


def _max_pool(told: Attributes, x: Array) -> Array:
    axes = len(told["kernel_shape"])
    return _windows(told, x, told["kernel_shape"], -np.inf).max(axis=tuple(range(-axes, 0)))


def _average_pool(told: Attributes, x: Array) -> Array:
    axes = tuple(range(-len(told["kernel_shape"]), 0))
    sums = _windows(told, x, told["kernel_shape"], 0.0).sum(axis=axes)
    counted = np.ones_like(x)
    if told.get("count_include_pad"):
        pads = told["pads"]
        around = [(0, 0), (0, 0), *zip(pads[: len(axes)], pads[len(axes) :], strict=True)]
        counted = np.pad(counted, around, constant_values=1)
        told = {**told, "pads": [0] * len(pads)}
    return sums / _windows(told, counted, told["kernel_shape"], 0.0).sum(axis=axes)


def _gemm(told: Attributes, a: Array, b: Array, c: Array | None = None) -> Array:
    a = a.T if told.get("transA") else a
    b = b.T if told.get("transB") else b
    y = told.get("alpha", 1.0) * (a.astype(np.float64) @ b)
    return y if c is None else y + told.get("beta", 1.0) * c


def _clip(told: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    low = told.get("min", -np.inf) if low is None else low
    return np.minimum(np.maximum(x, low), told.get("max", np.inf) if high is None else high)


def _normalize(told: Attributes, x: Array, *given: Array) -> Array:
    along = (-1, *(1,) * (x.ndim - 2))
    scale, shift, mean, variance = (each.astype(np.float64).reshape(along) for each in given)
    return (x - mean) / np.sqrt(variance + told.get("epsilon", 1e-5)) * scale + shift


def _reshape(told: Attributes, x: Array, shape: Array) -> Array:
    extents = [x.shape[i] if each == 0 else each for i, each in enumerate(shape.tolist())]
    return x.reshape(extents)


def _flatten(told: Attributes, x: Array) -> Array:
    axis = told.get("axis", 1) % (x.ndim + 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


_OPERATORS: Mapping[str, Callable[..., Array]] = {
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": lambda told, a, b: a.astype(np.float64) @ b,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda told, x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),
    "BatchNormalization": _normalize,
    "Add": lambda told, a, b: a + b,
    "Sum": lambda told, *given: sum(given),
    "Mul": lambda told, a, b: a * b,
    "Relu": lambda told, x: np.maximum(x, 0),
    "Clip": _clip,
    "Sigmoid": lambda told, x: 1 / (1 + np.exp(-x)),
    "Tanh": lambda told, x: np.tanh(x),
    "HardSigmoid": lambda told, x: np.clip(told.get("alpha", 0.2) * x + told.get("beta", 0.5), 0, 1),
    "HardSwish": lambda told, x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda told, x: np.where(x < 0, told.get("alpha", 0.01) * x, x),
    "Elu": lambda told, x: np.where(x < 0, told.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x),
    "Concat": lambda told, *given: np.concatenate(given, told["axis"]),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Dropout": lambda told, x, *_: x,
    "Identity": lambda told, x: x,
    "Constant": lambda told: numpy_helper.to_array(told["value"]),
    "Transpose": lambda told, x: x.transpose(told.get("perm")),
}
