"""Operators that move data: their results have the operand's integers, or those requantized."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation, Quantization

from .lower_pools import Window, convolve_depthwise
from .lowering import IMAGE, LOWERINGS, Lowering, Value, arrange, expand_rank, reshape_value
from .tosa_graph import Array, Tensor, TosaGraph

# Resize of images by whole factors.
#
# Vela takes TOSA's RESIZE by the nearest at powers of two alone. Other factors repeat elements, and
# linear interpolation is a depthwise convolution of the image with its edges repeated: one filter
# for each place of a result between two elements, which are then sorted into rows and columns.

_NEAREST = 1  # TOSA's number of the mode
_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
}


@LOWERINGS.op("Resize", "Upsample")
def lower_resize(operation: Operation, lowering: Lowering) -> None:
    """RESIZE or TILE for the nearest element, a convolution for linear interpolation."""
    source = lowering.read(operation, 0)
    shape = lowering.shape(operation)
    if source.rank != 4 or shape[:2] != source.shape[:2]:
        raise CompileError("a Resize is taken of the height and width of images")
    if operation.attributes.get("antialias", 0) or operation.attributes.get("exclude_outside", 0):
        raise CompileError("a Resize with antialias or exclude_outside is not taken")
    image = arrange(lowering.graph, source, IMAGE)
    places = [_find_places(operation, lowering, axis, shape) for axis in (2, 3)]
    mode = _read_text(operation, "mode", "nearest")
    wanted = lowering.result(operation)
    if mode == "nearest":
        made = replace(image, tensor=_repeat(operation, lowering.graph, image.tensor, places))
        lowering.finish(operation, lowering.requantize(made, wanted))
    elif mode == "linear":
        rows, columns = (
            _find_taps(each, extent) for each, extent in zip(places, source.shape[2:], strict=True)
        )
        sums, denominator = _interpolate(image, lowering, rows, columns)
        assert image.quantization is not None
        factor = float(image.quantization.scale) / float(wanted.scale) / denominator
        stored = _interleave(
            lowering.graph, lowering.narrow(sums, factor, wanted), len(rows), len(columns)
        )
        part = lowering.graph.slice(stored, [0] * 4, [shape[axis] for axis in IMAGE])
        lowering.finish(operation, Value(part, IMAGE, wanted))
    else:
        raise CompileError(f"a Resize by mode {mode} is not taken")


def _find_places(operation: Operation, lowering: Lowering, axis: int, shape: Sequence[int]) -> Array:
    """Return the position in the operand of each row or column of the result (ONNX, Resize)."""
    before, behind = lowering.read(operation, 0).shape[axis], shape[axis]
    position = 1 if operation.op == "Upsample" or len(operation.inputs) == 2 else 2
    scales = operation.attributes.get("scales")
    if scales is None and len(operation.inputs) > position:
        scales = lowering.constant(operation, position)
    axes = operation.attributes.get("axes") or range(4)
    by_axis = (
        {}
        if scales is None or not len(scales)
        else dict(zip([a % 4 for a in axes], scales, strict=True))
    )
    scale = float(by_axis.get(axis, behind / before))
    old = operation.op == "Upsample" or position == 1
    mode = _read_text(operation, "coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    result = np.arange(behind, dtype=np.float64)
    if mode == "asymmetric":
        return result / scale
    if mode == "align_corners":
        return result * ((before - 1) / max(behind - 1, 1))
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and behind > 1):
        return (result + 0.5) / scale - 0.5
    raise CompileError(f"a Resize with {mode} is not taken")


def _repeat(operation: Operation, graph: TosaGraph, tensor: Tensor, places: Sequence[Array]) -> Tensor:
    """Return an image with its rows and columns repeated. Raises CompileError where it is not that."""
    round_ = _ROUNDINGS[_read_text(operation, "nearest_mode", "round_prefer_floor")]
    old = operation.op == "Upsample" or len(operation.inputs) == 2
    batch, height, width, channels = tensor.shape
    factors = []
    for place, extent in zip(places, (height, width), strict=True):
        factor = place.size // extent
        exact = np.round(place, 6)
        chosen = np.clip(np.floor(exact) if old else round_(exact), 0, extent - 1)
        if factor * extent != place.size or np.any(chosen != np.arange(place.size) // factor):
            raise CompileError("a Resize by the nearest is taken where it repeats each row and column")
        factors.append(factor)
    rows, columns = factors
    if rows == columns and rows in (2, 4, 8):
        half = (1 - rows, 1 - columns), (rows - 1, columns - 1)
        numbers = ((2 * rows, 2, 2 * columns, 2), *half)
        operands = [tensor, *(graph.constant(np.array(each, np.int64), "shape") for each in numbers)]
        shape = (batch, height * rows, width * columns, channels)
        return graph.add("RESIZE", operands, tensor.dtype, shape, mode=_NEAREST)
    wide = graph.tile(graph.reshape(tensor, (batch * height * width, 1, channels)), (1, columns, 1))
    line = width * columns * channels
    tall = graph.tile(graph.reshape(wide, (batch * height, 1, line)), (1, rows, 1))
    return graph.reshape(tall, (batch, height * rows, width * columns, channels))


def _find_taps(places: Array, extent: int) -> Array:
    """Return the weights of an element and its neighbours for each place between two elements.

    They are whole numbers, [factor, 3]. Raises CompileError where places do not repeat after a factor.
    """
    factor = -(-places.size // extent)
    first = np.arange(places.size) // factor
    exact = np.round((places - first) * 2 * factor, 4)
    phases = exact[:factor]
    repeats = np.array_equal(exact, np.resize(phases, places.size))
    if not repeats or np.any(phases != np.rint(phases)) or np.any(np.abs(phases) > 2 * factor):
        raise CompileError("a linear Resize is taken where height and width grow by whole factors")
    taps = np.zeros((factor, 3), np.int64)
    for number, phase in enumerate(phases.astype(np.int64)):
        taps[number, 1] = 2 * factor - abs(phase)
        taps[number, 1 + int(np.sign(phase))] += abs(phase)
    divisor = int(np.gcd.reduce(taps, axis=None))
    return taps // divisor


def _interpolate(image: Value, lowering: Lowering, rows: Array, columns: Array) -> tuple[Tensor, float]:
    """Return sums of products with taps, [n, h, w, channels * factors], and what to divide them by."""
    graph = lowering.graph
    batch, height, width, channels = image.tensor.shape
    weights = np.einsum("py,qx->yxpq", rows, columns).reshape(3, 3, 1, -1)
    if weights.max() > 127:
        raise CompileError("a linear Resize by such a factor needs weights of more than 8 bits")
    around = image.tensor
    for axis in (1, 2):
        around = _repeat_edges(graph, around, axis)
    filters = np.broadcast_to(weights, (3, 3, channels, weights.shape[-1]))
    shape = (batch, height, width, channels * weights.shape[-1])
    sums = convolve_depthwise(replace(image, tensor=around), lowering, filters, Window(shape))
    return sums, float(rows[0].sum() * columns[0].sum())


def _repeat_edges(graph: TosaGraph, tensor: Tensor, axis: int) -> Tensor:
    """Return an image with its first and last row, or column, once more."""
    size = list(tensor.shape)
    last = [0] * 4
    last[axis], size[axis] = size[axis] - 1, 1
    edges = graph.slice(tensor, [0] * 4, size), graph.slice(tensor, last, size)
    return graph.concatenate([edges[0], tensor, edges[1]], axis)


def _interleave(graph: TosaGraph, tensor: Tensor, rows: int, columns: int) -> Tensor:
    """Return [n, h, w, channels * rows * columns] as an image that is that many times as large."""
    batch, height, width, _ = tensor.shape
    split = graph.reshape(
        tensor, (batch, height, width, -(-tensor.shape[3] // (rows * columns)), rows, columns)
    )
    moved = graph.transpose(split, (0, 1, 4, 2, 5, 3))
    return graph.reshape(moved, (batch, height * rows, width * columns, moved.shape[-1]))


def _read_text(operation: Operation, name: str, default: str) -> str:
    value = operation.attributes.get(name) or default
    return value.decode() if isinstance(value, bytes) else str(value)


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
