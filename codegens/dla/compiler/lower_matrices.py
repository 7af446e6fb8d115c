"""Lower products of computed matrices, as attention has them."""

from dataclasses import replace

from byoc.codegen import CompileError

from .layer_groups import LayerGroup
from .layer_tensors import Extents, LayerTensor, Shape, matrix_extents
from .layers import MatMulLayer
from .network_builder import NetworkBuilder
from .region_reading import Operand


def lower_matrix_product(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMul of two tensors of as many matrices."""
    shapes = [builder.shape_of(each.name) for each in group.operands]
    ranks = {len(shape) for shape in shapes}
    if ranks not in ({2}, {3}, {4}) or shapes[0][:-2] != shapes[1][:-2]:
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
