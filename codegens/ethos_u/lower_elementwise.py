"""Operators on each element: of several operands in integers, of one operand by a table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .function_tables import FUNCTIONS, TabulatedFunction, lower_int8_table
from .lower_convolutions import scale_channels
from .lowering import LOWERINGS, Lowering, Value, arrange, expand_rank, is_same, read_real, real_scale

_MOST_FACTOR = {"int8": 2**15 - 1, "int16": 2**14 - 1}
"""The greatest whole number that Vela multiplies an operand of ADD by without an operator of its own."""
_SLOPE_BITS = 15
_MOST_DISTANCE = {"int8": 2.0**8, "int16": 2.0**15}
"""How far an integer can be from the zero point, which is 0 for int16."""
_MOST_SLOPE_ERROR = 0.5
"""Steps of the result that rounded slopes may move it, of the operand farthest from its zero point."""


@LOWERINGS.op("Add", "Sub", "Sum")
def lower_sum(operation: Operation, lowering: Lowering) -> None:
    """ADD and SUB of the operands as int32, each times a whole number in the ratio of the scales."""
    if _has_table(operation, lowering):
        lower_by_table(operation, lowering)
        return
    if len(operation.inputs) == 2 and _lower_by_channel(operation, lowering):
        return
    operands = _read_operands(operation, lowering)
    wanted = lowering.result(operation)
    factors, unit = find_factors([real_scale(each) for each in operands], _MOST_FACTOR[wanted.dtype])
    parts = [lowering.widen(each, factor) for each, factor in zip(operands, factors, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = lowering.graph.combine("SUB" if operation.op == "Sub" else "ADD", total, part)
    stored = lowering.narrow(total, unit / float(wanted.scale), wanted)
    lowering.finish(operation, Value(stored, operands[0].order, wanted))


@LOWERINGS.op("Mul")
def lower_product(operation: Operation, lowering: Lowering) -> None:
    """MUL of the operands less their zero points."""
    if _has_table(operation, lowering):
        lower_by_table(operation, lowering)
        return
    if _lower_by_channel(operation, lowering):
        return
    operands = _read_operands(operation, lowering)
    wanted = lowering.result(operation)
    product = lowering.graph.combine("MUL", lowering.widen(operands[0]), lowering.widen(operands[1]))
    factor = real_scale(operands[0]) * real_scale(operands[1]) / float(wanted.scale)
    stored = lowering.narrow(product, factor, wanted)
    lowering.finish(operation, Value(stored, operands[0].order, wanted))


@LOWERINGS.op("Max", "Min")
def lower_extreme(operation: Operation, lowering: Lowering) -> None:
    """MAXIMUM and MINIMUM of the operands in the result's quantization, which keeps their order."""
    if _has_table(operation, lowering):
        lower_by_table(operation, lowering)
        return
    wanted = lowering.result(operation)
    operands = [lowering.requantize(each, wanted) for each in _read_operands(operation, lowering)]
    op = "MAXIMUM" if operation.op == "Max" else "MINIMUM"  # of int32 alone
    result = lowering.widen(operands[0])
    for each in operands[1:]:
        result = lowering.graph.combine(op, result, lowering.widen(each))
    stored = lowering.narrow(result, 1.0, wanted)
    lowering.finish(operation, Value(stored, operands[0].order, wanted))


@LOWERINGS.op("Relu", "Clip")
def lower_clamp(operation: Operation, lowering: Lowering) -> None:
    """CLAMP where the quantization stays; else a table."""
    source = lowering.read(operation, 0)
    stated = operation.output_quantization[0] if operation.output_quantization else None
    if stated is None and operation.op == "Relu":
        assert source.quantization is not None
        low = int(source.quantization.zero_point)
        tensor = lowering.graph.clamp(source.tensor, low, np.iinfo(source.tensor.dtype).max)
        lowering.finish(operation, replace(source, tensor=tensor), limit=False)
        return
    wanted = lowering.result(operation)
    if is_same(source.quantization, wanted) or wanted.dtype != "int8":  # type: ignore[arg-type]
        lowering.finish(operation, lowering.requantize(source, wanted))
    else:
        lower_by_table(operation, lowering)


@LOWERINGS.op("QuantizeLinear")
def lower_requantize(operation: Operation, lowering: Lowering) -> None:
    """A table between two quantizations, RESCALE for int16."""
    source = lowering.read(operation, 0)
    lowering.finish(operation, lowering.requantize(source, lowering.result(operation)))


@LOWERINGS.op("PRelu")
def lower_prelu(operation: Operation, lowering: Lowering) -> None:
    """The positive part, and the negative part times the slope, both times whole numbers."""
    if _has_table(operation, lowering):
        lower_by_table(operation, lowering)
        return
    source, slope = _read_operands(operation, lowering)
    wanted = lowering.result(operation)
    if slope.tensor.data is None or slope.quantization is None:
        raise CompileError("the slope of a PRelu must be a constant")
    graph = lowering.graph
    real = slope.quantization.dequantize(slope.tensor.data).astype(np.float64)
    bits = _SLOPE_BITS - max(int(np.ceil(np.log2(max(np.abs(real).max(), 1.0)))), 0)
    steps = _MOST_DISTANCE[source.tensor.dtype] * real_scale(source) / float(wanted.scale)
    if steps * 2.0 ** -(bits + 1) > _MOST_SLOPE_ERROR:
        raise CompileError("a result's scale is too fine for the slopes of a PRelu, of 16 bits")
    wide, zero = lowering.widen(source), graph.constant(np.zeros([1] * source.rank), "int32")
    one = graph.constant(np.full([1] * source.rank, 2**bits), "int32")
    slopes = graph.constant(np.rint(real * 2**bits), "int32")
    positive = graph.combine("MUL", graph.combine("MAXIMUM", wide, zero), one)
    negative = graph.combine("MUL", graph.combine("MINIMUM", wide, zero), slopes)
    factor = real_scale(source) / float(wanted.scale) / 2**bits
    stored = lowering.narrow(graph.combine("ADD", positive, negative), factor, wanted)
    lowering.finish(operation, Value(stored, source.order, wanted))


@LOWERINGS.op(*sorted(FUNCTIONS))
def lower_by_table(operation: Operation, lowering: Lowering) -> None:
    """TABLE of a function of one int8 operand."""
    position = _find_operand(operation, lowering)
    if position is None or not _has_table(operation, lowering):
        raise CompileError(
            f"{operation.op} is taken of int8, its other operands constants of one element"
        )
    function = TabulatedFunction(operation.inputs[position], (operation,))
    lower_int8_table(function, lowering.read(operation, position), lowering)


def find_factors(scales: Sequence[float], most: int) -> tuple[list[int], float]:
    """Return whole numbers of at most `most` in the ratio of scales, and the scale of 1.

    That of the largest scale is at least half of `most`, unless smaller ones are in the very ratio, and
    chosen so that the others are nearest to their own.
    """
    ratios = np.array(scales) / max(scales)
    candidates = np.concatenate([np.arange(1, 257), np.arange((most + 1) // 2, most + 1)])
    exact = candidates[:, None] * ratios
    errors = np.abs(np.rint(exact) - exact).max(axis=1) / candidates
    best = int(candidates[np.argmin(np.where(errors < 1e-9, 0.0, errors))])
    return [int(factor) for factor in np.rint(best * ratios)], max(scales) / best


def _lower_by_channel(operation: Operation, lowering: Lowering) -> bool:
    """Lower a sum or product of an image and a number for each channel; return whether it is one.

    Vela reads a constant that is broadcast once an element.
    """
    position = _find_operand(operation, lowering)
    if position is None or (operation.op == "Sub" and position != 0):
        return False
    source, other = (lowering.read(operation, each) for each in (position, 1 - position))
    channels = source.shape[1] if source.rank == 4 else 0
    by_channel = [1] * (4 - other.rank) + list(other.shape) == [1, channels, 1, 1]
    if not by_channel or source.tensor.dtype != "int8" or other.tensor.data is None:
        return False
    real = read_real(operation, lowering, 1 - position).reshape(-1)
    ones, zeros = np.ones(channels), np.zeros(channels)
    factors, shifts = (real, zeros) if operation.op == "Mul" else (ones, real)
    wanted = lowering.result(operation)
    made = scale_channels(
        source, lowering, factors, -shifts if operation.op == "Sub" else shifts, wanted
    )
    lowering.finish(operation, made)
    return True


def _has_table(operation: Operation, lowering: Lowering) -> bool:
    """Return whether an operation is a function of one int8 operand: the others have one element."""
    position = _find_operand(operation, lowering)
    if position is None or lowering.read(operation, position).tensor.dtype != "int8":
        return False
    wanted = lowering.result(operation)
    if wanted.dtype != "int8":
        return False
    others = [number for number, name in enumerate(operation.inputs) if name and number != position]
    rank = lowering.read(operation, position).rank
    return all(
        lowering.region.constant(operation.inputs[number]).size == 1
        and lowering.region.constant(operation.inputs[number]).ndim <= rank
        for number in others
    )


def _find_operand(operation: Operation, lowering: Lowering) -> int | None:
    """Return the position of the only operand that is computed, else None."""
    computed = [
        number
        for number, name in enumerate(operation.inputs)
        if name and not lowering.is_constant(operation, number)
    ]
    return computed[0] if len(computed) == 1 else None


def _read_operands(operation: Operation, lowering: Lowering) -> list[Value]:
    """Return the operands, all of the result's rank, their axes in the order of the largest one's."""
    operands = [lowering.read(operation, number) for number in range(len(operation.inputs))]
    if len({each.tensor.dtype for each in operands}) > 1:
        raise CompileError(f"the operands of {operation.op} are of different types")
    rank = max(each.rank for each in operands)
    graph = lowering.graph
    operands = [expand_rank(graph, each, rank) for each in operands]
    largest = max(operands, key=lambda each: (each.tensor.data is None, each.tensor.elements))
    return [arrange(graph, each, largest.order) for each in operands]
