"""Operations in floating point beside quantized ones, with what converts between them as operations.

`Region.operations` makes DequantizeLinear and QuantizeLinear part of the operations around them,
whatever these compute in. Here they become operations again where one computes in floating point.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from byoc.codegen import Operation

from .machine_functions import FUNCTIONS, get_operator

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_ANY_OPERANDS = ("Add", "Sum", "Mul", "Concat")
_ONE_OPERAND = (
    *("BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip", *FUNCTIONS),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout", "Identity", "Transpose"),
)
_OPERANDS: Mapping[str, int | None] = {
    **dict.fromkeys(_PRODUCTS, 2),
    **dict.fromkeys(_ANY_OPERANDS),
    **dict.fromkeys(_ONE_OPERAND, 1),
}
"""Operators that the machine has in integers, and how many of their inputs are operands; None: all."""

_CONVERSIONS = ("DequantizeLinear", "QuantizeLinear")


def separate_conversions(
    operations: Sequence[Operation], given: Collection[str], outputs: Collection[str]
) -> Iterator[Operation]:
    """Yield operations, those in floating point with conversions of their own around them.

    `given` and `outputs` are the region's inputs and outputs. An operation computes in integers if all
    its operands are quantized, or are made for it alone by one that does, and its result is quantized,
    here or behind such operations.
    """
    in_integers = _find_integer_operations(operations, outputs)
    computed = {*given, *(name for each in operations for name in each.outputs)}
    dequantized: dict[tuple[str, int], str] = {}
    for each in operations:
        if each.outputs[0] in in_integers or each.op in _CONVERSIONS:
            yield each
            continue
        inputs, encodings = list(each.inputs), list(each.input_quantization)
        for position, (name, quantization) in enumerate(zip(inputs, encodings, strict=True)):
            if quantization is None or name not in computed:
                continue
            key = name, id(quantization)
            if key not in dequantized:
                dequantized[key] = f"{name}/float{len(dequantized) or ''}"
                yield _make_conversion(each, "DequantizeLinear", name, dequantized[key], position)
            inputs[position], encodings[position] = dequantized[key], None
        yield from _separate_results(
            replace(each, inputs=tuple(inputs), input_quantization=tuple(encodings))
        )


def _separate_results(operation: Operation) -> Iterator[Operation]:
    """Yield an operation in floating point, and what quantizes its results."""
    quantized = [number for number, each in enumerate(operation.output_quantization) if each is not None]
    if not quantized:
        yield operation
        return
    made = [
        f"{name}/real" if number in quantized else name for number, name in enumerate(operation.outputs)
    ]
    nothing = (None,) * len(made)
    yield replace(
        operation,
        outputs=tuple(made),
        output_quantization=nothing,
        output_limits=nothing,
        fused=(),
    )
    for number in quantized:
        yield replace(
            _make_conversion(operation, "QuantizeLinear", made[number], operation.outputs[number], 0),
            input_quantization=(None,),
            output_quantization=operation.output_quantization[number : number + 1],
            output_limits=operation.output_limits[number : number + 1],
            fused=operation.fused,
        )


def _make_conversion(beside: Operation, op: str, x: str, y: str, position: int) -> Operation:
    """Return a conversion beside an operation; its quantization is that of the operation's input."""
    return replace(
        beside,
        op=op,
        domain="",
        inputs=(x,),
        outputs=(y,),
        attributes={},
        constants=(),
        inner=(),
        input_quantization=beside.input_quantization[position : position + 1],
        output_quantization=(None,),
        output_limits=(None,),
        fused=(),
    )


def _find_integer_operations(operations: Sequence[Operation], outputs: Collection[str]) -> set[str]:
    """Return the operations that compute in integers, by their first outputs."""
    readers: dict[str, list[str]] = {}
    for each in operations:
        for name in each.inputs:
            readers.setdefault(name, []).append(each.outputs[0])
    found = {each.outputs[0] for each in operations}
    before = len(found) + 1
    while len(found) < before:  # what has a neighbour in floats is in floats itself
        before = len(found)
        for each in (*operations, *reversed(operations)):
            name = each.outputs[0]
            reads = all(given is not None or read in found for read, given in _list_operands(each))
            behind = readers.get(name, [])
            is_inside = bool(behind) and name not in outputs and found.issuperset(behind)
            is_quantized = each.output_quantization[:1] not in ((), (None,))
            if not (reads and (is_quantized or is_inside)):
                found.discard(name)
    return found


def _list_operands(operation: Operation) -> list[tuple[str, object]]:
    """Return the operands with their quantization; one without, of an operator in floats alone."""
    operator = get_operator(operation)
    if operator not in _OPERANDS:
        return [("", None)]
    pairs = zip(operation.inputs, operation.input_quantization, strict=True)
    return [(name, given) for name, given in list(pairs)[: _OPERANDS[operator]] if name]
