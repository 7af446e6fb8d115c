"""Rules of alignment for what is computed element by element, or row by row."""

from collections.abc import Mapping
from math import inf

from byoc.padding._alignment_view import AlignmentRule, AlignmentView
from byoc.padding._padded_graph import OPSET_OF_ONE_AXIS, NotAlignedError
from byoc.padding._zones import Part, Zone

# The exponential of less than this is rounded to 0: the logarithm of half the smallest number. In half
# precision runtimes compute it in single precision.
_VANISHING = {"float16": -104.0, "float32": -104.0, "double": -746.0, "float64": -746.0}
# Sums of floats may be off by this share of their terms, and more than by which any runtime rounds.
_ROUNDING = 1e-3

_ELEMENTWISE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift"),
    *("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip"),
    *("Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater"),
    *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul"),
    *("Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink"),
    *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum"),
    *("Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor", "com.microsoft.BiasGelu"),
    *("com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu"),
)


def _align_elements(view: AlignmentView) -> None:
    """Check what is computed of the elements at one index, with broadcasting."""
    view.require_data()
    view.check_broadcast(range(len(view.node.input)), view.get_output_shape())


def _align_dropout(view: AlignmentView) -> None:
    """Check a Dropout that passes on what it reads."""
    view.require_data()
    training = view.graph.read_constant(view.get_input(2)) if view.get_input(2) else None
    if view.get_input(2) and (training is None or training.any()):
        raise NotAlignedError("its values are random")
    if view.has_output(1):
        raise NotAlignedError("its mask is used")


def _align_quantized(view: AlignmentView) -> None:
    """Check a QuantizeLinear or DequantizeLinear, whose scales are constants."""
    view.require_data()
    view.require_same(1, 2)
    scales = view.get_shape(1)
    if any(dim != 1 for dim in scales):
        if len(scales) != 1:
            raise NotAlignedError("it has scales for blocks")
        view.require_unpadded(0, [int(view.attributes.get("axis", 1))], "it has scales along")


def _align_softmax(view: AlignmentView) -> None:
    """Check a Softmax or LogSoftmax: what padding adds has to vanish beside index 0 of the axis."""
    view.require_data()
    shape = view.get_shape(0)
    axis = int(view.attributes.get("axis", -1)) % len(shape)
    axes = [axis]
    if view.opset < OPSET_OF_ONE_AXIS:
        axes = [a for a in range(axis, len(shape)) if shape[a] != 1]
    padded = [a for a in axes if view.graph.is_padded(shape[a])]
    if not padded:
        return
    if len(axes) > 1:
        raise NotAlignedError("it goes over a padded axis together with others")
    check_vanishing(view, 0, padded[0])


def check_vanishing(view: AlignmentView, position: int, axis: int) -> None:
    """Raise NotAlignedError unless the exponentials of what padding adds are 0 beside those before.

    That is so where it is minus infinity, or so far below the element at index 0, whatever its row,
    that the exponential of the difference is rounded to 0.
    """
    shape = view.get_shape(position)
    rest = view.find_bounds(position, Zone.of({axis: Part.rest}))
    where = f"it goes over axis {axis}, which is {shape[axis]} long, and padding"
    if rest is None:
        raise NotAlignedError(f"{where} adds numbers of unknown size to that", by_value=True)
    if rest.high == -inf:
        return
    first = view.find_bounds(position, Zone.of({axis: Part.first}))
    least = _VANISHING.get(view.graph.get_dtype(view.get_input(position)), -inf)
    room = _ROUNDING * (abs(rest.high) + (inf if first is None else abs(first.low)))
    if first is None or not rest.high - first.low < least - room:
        raise NotAlignedError(
            f"{where} is not proven to add nothing to that: up to {rest.high:.4g} beside an element "
            f"of {-inf if first is None else first.low:.4g} or more",
            by_value=True,
        )


def _normalize_rows(axis: int = -1) -> AlignmentRule:
    """Return the rule of a normalization of the axes from its `axis` on."""

    def rule(view: AlignmentView) -> None:
        view.require_data()
        rank = len(view.get_shape(0))
        begin = int(view.attributes.get("axis", axis)) % rank
        view.require_unpadded(0, range(begin, rank), "it normalizes")
        view.check_broadcast(range(len(view.node.input)), view.get_output_shape())
        if view.has_output(1) or view.has_output(2):
            raise NotAlignedError("its statistics are used")

    return rule


def _normalize_skipped(view: AlignmentView) -> None:
    """Check a normalization of a sum, whose parameters are vectors of the last axis."""
    view.require_data()
    view.require_unpadded(0, [-1], "it normalizes")
    view.check_broadcast(range(len(view.node.input)), view.get_output_shape())
    if view.has_output(1) or view.has_output(2):
        raise NotAlignedError("its statistics are used")


def _normalize_channels(view: AlignmentView) -> None:
    """Check a BatchNormalization that uses the statistics that are given."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    view.require_unpadded(0, [1], "it has parameters along")
    if view.attributes.get("training_mode", 0) or len([n for n in view.node.output if n]) > 1:
        raise NotAlignedError("it makes statistics of all that it reads")


def _rotate(view: AlignmentView) -> None:
    """Check a RotaryEmbedding: positions are given, and rows are rotated one by one."""
    view.require_data()
    shape = view.get_shape(0)
    ids = 3 if not view.operator.startswith("com.") else 1
    caches = (1, 2) if not view.operator.startswith("com.") else (2, 3)
    view.require_unpadded(0, [-1], "it rotates")
    if view.get_input(ids):
        view.require_same(*caches)
        positions = view.get_shape(ids)
        if len(positions) == 2:
            length = shape[-2]
            for own, other in zip(positions, (shape[0], length), strict=True):
                view.require_equal(own, other)
        else:
            view.require_same(ids)
        return
    for cache in caches:
        for own, other in zip(view.get_shape(cache)[:2], (shape[0], shape[-2]), strict=True):
            view.require_equal(own, other)


ROW_RULES: Mapping[str, AlignmentRule] = {
    **dict.fromkeys(_ELEMENTWISE, _align_elements),
    "BatchNormalization": _normalize_channels,
    "DequantizeLinear": _align_quantized,
    "Dropout": _align_dropout,
    "LayerNormalization": _normalize_rows(),
    "LogSoftmax": _align_softmax,
    "QuantizeLinear": _align_quantized,
    "RMSNormalization": _normalize_rows(),
    "RotaryEmbedding": _rotate,
    "SimplifiedLayerNormalization": _normalize_rows(),
    "Softmax": _align_softmax,
    "com.microsoft.DequantizeLinear": _align_quantized,
    "com.microsoft.QuantizeLinear": _align_quantized,
    "com.microsoft.RotaryEmbedding": _rotate,
    "com.microsoft.SkipLayerNormalization": _normalize_skipped,
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalize_skipped,
}
"""Operator, as rule files spell it, to its rule."""
