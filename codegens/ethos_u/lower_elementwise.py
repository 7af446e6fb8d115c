"""Operators on each element: of several operands in integers, of one operand by a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from byoc.codegen import CompileError, Operation, Quantization

from .lower_convolutions import scale_channels
from .lower_pools import Window, convolve_ones
from .lowering import (
    IMAGE,
    LOWERINGS,
    Lowering,
    Value,
    arrange,
    expand_rank,
    is_same,
    read_real,
    real_scale,
)
from .tosa_graph import Array, Tensor

# Functions of one operand, of one operation or of several, as TABLE operators that make int8.
#
# TABLE of int8 has an entry for each of the 256 integers. That of int16 has 513 entries, with
# straight lines between them: it is for a function of what a convolution adds up, where that is not
# rounded to 8 bits first. Vela computes both with the operator before them.

_NAMES = """
Abs Acos Asin Atan Ceil Celu Cos Cosh Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Mish
Neg Pow Reciprocal Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""
FUNCTIONS = frozenset(_NAMES.split())
"""The operators that are lowered to a table alone."""
_PARTS = FUNCTIONS | {"Add", "Clip", "Max", "Min", "Mul", "PRelu", "Relu", "Sub", "Sum"}
_FRACTION = 7  # bits behind the point of what a table of int16 holds, which leaves one for overflow
_DISTANCE = 128  # between the integers that a table of int16 has entries of
_REACHES = 2.0 ** np.arange(-8, 24, 0.125)  # of a function's operand, in steps of the result
_MOST_ERROR = 0.5  # steps of the result that lines may be off


@dataclass(frozen=True)
class TabulatedFunction:
    """Operations on each element that together are a function of one tensor, `source`."""

    source: str
    operations: tuple[Operation, ...]

    @property
    def last(self) -> Operation:
        """The operation that makes the result."""
        return self.operations[-1]


def split_function(
    operations: Sequence[Operation],
) -> tuple[Sequence[Operation], TabulatedFunction | None]:
    """Return the operations of a composite before the function at its end, and that function.

    It is the longest function of one tensor there. None where all tensors before and inside it are
    quantized: then each operation is lowered by itself.
    """
    for first in range(len(operations)):
        part = operations[first:]
        made = {name for each in part for name in each.outputs}
        read = {name for each in part for name in each.inputs if name and name not in each.constants}
        sources = read - made
        if len(sources) != 1 or any(each.op not in _PARTS or each.domain for each in part):
            continue
        before = {name: q for each in operations[:first] for name, q in _list_made(each)}
        (source,) = sources
        is_open = source in before and before[source] is None
        if is_open or any(q is None for each in part[:-1] for _, q in _list_made(each)):
            return operations[:first], TabulatedFunction(source, tuple(part))
        return operations, None
    return operations, None


def _list_made(operation: Operation) -> list[tuple[str, Quantization | None]]:
    return list(zip(operation.outputs, operation.output_quantization, strict=True))


def lower_function(function: TabulatedFunction, lowering: Lowering) -> None:
    """Lower a function of an int8 tensor, or of an int16 one as `choose_source_quantization` has it.

    Raises CompileError where the result is not int8, or no table is near enough to the function.
    """
    source, wanted = lowering.values[function.source], lowering.result(function.last)
    stated = source.quantization or _find_quantization(function)
    if stated is None or wanted.dtype != "int8":
        raise CompileError(f"a function that ends in {function.last.op} is taken of int8 alone")
    source = replace(source, quantization=stated)
    if source.tensor.dtype == "int8":
        lower_int8_table(function, source, lowering)
    else:
        _lower_int16_table(function, source, lowering)


def _find_quantization(function: TabulatedFunction) -> Quantization | None:
    """Return the quantization of the source where it is read."""
    return next(
        stated
        for each in function.operations
        for name, stated in zip(each.inputs, each.input_quantization, strict=True)
        if name == function.source
    )


def lower_int8_table(function: TabulatedFunction, source: Value, lowering: Lowering) -> None:
    """TABLE: what DequantizeLinear, the function and QuantizeLinear make of each of the 256 integers."""
    last, wanted = function.last, lowering.result(function.last)
    assert source.quantization is not None
    real = source.quantization.dequantize(np.arange(-128, 128, dtype=np.int8))
    stored = _quantize(_evaluate(function, real, lowering), wanted)
    if last.output_limits and last.output_limits[0] is not None:
        stored = np.clip(stored, *last.output_limits[0])
    tensor = lowering.graph.look_up(source.tensor, stored)
    lowering.finish(last, Value(tensor, source.order, wanted), limit=False)


def choose_source_quantization(function: TabulatedFunction, lowering: Lowering) -> Quantization:
    """Return the int16 quantization of what a function reads: its range is where the result changes."""
    wanted = lowering.result(function.last)
    if wanted.dtype != "int8":
        raise CompileError(f"a function of sums is taken to int8, not {wanted.dtype}")
    reach = 0.0
    for side in (1.0, -1.0):
        real = _REACHES * float(wanted.scale)
        stored = _quantize(_evaluate(function, (side * real).astype(np.float32), lowering), wanted)
        changing = np.flatnonzero(stored != stored[-1])
        reach = max(reach, real[min(changing[-1] + 1, real.size - 1)] if changing.size else real[0])
    return Quantization(np.array(reach / 2**15, np.float32), np.array(0, np.int16))


def _lower_int16_table(function: TabulatedFunction, source: Value, lowering: Lowering) -> None:
    """TABLE of int16, and its result brought to int8.

    There is an entry for each 128th integer. Results between are on the line from one entry to the next,
    with 7 more bits (TOSA 1.0, TABLE).
    """
    graph, wanted = lowering.graph, lowering.result(function.last)
    assert source.quantization is not None
    scale, step = float(source.quantization.scale), float(wanted.scale)
    stored = _list_table_integers()
    exact = _evaluate(function, (stored * scale).astype(np.float32), lowering) / step
    entries = np.clip(
        np.rint((exact + int(wanted.zero_point)) * 2**_FRACTION), -(2**15), 2**15 - 1
    ).astype(np.int64)
    if np.abs(np.diff(entries)).max() >= 2**15:
        raise CompileError(f"{function.last.op} is too steep for a table of lines")
    _check_lines(function, entries, scale, wanted, lowering)
    table = graph.constant(entries, "int16")
    wide = graph.add("TABLE", [source.tensor, table], "int32", source.tensor.shape)
    fine = replace(source, tensor=graph.rescale(wide, "int16", 2.0**-_FRACTION))
    lowering.finish(function.last, Value(_round_to_int8(fine, lowering), source.order, wanted))


def _list_table_integers() -> Array:
    """Return the integers that a TABLE of int16 has entries of, int64 `[513]`."""
    return np.arange(-256, 257) * _DISTANCE


def _check_lines(
    function: TabulatedFunction, entries: Array, scale: float, wanted: Quantization, lowering: Lowering
) -> None:
    """Raise CompileError where lines between entries are too far from the function.

    `entries` are int64 `[513]`, `scale` is that of what the function reads.
    """
    stored = np.arange(-(2**15), 2**15, 32)
    exact = _evaluate(function, (stored * scale).astype(np.float32), lowering) / float(wanted.scale)
    lines = np.interp(stored, _list_table_integers(), entries / 2.0**_FRACTION)
    low, high = np.iinfo(np.int8).min, np.iinfo(np.int8).max
    exact = np.clip(exact + int(wanted.zero_point), low, high)
    error = float(np.abs(np.clip(lines, low, high) - exact).max())
    if not error <= _MOST_ERROR:
        raise CompileError(f"a table of lines is {error:.2g} steps of the result off")


def _round_to_int8(fine: Value, lowering: Lowering) -> Tensor:
    """Return int16 elements divided by 128, in int8.

    Of images by a convolution with weights of one: that takes half the time of a RESCALE on Vela.
    """
    graph = lowering.graph
    if fine.rank != 4:
        return graph.rescale(fine.tensor, "int8", 2.0**-_FRACTION)
    image = arrange(graph, fine, IMAGE)
    image = replace(image, quantization=Quantization(np.array(1.0), np.array(0, np.int16)))
    sums = convolve_ones(image, lowering, (1, 1), Window(image.tensor.shape))
    made = replace(image, tensor=graph.rescale(sums, "int8", 2.0**-_FRACTION))
    return arrange(graph, made, fine.order).tensor


def _quantize(real: Array, wanted: Quantization) -> Array:
    """Return the stored integers; NaN, which has none, becomes the least, as onnxruntime makes it."""
    with np.errstate(all="ignore"):
        return wanted.quantize(np.nan_to_num(real, nan=-np.inf, posinf=np.inf, neginf=-np.inf))


def _evaluate(function: TabulatedFunction, real: Array, lowering: Lowering) -> Array:
    """Compute a function of real numbers, `[numbers]`, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - takes 30 ms, and loading needs none

    nodes, constants = list[NodeProto](), {}
    for place, operation in enumerate(function.operations):
        node = NodeProto()
        node.CopyFrom(operation.node)
        for number, name in enumerate(operation.inputs):
            if name in operation.constants:
                node.input[number] = f"c{place}_{number}"
                constants[node.input[number]] = read_real(operation, lowering, number)
            else:
                node.input[number] = name
        node.output[:] = operation.outputs
        nodes.append(node)
    kind = helper.np_dtype_to_tensor_dtype(real.dtype)
    last = function.last.outputs[0]
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info(function.source, kind, real.shape)],
        [helper.make_tensor_value_info(last, kind, real.shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [each for each in lowering.region.model.opset_import if each.domain in ("", "ai.onnx")]
    alone = helper.make_model(graph, opset_imports=imports)
    try:
        with np.errstate(all="ignore"):
            (made,) = ReferenceEvaluator(alone).run(None, {function.source: real})
    except Exception as error:  # whatever the implementation of an operator raises
        raise CompileError(f"{function.last.op} cannot be computed for its table: {error}") from None
    return np.asarray(made).reshape(-1)  # a constant of one element may have a rank


_MOST_FACTOR = {"int8": 2**15 - 1, "int16": 2**14 - 1}
"""The greatest whole number that Vela multiplies an operand of ADD by without an operator of its own."""
_SLOPE_BITS = 15  # of a slope with its whole part, in an int16 with a sign
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
