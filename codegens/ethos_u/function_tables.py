"""Functions of one operand, of one operation or of several, as TABLE operators that make int8.

TABLE of int8 has an entry for each of the 256 integers. That of int16 has 513 entries, with straight
lines between them: it is for a function of what a convolution adds up, where that is not rounded to 8
bits first. Vela computes both with the operator before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.codegen import CompileError, Operation, Quantization

from .lowering import IMAGE, Lowering, Value, arrange, read_real
from .tosa_file import Array
from .tosa_graph import Tensor
from .windows import Window, convolve_ones

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
