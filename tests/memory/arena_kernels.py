"""Kernels that compute one row of a layer, reading and writing numpy views of the arena's bytes alone.

A row of an image is `[C][W]`, of any other tensor all of it. What a kernel writes and reads again lies
in the result's row or in `scratch`; what numpy holds in registers inside a matrix product is its own.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from arena_windows import Kernel, Look, Row, convolution, pool
from onnx import NodeProto


def kernel(look: Look, nodes: Sequence[NodeProto]) -> Kernel:
    """Return the kernel of a layer."""
    if len(nodes) == 3:
        return _shuffle(look, nodes)
    node = nodes[0]
    if node.op_type in _POINTWISE:
        return _pointwise(look, node)
    return _KERNELS[node.op_type](look, node)


def _normalize_across(look: Look, node: NodeProto) -> Kernel:
    given = look.attributes(node)
    size, alpha, beta, bias = (given[name] for name in ("size", "alpha", "beta", "bias"))

    def run(row: int) -> None:
        result, operand = look.row(node.output[0], row), look.row(node.input[0], row)
        for channel in range(len(operand)):
            some = operand[max(channel - (size - 1) // 2, 0) : channel + size // 2 + 1]
            np.einsum("cw,cw->w", some, some, out=result[channel])
        result *= np.float32(alpha / size)
        result += np.float32(bias)
        np.power(result, np.float32(-beta), out=result)
        result *= operand

    return run


def _normalize_batch(look: Look, node: NodeProto) -> Kernel:
    scale, shift, mean, variance = (look.weights[name].astype(np.float64) for name in node.input[1:5])
    times = scale / np.sqrt(variance + look.attributes(node)["epsilon"])
    plus = (shift - mean * times).astype(np.float32)[:, None]
    factor = times.astype(np.float32)[:, None]

    def run(row: int) -> None:
        result = look.row(node.output[0], row)
        np.multiply(look.row(node.input[0], row), factor, out=result)
        np.add(result, plus, out=result)

    return run


def _pointwise(look: Look, node: NodeProto) -> Kernel:
    compute = _POINTWISE[node.op_type]
    made = look.shape(node.output[0])
    is_image = len(made) == 4 and made[0] == 1

    def operand(name: str, row: int) -> Row:
        value = look.weights.get(name)
        if value is None:
            one = is_image and look.shape(name)[2] == 1
            return look.row(name, 0 if one or not is_image else row)
        if not is_image:
            return value
        value = value.reshape((1,) * (4 - value.ndim) + value.shape)
        return value[0, :, row if value.shape[2] > 1 else 0]

    def run(row: int) -> None:
        result = look.row(node.output[0], row)
        operands = [operand(name, row) for name in node.input if name]
        if compute in _ANY_ORDER.values():  # what is written over goes first
            operands.sort(key=lambda each: not np.shares_memory(each, result))
        compute(result, *operands)

    return run


def _fold(join: Callable[..., Any]) -> Callable[..., None]:
    def compute(result: Row, first: Row, *rest: Row) -> None:
        if not rest:
            np.copyto(result, first)
        for number, each in enumerate(rest):
            join(result if number else first, each, out=result)

    return compute


def _sigmoid(result: Row, operand: Row) -> None:
    np.negative(operand, out=result)
    np.exp(result, out=result)
    np.add(result, np.float32(1), out=result)
    np.reciprocal(result, out=result)


_ANY_ORDER: dict[str, Callable[..., None]] = {
    "Add": _fold(np.add),
    "Sum": _fold(np.add),
    "Mul": _fold(np.multiply),
    "Max": _fold(np.maximum),
}
_POINTWISE: dict[str, Callable[..., object]] = {
    **_ANY_ORDER,
    "Sub": _fold(np.subtract),
    "Div": _fold(np.divide),
    "Relu": lambda result, operand: np.maximum(operand, np.float32(0), out=result),
    "Sigmoid": _sigmoid,
    "Tanh": lambda result, operand: np.tanh(operand, out=result),
}


def _concat(look: Look, node: NodeProto) -> Kernel:
    axis = look.attributes(node)["axis"] % 4 // 2  # of a row: 1 is the channels, 3 the width

    def run(row: int) -> None:
        result, at = look.row(node.output[0], row), 0
        for name in node.input:
            operand = look.row(name, row)
            end = at + operand.shape[axis]
            result[(slice(None),) * axis + (slice(at, end),)] = operand
            at = end

    return run


def _shuffle(look: Look, nodes: Sequence[NodeProto]) -> Kernel:
    one, two = look.shape(nodes[0].output[0])[1:3]

    def run(row: int) -> None:
        operand = look.row(nodes[0].input[0], row)
        result = look.row(nodes[-1].output[0], row)
        width = operand.shape[1]
        result.reshape(two, one, width)[...] = operand.reshape(one, two, width).transpose(1, 0, 2)

    return run


def _repeat(look: Look, node: NodeProto) -> Kernel:
    source, made = look.shape(node.input[0]), look.shape(node.output[0])
    down, across = made[2] // source[2], made[3] // source[3]

    def run(row: int) -> None:
        result = look.row(node.output[0], row)
        for column in range(across):
            result[:, column::across] = look.row(node.input[0], row // down)

    return run


def _reshape(look: Look, node: NodeProto) -> Kernel:
    source, made = look.shape(node.input[0]), look.shape(node.output[0])

    def rows(name: str, shape: Sequence[int]) -> list[Row]:
        """The rows of an image; of anything else views of it as such rows."""
        if len(shape) == 4 and shape[0] == 1:
            return [look.row(name, row) for row in range(shape[2])]
        other = made if shape is source else source
        image = look.row(name, 0).reshape(other[1:])
        return [image[:, row] for row in range(other[2])]

    def run(row: int) -> None:
        assert prod(source) == prod(made)
        for one, other in zip(rows(node.input[0], source), rows(node.output[0], made), strict=True):
            other[...] = one

    return run


def _gemm(look: Look, node: NodeProto) -> Kernel:
    given = look.attributes(node)
    weight = look.weights[node.input[1]]
    factor = np.ascontiguousarray(weight.T if given.get("transB") else weight) * np.float32(
        given["alpha"]
    )
    plus = look.weights[node.input[2]] * np.float32(given["beta"]) if len(node.input) > 2 else None

    def run(row: int) -> None:
        result = look.row(node.output[0], 0)
        np.matmul(look.row(node.input[0], 0), factor, out=result)
        if plus is not None:
            np.add(result, plus, out=result)

    return run


def _softmax(look: Look, node: NodeProto) -> Kernel:
    def run(row: int) -> None:
        assert prod(look.shape(node.input[0])) == look.row(node.input[0], 0).size
        result = look.row(node.output[0], 0)
        np.subtract(look.row(node.input[0], 0), look.row(node.input[0], 0).max(), out=result)
        np.exp(result, out=result)
        result /= result.sum()

    return run


_KERNELS: dict[str, Callable[[Look, NodeProto], Kernel]] = {
    "Conv": convolution,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": pool,
    "GlobalMaxPool": pool,
    "LRN": _normalize_across,
    "BatchNormalization": _normalize_batch,
    "Concat": _concat,
    "Resize": _repeat,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Gemm": _gemm,
    "Softmax": _softmax,
}
