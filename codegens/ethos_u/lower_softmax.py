"""Softmax of int8 in integers: exponentials by tables, and a division by Newton's method.

TOSA has no division, and TABLE of int8 gives int8 alone. So an exponential is two tables of a byte each,
and the reciprocal of the sum is computed in fixed point, as gemmlowp and Vela's own Softmax for TFLite
do (gemmlowp, fixedpoint.h, one_over_one_plus_x_for_x_in_0_1).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .lowering import LOWERINGS, Lowering
from .region_values import Value, arrange, reshape_value
from .tosa_graph import Tensor, TosaGraph

_EXPONENTIAL_BITS = 16
_MOST_SUMMANDS = 1 << 15  # of 16 bits each: an int32 holds their sum
_QUOTIENT_BITS = 29
_DIVISOR_BITS = 31
_STEPS = 3  # of Newton's method, each of which doubles the digits


@LOWERINGS.op("Softmax")
def lower_softmax(operation: Operation, lowering: Lowering) -> None:
    """The exponentials of what each element is below the largest, divided by their sum."""
    source = lowering.read(operation, 0)
    wanted = lowering.result(operation)
    if source.tensor.dtype != "int8" or wanted.dtype != "int8":
        raise CompileError("a Softmax is taken of int8")
    axis = int(operation.attributes["axis"]) % source.rank
    flattens = _is_flattening(lowering)
    shape = source.shape
    if flattens:  # before version 13 of ONNX, all axes from that one on were one
        source = reshape_value(
            lowering.graph, source, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
        )
        axis = 1
    rows = arrange(lowering.graph, source, [*(each for each in source.order if each != axis), axis])
    count = rows.tensor.shape[-1]
    if count > _MOST_SUMMANDS:
        raise CompileError(f"a Softmax of {count} elements is not taken; at most {_MOST_SUMMANDS} are")
    flat = lowering.graph.reshape(rows.tensor, (1, rows.tensor.elements // count, 1, count))
    quotient = _divide(lowering.graph, _exponentiate(lowering, replace(rows, tensor=flat)))
    stored = lowering.narrow(quotient, 2.0**-_QUOTIENT_BITS / float(wanted.scale), wanted)
    made = Value(lowering.graph.reshape(stored, rows.tensor.shape), rows.order, wanted)
    if flattens:
        made = reshape_value(lowering.graph, made, shape)
    lowering.finish(operation, made)


def _exponentiate(lowering: Lowering, rows: Value) -> Tensor:
    """Return the exponentials of rows less their largest elements: int32, 65535 for the largest one."""
    graph = lowering.graph
    assert rows.quantization is not None
    largest = graph.reduce("REDUCE_MAX", rows.tensor, len(rows.tensor.shape) - 1)
    wide, most_wide = (graph.rescale(each, "int32", 1.0) for each in (rows.tensor, largest))
    below = graph.rescale(graph.combine("SUB", wide, most_wide), "int8", 1.0, (0, 127))
    distances = np.arange(256) - 255.0
    most = 2**_EXPONENTIAL_BITS - 1
    values = np.rint(np.exp(distances * float(rows.quantization.scale)) * most).astype(np.int64)
    high, low = (
        graph.look_up(below, (part - 128).astype(np.int8)) for part in (values >> 8, values & 255)
    )
    return graph.combine(
        "ADD",
        graph.rescale(high, "int32", 256.0, (-128, 0)),
        graph.rescale(low, "int32", 1.0, (-128, 0)),
    )


def _divide(graph: TosaGraph, rows: Tensor) -> Tensor:
    """Return rows divided by their sums, in units of 2**-29.

    A sum is shifted to have its first digit at 2**30, so that it is a divisor in [0.5, 1) of 31 bits;
    its reciprocal has 29 bits behind the point.
    """
    shape = [1] * len(rows.shape)
    total = graph.reduce("REDUCE_SUM", rows, len(rows.shape) - 1)
    zeros = graph.add("CLZ", [total], "int32", total.shape)
    shift = graph.combine("SUB", zeros, _fill(graph, 1, shape))
    divisor = graph.combine("LOGICAL_LEFT_SHIFT", total, shift)
    reciprocal = graph.combine(
        "SUB",
        _fill(graph, round(48 / 17 * 2**_QUOTIENT_BITS), shape),
        graph.combine(
            "MUL", divisor, _fill(graph, round(32 / 17 * 2**_QUOTIENT_BITS), shape), _DIVISOR_BITS
        ),
    )
    for _ in range(_STEPS):
        product = graph.combine("MUL", divisor, reciprocal, _DIVISOR_BITS)
        error = graph.combine("SUB", _fill(graph, 2**_QUOTIENT_BITS, shape), product)
        change = graph.combine("MUL", reciprocal, error, _QUOTIENT_BITS)
        reciprocal = graph.combine("ADD", reciprocal, change)
    quotient = graph.combine("MUL", rows, reciprocal, _EXPONENTIAL_BITS)
    back = graph.combine("SUB", _fill(graph, _EXPONENTIAL_BITS, shape), zeros)
    return graph.combine("ARITHMETIC_RIGHT_SHIFT", quotient, back)


def _fill(graph: TosaGraph, value: int, shape: Sequence[int]) -> Tensor:
    return graph.constant(np.full(shape, value), "int32")


def _is_flattening(lowering: Lowering) -> bool:
    """Return whether Softmax is of a version before 13."""
    versions = [
        each.version for each in lowering.region.model.opset_import if each.domain in ("", "ai.onnx")
    ]
    return bool(versions) and versions[0] < 13
