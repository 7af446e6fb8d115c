"""Lower products of computed matrices, and normalizations of vectors, as transformers have them."""

from dataclasses import replace

from byoc.codegen import CompileError

from ..machine import NormalizeKind
from .layer_groups import LayerGroup
from .layer_tensors import Extents, LayerTensor, Shape, matrix_extents
from .layers import MatMulLayer, NormalizeLayer
from .network_builder import NetworkBuilder
from .region_reading import Operand


def lower_matrix_product(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMul of two tensors of as many matrices."""
    shapes = [builder.shape_of(each.name) for each in group.operands]
    if len(shapes[0]) not in (2, 3, 4) or shapes[0][:-2] != shapes[1][:-2]:
        reason = "a MatMul must be by a constant matrix, or of 2 to 4 axes, all but the last two equal"
        raise CompileError(reason, group.nodes)
    a, b = (
        _arrange_matrices(builder, group, each, shape)
        for each, shape in zip(group.operands, shapes, strict=True)
    )
    y = builder.result_tensor(group, _matrices(builder.shapes[group.output]))
    clamp = builder.fused_clamp(group)
    builder.add_layer(MatMulLayer(group.output, group.nodes, y, a, b, clamp=clamp))


def _matrices(shape: Shape) -> Extents:
    """Return the extents of a tensor with each matrix as one row."""
    return matrix_extents((1,) * (4 - len(shape)) + shape)


def _arrange_matrices(
    builder: NetworkBuilder, group: LayerGroup, operand: Operand, shape: Shape
) -> LayerTensor:
    if builder.reading.is_constant(operand.name):
        x = builder.constant_tensor(group, operand, len(shape), image=False)
        return replace(x, extents=_matrices(shape))
    x = builder.arrange(operand.name, shape, group.nodes, image=False, extents=_matrices(shape))
    return builder.scale_operand(group, operand, x)


def lower_softmax(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Softmax over the last axis."""
    _require_last_axis(builder, group)
    _add_normalization(builder, group, NormalizeKind.SOFTMAX)


def lower_layer_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a LayerNormalization over the last axis."""
    _require_last_axis(builder, group)
    if any(builder.is_read(name) for name in group.main.outputs[1:]):
        raise CompileError("the machine does not give out means and deviations", group.nodes)
    channels = builder.shapes[group.main.inputs[0]][-1]
    factors = [_factor(builder, group, each, channels) for each in group.operands[1:]]
    scale, bias = (*factors, None)[:2]
    epsilon = group.main.attributes["epsilon"]
    _add_normalization(builder, group, NormalizeKind.LAYER, scale, bias, epsilon)


def _require_last_axis(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Raise CompileError for a normalization over other axes than the last."""
    rank = len(builder.shapes[group.main.inputs[0]])
    if group.main.attributes["axis"] not in (-1, rank - 1):
        raise CompileError(f"a {group.main.op} must be over the last axis", group.nodes)


def _factor(
    builder: NetworkBuilder, group: LayerGroup, operand: Operand, channels: int
) -> LayerTensor | None:
    """Return the scale or bias of each channel, None for one that is left out."""
    if not operand.name:
        return None
    if not builder.reading.is_constant(operand.name):
        raise CompileError(f"'{operand.name}' must be constant", group.nodes)
    if builder.reading.stored_array(operand.name).shape != (channels,):
        raise CompileError(f"'{operand.name}' must be one number for each channel", group.nodes)
    return builder.constant_tensor(group, operand, 1)


def _add_normalization(  # noqa: PLR0913, PLR0917 - what the layer has
    builder: NetworkBuilder,
    group: LayerGroup,
    kind: NormalizeKind,
    scale: LayerTensor | None = None,
    bias: LayerTensor | None = None,
    epsilon: float = 0.0,
) -> None:
    group.require_float()
    x = builder.rows_tensor(group, group.operands[0])
    y = builder.result_tensor(group, x.extents)
    builder.add_layer(NormalizeLayer(group.output, group.nodes, y, x, kind, scale, bias, epsilon))
