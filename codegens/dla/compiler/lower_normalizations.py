"""Lower normalizations of vectors: each is one command for the channels of many pixels."""

from math import prod

from byoc.codegen import CompileError

from ..machine import NormalizeKind
from .layer_arithmetic import LayerArithmetic
from .layer_groups import LayerGroup
from .layer_tensors import LayerTensor, memory_extents
from .layers import NormalizeLayer
from .network_builder import NetworkBuilder
from .region_reading import Operand


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
