"""Operators that move data: their results have the operand's integers, or those requantized."""

from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation, Quantization

from .lowering import LOWERINGS, Lowering
from .region_values import Value, arrange, expand_rank, reshape_value
from .tosa_file import Array


@LOWERINGS.op("Identity", "Dropout", "DequantizeLinear")
def lower_nothing(operation: Operation, lowering: Lowering) -> None:
    """The operand, as it is."""
    _finish(operation, lowering, _read(operation, lowering))


@LOWERINGS.op("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def lower_reshape(operation: Operation, lowering: Lowering) -> None:
    """RESHAPE, with axes moved only where groups of them are not neighbours."""
    source = _read(operation, lowering)
    _finish(operation, lowering, reshape_value(lowering.graph, source, lowering.shape(operation)))


@LOWERINGS.op("Transpose")
def lower_transpose(operation: Operation, lowering: Lowering) -> None:
    """Nothing: axis i of the result is axis `perm[i]` of the operand, wherever that lies."""
    source = _read(operation, lowering)
    perm = [int(axis) for axis in operation.attributes.get("perm") or range(source.rank)[::-1]]
    order = tuple(perm.index(axis) for axis in source.order)
    _finish(operation, lowering, replace(source, order=order))


@LOWERINGS.op("Concat")
def lower_concat(operation: Operation, lowering: Lowering) -> None:
    """CONCAT of the operands in the result's quantization."""
    operands = [_read(operation, lowering, number) for number in range(len(operation.inputs))]
    graph = lowering.graph
    if operation.output_quantization and operation.output_quantization[0] is not None:
        wanted = lowering.result(operation)
        operands = [lowering.requantize(each, wanted) for each in operands]
    elif len({_describe(each) for each in operands}) > 1:
        raise CompileError(f"'{operation.outputs[0]}', which Concat makes, is not quantized")
    largest = max(operands, key=lambda each: (each.tensor.data is None, each.tensor.elements))
    operands = [arrange(graph, each, largest.order) for each in operands]
    axis = largest.position(int(operation.attributes["axis"]))
    tensor = graph.concatenate([each.tensor for each in operands], axis)
    lowering.finish(operation, replace(largest, tensor=tensor))


@LOWERINGS.op("Split")
def lower_split(operation: Operation, lowering: Lowering) -> None:
    """A SLICE for each part."""
    source = _read(operation, lowering)
    axis = source.position(int(operation.attributes.get("axis", 0)))
    first = 0
    for number, name in enumerate(operation.outputs):
        if not name:
            raise CompileError("a Split with an omitted part is not taken")
        extent = lowering.shape(operation, number)[int(operation.attributes.get("axis", 0))]
        start, size = [0] * source.rank, list(source.tensor.shape)
        start[axis], size[axis] = first, extent
        first += extent
        part = replace(source, tensor=lowering.graph.slice(source.tensor, start, size))
        _finish(operation, lowering, part, number)


@LOWERINGS.op("Slice")
def lower_slice(operation: Operation, lowering: Lowering) -> None:
    """SLICE with steps of 1."""
    source = _read(operation, lowering)
    starts, axes, steps = (
        _read_integers(operation, lowering, name, number)
        for name, number in (("starts", 1), ("axes", 3), ("steps", 4))
    )
    assert starts is not None
    if steps is not None and set(steps) != {1}:
        raise CompileError("a Slice with steps is not taken")
    start, size = [0] * source.rank, list(source.tensor.shape)
    made = lowering.shape(operation)
    for first, axis in zip(starts, axes or range(len(starts)), strict=True):
        place = source.position(axis)
        extent = source.tensor.shape[place]
        start[place] = min(max(first + extent if first < 0 else first, 0), extent)
        size[place] = made[axis % source.rank]
    part = lowering.graph.slice(source.tensor, start, size)
    _finish(operation, lowering, replace(source, tensor=part))


@LOWERINGS.op("Pad")
def lower_pad(operation: Operation, lowering: Lowering) -> None:
    """PAD with the integer of a constant, in the result's quantization; negative pads are a SLICE.

    A constant may be beyond what the operand's integers stand for.
    """
    source = lowering.read(operation, 0)
    mode = operation.attributes.get("mode", "constant")
    if mode not in ("constant", b"constant"):
        raise CompileError("only padding with a constant is taken")
    assert source.quantization is not None
    pads = _read_integers(operation, lowering, "pads", 1)
    assert pads is not None
    axes = _read_integers(operation, lowering, "axes", 3) or list(range(source.rank))
    is_stated = bool(operation.output_quantization) and operation.output_quantization[0] is not None
    wanted = lowering.result(operation) if is_stated else source.quantization
    value = _read_filler(operation, lowering, wanted)
    start, size = [0] * source.rank, list(source.tensor.shape)
    around = [(0, 0)] * source.rank
    for number, axis in enumerate(axes):
        place = source.position(axis)
        before, behind = pads[number], pads[number + len(axes)]
        around[place] = max(before, 0), max(behind, 0)
        start[place] = max(-before, 0)
        size[place] -= start[place] + max(-behind, 0)
    part = replace(source, tensor=lowering.graph.slice(source.tensor, start, size))
    part = lowering.requantize(part, wanted)
    tensor = lowering.graph.pad(part.tensor, around, value)
    _finish(operation, lowering, replace(part, tensor=tensor))


@LOWERINGS.op("Expand", "Tile")
def lower_tile(operation: Operation, lowering: Lowering) -> None:
    """TILE."""
    shape = lowering.shape(operation)
    source = expand_rank(lowering.graph, _read(operation, lowering), len(shape))
    counts = [shape[axis] // source.shape[axis] for axis in source.order]
    tensor = lowering.graph.tile(source.tensor, counts)
    _finish(operation, lowering, replace(source, tensor=tensor))


@LOWERINGS.op("DepthToSpace", "SpaceToDepth")
def lower_blocks(operation: Operation, lowering: Lowering) -> None:
    """RESHAPE to rank 6, the axes of a block moved, RESHAPE back."""
    source = _read(operation, lowering)
    block = int(operation.attributes["blocksize"])
    batch, channels, height, width = source.shape
    mode = operation.attributes.get("mode", "DCR")
    if operation.op == "SpaceToDepth":
        inside = (batch, channels, height // block, block, width // block, block)
        perm = (0, 3, 5, 1, 2, 4)
    elif mode in ("CRD", b"CRD"):
        inside = (batch, channels // block**2, block, block, height, width)
        perm = (0, 1, 4, 2, 5, 3)
    else:
        inside = (batch, block, block, channels // block**2, height, width)
        perm = (0, 3, 4, 1, 5, 2)
    split = reshape_value(lowering.graph, source, inside)
    moved = replace(split, order=tuple(perm.index(axis) for axis in split.order))
    _finish(operation, lowering, reshape_value(lowering.graph, moved, lowering.shape(operation)))


def _read(operation: Operation, lowering: Lowering, number: int = 0) -> Value:
    """Return an operand, which need not be quantized: integers are moved as well."""
    value = lowering.find(operation, number)
    if value is None:
        raise CompileError(f"{operation.op} lacks its input {number}")
    return value


def _finish(operation: Operation, lowering: Lowering, value: Value, number: int = 0) -> None:
    """Enter a result, in its quantization where one is stated."""
    stated = operation.output_quantization[number] if operation.output_quantization else None
    if stated is None or value.quantization is None:
        lowering.finish(operation, value, number, limit=stated is not None)
    else:
        lowering.finish(
            operation, lowering.requantize(value, lowering.result(operation, number)), number
        )


def _read_integers(
    operation: Operation, lowering: Lowering, attribute: str, number: int
) -> list[int] | None:
    """Return integers that are an attribute in early versions of ONNX, and an operand later."""
    given = operation.attributes.get(attribute)
    if given is None:
        given = lowering.constant(operation, number)
    return None if given is None else [int(each) for each in np.atleast_1d(given)]


def _read_filler(operation: Operation, lowering: Lowering, wanted: Quantization) -> int:
    """Return the integer that a Pad fills with: that of its constant, in a quantization."""
    stored = lowering.constant(operation, 2)
    if stored is None:
        real: Array = np.array(float(operation.attributes.get("value", 0.0)), np.float32)
    else:
        stated = operation.input_quantization[2] if len(operation.input_quantization) > 2 else None
        real = stored.reshape(()) if stated is None else stated.dequantize(stored).reshape(())
    return int(wanted.quantize(real))


def _describe(value: Value) -> tuple[object, ...]:
    quantization = value.quantization
    if quantization is None:
        return (value.tensor.dtype,)
    return quantization.dtype, float(quantization.scale), int(quantization.zero_point)
