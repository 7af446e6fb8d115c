"""Lower sums, products, quotients, powers and means, which are additions and products."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from byoc.codegen import CompileError

from ..machine import FunctionKind, NormalizeKind
from .layer_groups import LayerGroup
from .layers import ActivationLayer, EltwiseLayer, NormalizeLayer
from .network_builder import LayerArithmetic, NetworkBuilder
from .output_shapes import Extents, LayerTensor, Shape, matrix_extents, memory_extents
from .region_reading import Operand

# Lower normalizations of vectors: each is one command for the channels of many pixels.


def lower_softmax(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Softmax over the last axis."""
    _require_last_axis(builder, group)
    _add_normalization(builder, group, NormalizeKind.SOFTMAX)


def lower_layer_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a LayerNormalization over the last axis."""
    _normalize_last_axis(builder, group, NormalizeKind.LAYER)


def lower_rms_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower an RMSNormalization or SimplifiedLayerNormalization, which are the same."""
    _normalize_last_axis(builder, group, NormalizeKind.RMS)


def lower_skip_layer_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a SkipLayerNormalization, whose inputs are x, skip, scale, shift and bias."""
    x, skip, scale, *rest = group.operands
    _normalize_sum(builder, group, NormalizeKind.LAYER, (x, skip, *rest[1:]), (scale, *rest[:1]))


def lower_skip_rms_normalization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a SkipSimplifiedLayerNormalization, whose inputs are x, skip, scale and bias."""
    x, skip, scale, *rest = group.operands
    _normalize_sum(builder, group, NormalizeKind.RMS, (x, skip, *rest), (scale,))


def _normalize_last_axis(builder: NetworkBuilder, group: LayerGroup, kind: NormalizeKind) -> None:
    _require_last_axis(builder, group)
    _require_no_statistics(builder, group, group.main.outputs[1:])
    x, *factors = group.operands
    _add_normalization(builder, group, kind, builder.rows_tensor(group, x), factors)


def _normalize_sum(
    builder: NetworkBuilder,
    group: LayerGroup,
    kind: NormalizeKind,
    summed: tuple[Operand, ...],
    factors: tuple[Operand, ...],
) -> None:
    """Add the sum of x, skip and a bias, which is the fourth result, and the normalization of it."""
    group.require_float()
    outputs = (*group.main.outputs, "", "", "")
    _require_no_statistics(builder, group, outputs[1:3])
    layers = LayerArithmetic(builder, group)
    x, *others = (_arrange_summed(builder, group, each) for each in summed if each.name)
    if others[0].extents != x.extents and prod(others[0].extents) == prod(x.extents):
        extents = memory_extents(builder.shapes[summed[0].name])
        x, others[0] = (
            builder.arrange(each.name, builder.shapes[each.name], group.nodes, extents=extents)
            for each in summed[:2]
        )
    for number, other in enumerate(others, 1):
        last = number == len(others) and builder.is_read(outputs[3])
        x = layers.add(x, other, LayerTensor(outputs[3], x.extents, "float32") if last else None)
    _add_normalization(builder, group, kind, x, factors)


def _arrange_summed(builder: NetworkBuilder, group: LayerGroup, operand: Operand) -> LayerTensor:
    """Return a summand, with four extents of which the last are the channels."""
    if builder.reading.is_constant(operand.name):
        return builder.constant_tensor(group, operand, 3)
    rank = len(builder.shapes[operand.name])
    if rank == 3:
        return builder.rows_tensor(group, operand)
    shape = (1,) * (3 - rank) + builder.shapes[operand.name]
    return builder.arrange(operand.name, shape, group.nodes, extents=memory_extents(shape))


def _require_last_axis(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Raise CompileError for a normalization over other axes than the last."""
    rank = len(builder.shapes[group.main.inputs[0]])
    if group.main.attributes["axis"] not in (-1, rank - 1):
        raise CompileError(f"a {group.main.op} must be over the last axis", group.nodes)


def _require_no_statistics(builder: NetworkBuilder, group: LayerGroup, outputs: tuple[str, ...]) -> None:
    if any(builder.is_read(name) for name in outputs):
        raise CompileError("the machine does not give out means and deviations", group.nodes)


def _add_normalization(
    builder: NetworkBuilder,
    group: LayerGroup,
    kind: NormalizeKind,
    x: LayerTensor | None = None,
    factors: tuple[Operand, ...] | list[Operand] = (),
) -> None:
    """Add the layer; `factors` are a scale and a shift of each channel, as far as there are any."""
    group.require_float()
    x = x or builder.rows_tensor(group, group.operands[0])
    scale, shift = (*(_read_factor(builder, group, each, x.channels) for each in factors), None, None)[
        :2
    ]
    epsilon = 0.0 if kind is NormalizeKind.SOFTMAX else group.main.attributes["epsilon"]
    y = builder.result_tensor(group, x.extents)
    builder.add_layer(NormalizeLayer(group.output, group.nodes, y, x, kind, scale, shift, epsilon))


def _read_factor(
    builder: NetworkBuilder, group: LayerGroup, operand: Operand, channels: int
) -> LayerTensor | None:
    """Return the scale or shift of each channel, None for one that is left out."""
    if not operand.name:
        return None
    if not builder.reading.is_constant(operand.name):
        raise CompileError(f"'{operand.name}' must be constant", group.nodes)
    if builder.reading.stored_array(operand.name).shape != (channels,):
        raise CompileError(f"'{operand.name}' must be one number for each channel", group.nodes)
    return builder.constant_tensor(group, operand, 1)


def lower_sum(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower an Add, or a Sum of any number of operands to additions one after another."""
    operands, y = arrange_operands(builder, group, by_channel=True)
    clamp = builder.fused_clamp(group)
    if len(operands) == 1:
        builder.add_layer(ActivationLayer(group.output, group.nodes, y, operands[0], clamp=clamp))
        return
    if len(operands) > 2 and group.quantization is not None:
        raise CompileError("a quantized Sum must be of two operands", group.nodes)
    total = operands[0]
    for number, other in enumerate(operands[1:-1], 1):
        name = builder.unused_name(f"{group.output}/{number}")
        pairs = zip(total.extents, other.extents, strict=True)
        extents: Any = tuple(n if m == 1 else m for m, n in pairs)
        interim = y.like(name, extents)
        total = builder.add_layer(
            EltwiseLayer(name, group.nodes, interim, total, other, multiplies=False)
        )
    last = operands[-1]
    builder.add_layer(
        EltwiseLayer(group.output, group.nodes, y, total, last, multiplies=False, clamp=clamp)
    )


def lower_mul(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Mul."""
    (a, b), y = arrange_operands(builder, group, by_channel=True)
    clamp = builder.fused_clamp(group)
    builder.add_layer(EltwiseLayer(group.output, group.nodes, y, a, b, multiplies=True, clamp=clamp))


def lower_sub(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Sub to a sum: with the negative of a constant, or of the product by -1."""
    group.require_float()
    (a, b), y = arrange_operands(builder, group)
    if builder.reading.is_constant(group.operands[1].name):
        builder.constants[b.name] = -builder.constants[b.name]
    else:
        b = LayerArithmetic(builder, group).scale(b, -1.0)
    clamp = builder.fused_clamp(group)
    builder.add_layer(EltwiseLayer(group.output, group.nodes, y, a, b, multiplies=False, clamp=clamp))


def lower_neg(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Neg to a product by -1."""
    group.require_float()
    x, y = arrange_alone(builder, group)
    LayerArithmetic(builder, group).scale(x, -1.0, y)


def lower_div(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Div to a product: by one over a constant, or by the reciprocals of a tensor."""
    group.require_float()
    (a, b), y = arrange_operands(builder, group)
    if builder.reading.is_constant(group.operands[1].name):
        with np.errstate(divide="ignore", over="ignore"):
            factors = np.float32(1) / builder.constants[b.name]
        if not np.isfinite(factors).all():
            raise CompileError("one over the divisor of a Div is not finite", group.nodes)
        builder.constants[b.name] = factors
    else:
        b = LayerArithmetic(builder, group).apply(FunctionKind.RECIPROCAL, b)
    clamp = builder.fused_clamp(group)
    builder.add_layer(EltwiseLayer(group.output, group.nodes, y, a, b, multiplies=True, clamp=clamp))


def lower_power(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a Pow by 2 or 3 to products."""
    exponent = group.operands[1]
    given = (
        builder.reading.constant_array(exponent) if builder.reading.is_constant(exponent.name) else None
    )
    if given is None or given.size != 1 or given.item() not in (2, 3):
        raise CompileError("a Pow must be by 2 or 3", group.nodes)
    group.require_float()
    x, y = arrange_alone(builder, group)
    power = x
    for number in range(2, int(given.item()) + 1):
        last = number == given.item()
        made = y if last else y.like(builder.unused_name(f"{group.output}/{number}"))
        power = builder.add_layer(EltwiseLayer(made.name, group.nodes, made, power, x, multiplies=True))


def lower_mean(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a ReduceMean over the last axis to a product by a matrix of one column."""
    group.require_float()
    shape = builder.shapes[group.main.inputs[0]]
    if _mean_axes(builder, group) not in ([-1], [len(shape) - 1]):
        raise CompileError("a ReduceMean must be over the last axis", group.nodes)
    x = builder.rows_tensor(group, group.operands[0])
    y = builder.result_tensor(group, (*x.extents[:3], 1))
    column = np.full((x.channels, 1), 1 / x.channels, np.float32)
    LayerArithmetic(builder, group).project(x, column, y=y)


def _mean_axes(builder: NetworkBuilder, group: LayerGroup) -> list[int]:
    """Return the axes of a ReduceMean, an attribute before operator set 18; none where it has none."""
    stated = [*group.main.inputs, ""][1]
    if not stated:
        return list(group.main.attributes.get("axes", ()))
    if not builder.reading.is_constant(stated):
        return []
    return [int(axis) for axis in builder.reading.stored_array(stated).reshape(-1)]


def arrange_operands(
    builder: NetworkBuilder, group: LayerGroup, *, by_channel: bool = False
) -> tuple[list[LayerTensor], LayerTensor]:
    """Return the operands as tensors of the rank of the result, and the result.

    All are in ONNX's order where `NetworkBuilder.is_plain` says so, else images. With `by_channel` each
    channel of the result may have a scale; then all are images.
    """
    made = builder.shapes[group.main.outputs[0]]
    channels = by_channel and group.has_channel_scales
    plain = not channels and builder.is_plain([each.name for each in group.operands])
    constants = {
        each.name: builder.constant_tensor(group, each, len(made), not plain)
        for each in group.operands
        if builder.reading.is_constant(each.name)
    }
    computed = [each.name for each in group.operands if each.name not in constants]
    common = None
    if not channels:
        common = _common_extents(builder, computed, [*constants.values()], made, not plain)
    extents_of = matrix_extents if plain else memory_extents

    def arrange(operand: Operand) -> LayerTensor:
        if operand.name in constants:
            return constants[operand.name]
        shape = builder.shapes[operand.name]
        shape = (1,) * (len(made) - len(shape)) + shape
        extents = common or extents_of(shape)
        x = builder.arrange(operand.name, shape, group.nodes, image=not plain, extents=extents)
        return builder.scale_operand(group, operand, x)

    operands = [arrange(each) for each in group.operands]
    y = builder.result_tensor(
        group, (common or extents_of(made)) if plain else None, by_channel=channels
    )
    return operands, replace(y, extents=common or y.extents)


def _common_extents(
    builder: NetworkBuilder,
    names: Sequence[str],
    constants: Sequence[LayerTensor],
    shape: Shape,
    image: bool,
) -> Extents | None:
    """Return the extents that tensors of one shape have already, if constants fit them."""
    if any(builder.shapes[name] != shape for name in names):
        return None
    found = {builder.arrange(name, shape, (), image=image).extents for name in names}
    if len(found) != 1:
        return None
    (extents,) = found
    fits = all(each.extents in ((1, 1, 1, 1), (1, 1, 1, extents[3])) for each in constants)
    return extents if fits or memory_extents(shape) == extents else None


def arrange_alone(
    builder: NetworkBuilder, group: LayerGroup, *, by_channel: bool = False
) -> tuple[LayerTensor, LayerTensor]:
    """Return the only operand as it is, and the result in the same order.

    With `by_channel` each channel of the result may have a scale; then both are images.
    """
    (operand,) = group.operands[:1]
    if by_channel and group.has_channel_scales:
        return builder.operand_tensor(group, operand), builder.result_tensor(group, by_channel=True)
    x = builder.scale_operand(group, operand, builder.tensors[operand.name])
    y = replace(builder.result_tensor(group), extents=x.extents)
    if operand.name in builder.plain:
        builder.plain.add(group.output)
    return x, y
