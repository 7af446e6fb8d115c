"""Lower what transformers consist of: products of activations, normalizations, transpositions."""

from dataclasses import replace
from math import prod

from byoc.codegen import CompileError

from ..machine import NormalizeKind
from .layer_groups import LayerGroup
from .layer_tensors import (
    Extents,
    LayerTensor,
    Shape,
    is_reordered,
    matrix_extents,
    memory_extents,
)
from .layers import MatMulLayer, MoveLayer, NormalizeLayer
from .lowering import NetworkBuilder
from .moved_axes import count_tile_elements, dense_steps
from .region_reading import Operand

_TO_IMAGE, _FROM_IMAGE = (0, 3, 1, 2), (0, 2, 3, 1)  # Transposes of ONNX that leave bytes where they are
_TILE_BYTES = 1024  # of a transposition; larger ones are no better than matrices that are rows


def lower_matrices(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a MatMul of two tensors of as many matrices."""
    shapes = [lowering.shape_of(each.name) for each in unit.operands]
    if len(shapes[0]) not in (2, 3, 4) or shapes[0][:-2] != shapes[1][:-2]:
        reason = "a MatMul must be by a constant matrix, or of 2 to 4 axes, all but the last two equal"
        raise CompileError(reason, unit.nodes)
    a, b = (
        _arrange_matrices(lowering, unit, each, shape)
        for each, shape in zip(unit.operands, shapes, strict=True)
    )
    y = lowering.result_tensor(unit, _matrices(lowering.shapes[unit.output]))
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(MatMulLayer(unit.output, unit.nodes, y, a, b, clamp=clamp))


def _matrices(shape: Shape) -> Extents:
    """Return the extents of a tensor with each matrix as one row."""
    return matrix_extents((1,) * (4 - len(shape)) + shape)


def _arrange_matrices(
    lowering: NetworkBuilder, unit: LayerGroup, operand: Operand, shape: Shape
) -> LayerTensor:
    if lowering.reading.is_constant(operand.name):
        x = lowering.constant_tensor(unit, operand, len(shape), image=False)
        return replace(x, extents=_matrices(shape))
    x = lowering.arrange(operand.name, shape, unit.nodes, image=False, extents=_matrices(shape))
    return lowering.scale_operand(unit, operand, x)


def lower_softmax(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Softmax over the last axis."""
    attributes, shape = unit.main.attributes, lowering.shapes[unit.main.inputs[0]]
    if attributes["axis"] not in (-1, len(shape) - 1):
        raise CompileError("a Softmax must be over the last axis", unit.nodes)
    _add_normalization(lowering, unit, NormalizeKind.SOFTMAX)


def lower_layer_normalization(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a LayerNormalization over the last axis."""
    attributes, shape = unit.main.attributes, lowering.shapes[unit.main.inputs[0]]
    if attributes["axis"] not in (-1, len(shape) - 1):
        raise CompileError("a LayerNormalization must be over the last axis", unit.nodes)
    if any(lowering.is_read(name) for name in unit.main.outputs[1:]):
        raise CompileError("the machine does not give out means and deviations", unit.nodes)
    factors = [_factor(lowering, unit, each, shape[-1]) for each in unit.operands[1:]]
    scale, bias = (*factors, None)[:2]
    _add_normalization(lowering, unit, NormalizeKind.LAYER, scale, bias, attributes["epsilon"])


def _factor(
    lowering: NetworkBuilder, unit: LayerGroup, operand: Operand, channels: int
) -> LayerTensor | None:
    """Return the scale or bias of each channel, None for one that is left out."""
    if not operand.name:
        return None
    if not lowering.reading.is_constant(operand.name):
        raise CompileError(f"'{operand.name}' must be constant", unit.nodes)
    if lowering.reading.stored_array(operand.name).shape != (channels,):
        raise CompileError(f"'{operand.name}' must be one number for each channel", unit.nodes)
    return lowering.constant_tensor(unit, operand, 1)


def _add_normalization(  # noqa: PLR0913, PLR0917 - what the layer has
    lowering: NetworkBuilder,
    unit: LayerGroup,
    kind: NormalizeKind,
    scale: LayerTensor | None = None,
    bias: LayerTensor | None = None,
    epsilon: float = 0.0,
) -> None:
    if unit.quantization is not None:
        raise CompileError(f"the machine has {unit.main.op} in float32 only", unit.nodes)
    x = lowering.rows_tensor(unit, unit.operands[0])
    y = lowering.result_tensor(unit, x.extents)
    lowering.add_layer(NormalizeLayer(unit.output, unit.nodes, y, x, kind, scale, bias, epsilon))


def lower_transpose(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Transpose: by DMA, or to a view where an image becomes plain, or the other way around."""
    name, shape = unit.main.inputs[0], lowering.shapes[unit.main.inputs[0]]
    perm = tuple(unit.main.attributes.get("perm") or range(len(shape))[::-1])
    made = tuple(shape[axis] for axis in perm)
    is_image = is_reordered(shape) and name not in lowering.plain
    if is_image and perm == _FROM_IMAGE:
        return lowering.add_view(unit, lowering.tensors[name], plain=True)
    if not is_image and perm == _TO_IMAGE and is_reordered(made):
        x = lowering.arrange(name, shape, unit.nodes, image=False, extents=matrix_extents(shape))
        return lowering.add_view(unit, x, plain=False)
    kept = [axis for axis in perm if shape[axis] > 1]
    if kept == sorted(kept):
        x = lowering.arrange(name, shape, unit.nodes, image=False)
        return lowering.add_view(unit, x, plain=True)
    x = lowering.tensors[name]
    if is_image:  # from the order of memory
        shape, order = memory_extents(shape), tuple(_FROM_IMAGE.index(axis) for axis in perm)
    else:
        order = perm
    if x.rows not in {prod(shape[:axes]) for axes in range(len(shape))}:
        x = lowering.arrange(name, shape, unit.nodes, image=False, extents=matrix_extents(shape))
    y = x.like(lowering.unused_name(f"{unit.output}/moved"))
    layers = [
        MoveLayer(
            y.name, unit.nodes, replace(y, extents=_rows_extents(made, axes)), x, shape, order, shape
        )
        for axes in range(len(made))
    ]
    enough = _TILE_BYTES // x.itemsize
    best = max(layers, key=lambda layer: (min(count_tile_elements(layer), enough), layer.y.rows))
    return lowering.add_view(unit, lowering.add_layer(best), plain=True)


def lower_split(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Split: each result that is read is a copy of a part."""
    (name, *_), start = unit.main.inputs, 0
    shape = lowering.shapes[name]
    axis = unit.main.attributes["axis"] % len(shape)
    for made in unit.main.outputs:
        if lowering.is_read(made):
            _add_part(lowering, unit, made, axis, start, lowering.shapes[made])
        start += lowering.shapes[made][axis]


def lower_gather(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Gather of one constant position to a copy of a part."""
    name, indices = unit.main.inputs
    shape = lowering.shapes[name]
    axis = unit.main.attributes["axis"] % len(shape)
    stored = lowering.reading.stored_array(indices) if lowering.reading.is_constant(indices) else None
    if stored is None or stored.size != 1 or not -shape[axis] <= stored.item() < shape[axis]:
        raise CompileError("a Gather must be of one constant position", unit.nodes)
    part = (*shape[:axis], 1, *shape[axis + 1 :])
    _add_part(lowering, unit, unit.output, axis, stored.item() % shape[axis], part)


def _add_part(  # noqa: PLR0913, PLR0917 - where the part is
    lowering: NetworkBuilder, unit: LayerGroup, made: str, axis: int, start: int, part: Shape
) -> None:
    """Add the copy of a part of a tensor, from a position along one axis."""
    if unit.quantization is not None:
        raise CompileError(f"the machine has {unit.main.op} in float32 only", unit.nodes)
    name = unit.main.inputs[0]
    shape, result = lowering.shapes[name], lowering.shapes[made]
    is_image = is_reordered(shape) and name not in lowering.plain and len(result) == 4
    if is_image:  # in the order of memory
        x = lowering.tensors[name]
        shape, part, axis = memory_extents(shape), memory_extents(part), _FROM_IMAGE.index(axis)
    else:
        x = lowering.arrange(name, shape, unit.nodes, image=False)
        if x.rows not in {prod(shape[:axes]) for axes in range(len(shape))}:
            x = lowering.arrange(name, shape, unit.nodes, image=False, extents=matrix_extents(shape))
        if is_reordered(result):
            lowering.plain.add(made)
    rows = next(axes for axes in range(len(shape)) if x.rows == prod(shape[:axes]))
    y = x.like(made, memory_extents(result) if is_image else _rows_extents(part, rows))
    start *= dense_steps(shape)[axis]
    order = tuple(range(len(shape)))
    lowering.add_layer(MoveLayer(made, unit.nodes, y, x, part, order, shape, start))


def _rows_extents(shape: Shape, axes: int) -> Extents:
    """Return the extents of a tensor in ONNX's order with a row for each position of the first axes."""
    if (len(shape), axes) == (4, 2):
        return matrix_extents(shape)
    return (1, prod(shape[:axes]), prod(shape[axes:-1]), shape[-1])
