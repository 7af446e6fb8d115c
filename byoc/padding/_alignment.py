"""Alignment: which tensors of the unpadded run are the beginning of those of the padded run.

A tensor is *aligned* when its value in the unpadded run is, element by element, the one at the same
indices in the padded run: what padding adds stands behind it along the padded axes. It is the *same*
when both runs have one value. The analysis goes through the nodes in order and applies a rule for each
operator (`ALIGNMENT_RULES`); what no rule understands is not aligned, unless everything it reads is the
same. Values that depend on the sizes themselves, such as that of a Shape, are *sized*: rules take them
where they know what they mean.
"""

from collections.abc import Mapping
from math import inf

from byoc._dataclasses import dataclass, field
from byoc.model import RANDOM_OPERATORS, get_operator_name
from byoc.padding._matrix_alignment import MATRIX_RULES, MOVEMENT_RULES, AlignmentRule, AlignmentView
from byoc.padding._padded_graph import (
    ILL_FORMED,
    OPSET_OF_ONE_AXIS,
    Assumptions,
    NotAlignedError,
    PaddedGraph,
    Part,
    Zone,
)
from byoc.padding._value_bounds import ValueBounds

# Rules of alignment for what is computed element by element, or row by row.

# The exponential of less than this is rounded to 0: the logarithm of half the smallest number. In half
# precision runtimes compute it in single precision.
_VANISHING = {"float16": -104.0, "float32": -104.0, "float64": -746.0}
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
        lost = view.describe_loss(position, Zone.of({axis: Part.rest}))
        raise NotAlignedError(f"{where} adds numbers of unknown size to that: {lost}", by_value=True)
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


def _normalize_rows(view: AlignmentView) -> None:
    """The rule of a normalization of the axes from `axis` on, by default of the last one."""
    view.require_data()
    rank = len(view.get_shape(0))
    begin = int(view.attributes.get("axis", -1)) % rank
    view.require_unpadded(0, range(begin, rank), "it normalizes")
    view.check_broadcast(range(len(view.node.input)), view.get_output_shape())
    if view.has_output(1) or view.has_output(2):
        raise NotAlignedError("its statistics are used")


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
    "LayerNormalization": _normalize_rows,
    "LogSoftmax": _align_softmax,
    "QuantizeLinear": _align_quantized,
    "RMSNormalization": _normalize_rows,
    "RotaryEmbedding": _rotate,
    "SimplifiedLayerNormalization": _normalize_rows,
    "Softmax": _align_softmax,
    "com.microsoft.DequantizeLinear": _align_quantized,
    "com.microsoft.QuantizeLinear": _align_quantized,
    "com.microsoft.RotaryEmbedding": _rotate,
    "com.microsoft.SkipLayerNormalization": _normalize_skipped,
    "com.microsoft.SkipSimplifiedLayerNormalization": _normalize_skipped,
}
"""Operator, as rule files spell it, to its rule."""


# Rules of alignment for sums and extremes along axes, and for windows that slide along them.

_SUMS = frozenset({"ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"})


def _align_reduction(view: AlignmentView) -> None:
    """Check a reduction: sums whose padding is 0, and extremes that padding does not exceed."""
    view.require_data()
    shape = view.get_shape(0)
    axes = view.read_axes(1)
    if not axes and view.attributes.get("noop_with_empty_axes", 0):
        return
    over = {axis % len(shape) for axis in (axes or range(len(shape)))}
    padded = [axis for axis in sorted(over) if view.graph.is_padded(shape[axis])]
    if not padded:
        return
    where = f"over axis {padded[0]}, which is {shape[padded[0]]} long"
    if view.operator in _SUMS:
        check_zero(view, 0, padded, f"it sums {where}")
        return
    if view.operator in {"ReduceMax", "ReduceMin"} and len(padded) == 1:
        _check_extreme(view, padded[0], where)
        return
    raise NotAlignedError(f"it reduces {where}")


def check_zero(view: AlignmentView, position: int, axes: list[int], what: str) -> None:
    """Raise NotAlignedError unless what padding adds to an input along some axes is 0."""
    for axis in axes:
        parts = {other: Part.whole for other in axes if other != axis}
        found = view.find_bounds(position, Zone.of({**parts, axis: Part.rest}))
        if found is None or not found.is_zero:
            raise NotAlignedError(f"{what}, and padding is not proven to be 0 there", by_value=True)


def _check_extreme(view: AlignmentView, axis: int, where: str) -> None:
    rest = view.find_bounds(0, Zone.of({axis: Part.rest}))
    first = view.find_bounds(0, Zone.of({axis: Part.first}))
    largest = view.operator == "ReduceMax"
    if rest is not None and first is not None:
        if largest and rest.high <= first.low:
            return
        if not largest and rest.low >= first.high:
            return
    what = "largest" if largest else "smallest"
    raise NotAlignedError(f"it takes the {what} {where}, which may be one of padding", by_value=True)


def _align_choice(view: AlignmentView) -> None:
    """Check an ArgMax, ArgMin, TopK or the like, which chooses along one axis."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    default = -1 if view.operator == "TopK" else 0
    view.require_unpadded(0, [int(view.attributes.get("axis", default))], "it chooses along")


def _align_cumulative_sum(view: AlignmentView) -> None:
    view.require_data()
    view.require_same(1)
    shape, axes = view.get_shape(0), view.find_elements(1)
    if axes is None or len(axes) != 1 or not isinstance(axes[0], int):
        raise NotAlignedError("its axis is not known")
    axis = axes[0] % len(shape)
    if view.attributes.get("reverse", 0) and view.graph.is_padded(shape[axis]):
        check_zero(view, 0, [axis], f"it sums from the end of axis {axis}")


def _align_convolution(view: AlignmentView) -> None:
    """Check a Conv: along a padded axis no window reaches what padding adds, or that is 0.

    A window that begins in the unpadded output ends before the unpadded input does, unless pads are
    added at its end; these are zeros, as padding has to be then.
    """
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    view.require_unpadded(0, [1], "it sums over the channels,")
    padded = [axis for axis in view.list_padded(0) if axis >= 2]
    if not padded:
        return
    pads = _read_pads(view)
    if any(pads[len(pads) // 2 + axis - 2] > 0 for axis in padded):
        check_zero(view, 0, padded, f"its windows reach beyond the end of axis {padded[0]}")


def _read_pads(view: AlignmentView) -> list[int]:
    if view.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        if view.attributes["auto_pad"] == "VALID":
            return [0] * (2 * (len(view.get_shape(0)) - 2))
        raise NotAlignedError("its windows are laid out by the size (auto_pad)")
    pads = view.attributes.get("pads") or [0] * (2 * (len(view.get_shape(0)) - 2))
    return [int(pad) for pad in pads]


def _align_pool(view: AlignmentView) -> None:
    """Check a MaxPool or AveragePool whose windows do not reach beyond the end of a padded axis."""
    view.require_data()
    padded = [axis for axis in view.list_padded(0) if axis >= 2]
    if not padded:
        return
    if view.attributes.get("ceil_mode", 0) or view.has_output(1):
        raise NotAlignedError("its last window depends on the size")
    pads = _read_pads(view)
    for axis in padded:
        if pads[len(pads) // 2 + axis - 2] > 0:
            raise NotAlignedError(f"its windows reach beyond the end of axis {axis}")


def _align_batch(view: AlignmentView) -> None:
    """Check an operator that goes over all axes of an image: the batch alone may be padded."""
    view.require_data()
    rank = len(view.get_shape(0))
    view.require_unpadded(0, range(1, rank), "it goes over")
    view.require_same(*range(1, len(view.node.input)))
    view.require_equal(view.get_output_shape()[0], view.get_shape(0)[0])


def _align_recurrence(view: AlignmentView) -> None:
    """Check an RNN, GRU or LSTM: X [length, batch, input], each sequence of the batch by itself."""
    view.require_data()
    view.require_same(1, 2, 3)
    if view.attributes.get("layout", 0):
        raise NotAlignedError("its layout has the batch first")
    batch = view.get_shape(0)[1]
    view.require_unpadded(0, [0, 2], "it goes step by step along")
    for position, axis in ((4, 0), (5, 1), (6, 1)):
        if view.get_input(position):
            view.require_equal(view.get_shape(position)[axis], batch)
    view.require_same(*range(7, len(view.node.input)))


_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
_OF_BATCH = (
    *("ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("GroupNormalization", "InstanceNormalization", "LRN", "Resize", "SpaceToDepth", "Upsample"),
)

REDUCTION_RULES: Mapping[str, AlignmentRule] = {
    **dict.fromkeys(_REDUCTIONS, _align_reduction),
    **dict.fromkeys(_OF_BATCH, _align_batch),
    "ArgMax": _align_choice,
    "ArgMin": _align_choice,
    "AveragePool": _align_pool,
    "Conv": _align_convolution,
    "CumSum": _align_cumulative_sum,
    "GRU": _align_recurrence,
    "LSTM": _align_recurrence,
    "MaxPool": _align_pool,
    "RNN": _align_recurrence,
    "TopK": _align_choice,
}
"""Operator, as rule files spell it, to its rule."""


# Alignment: which tensors of the unpadded run are the beginning of those of the padded run.

ALIGNMENT_RULES: Mapping[str, AlignmentRule] = {
    **ROW_RULES,
    **MATRIX_RULES,
    **MOVEMENT_RULES,
    **REDUCTION_RULES,
}
"""Operator, as rule files spell it, to the rule that raises NotAlignedError unless it is aligned."""


@dataclass(frozen=True)
class Misalignment:
    """The first cause why an output is not aligned: the node, empty for none, and the reason."""

    node: str
    reason: str
    by_value: bool = False

    def __str__(self) -> str:
        """Return it as a clause."""
        return f"{self.node}: {self.reason}" if self.node else self.reason


@dataclass(eq=False)
class Alignment:
    """The alignment of a graph's tensors under some assumptions.

    After the analysis `assumptions` are only those on inputs whose bounds a rule asked for; the others
    have no effect.

    `same` and `sized` are tensors as the module describes them. `causes` has the first cause of each
    tensor that is not aligned. A tensor in none of the three is aligned.
    """

    graph: PaddedGraph
    assumptions: Assumptions
    same: set[str] = field(default_factory=set)
    sized: set[str] = field(default_factory=set)
    causes: dict[str, Misalignment] = field(default_factory=dict)
    bounds: ValueBounds = field(init=False)

    def __post_init__(self) -> None:
        """Go through the graph."""
        graph = self.graph
        self.bounds = ValueBounds(graph, self.assumptions, self.same, self.sized)
        self.same.update(graph.index.constant_names)
        for name in graph.index.inputs:
            shape = graph.get_shape(name)
            if shape is None:
                reason = f"the shape of the input '{name}' is not known"
                self.causes[name] = Misalignment("", reason)
            elif not any(map(graph.is_padded, shape)):
                self.same.add(name)
        for number in range(len(graph.index.nodes)):
            if number not in graph.index.constant_nodes:
                self._judge(number)
        self.assumptions = self.assumptions.select(self.bounds.inputs)

    def find_cause(self) -> Misalignment | None:
        """Return why a graph output is not aligned, None where all are."""
        for name in self.graph.index.outputs:
            cause = self.causes.get(name)
            if cause is None and name in self.sized:
                cause = Misalignment("", f"the output '{name}' says what the sizes are")
            if cause is not None:
                return cause
        return None

    def _judge(self, number: int) -> None:
        """Enter the outputs of a node among the same, the sized or the causes, or nowhere: aligned."""
        index = self.graph.index
        node, outputs = index.nodes[number], [n for n in index.node_outputs[number] if n]
        reads = index.reads[number]
        # Dropout is random in training mode alone, which is an input.
        if node.op_type in RANDOM_OPERATORS and node.op_type != "Dropout":
            self._refuse(number, outputs, "its values are random")
            return
        left = []
        for name in outputs:
            known = self.graph.find_elements(name)
            if known is None:
                left.append(name)
            elif any(self.graph.is_padded(dim) for dim in known):
                self.sized.add(name)
            else:
                self.same.add(name)
        if not left:
            return
        if self.same.issuperset(reads):
            self.same.update(left)
            return
        for name in reads:
            if name in self.causes:
                self.causes.update(dict.fromkeys(left, self.causes[name]))
                return
        self._apply_rule(number, left)

    def _apply_rule(self, number: int, outputs: list[str]) -> None:
        operator = get_operator_name(self.graph.index.nodes[number])
        rule = ALIGNMENT_RULES.get(operator)
        try:
            if rule is None:
                raise NotAlignedError("what it makes of padding is not known")
            view = AlignmentView(self.graph, number, self.bounds, self.same, self.sized)
            rule(view)
            view.check_outputs(outputs)
        except NotAlignedError as error:
            self._refuse(number, outputs, str(error), error.by_value)
            return
        except ILL_FORMED as error:
            self._refuse(number, outputs, f"it is not understood ({error})")
            return
        except RecursionError:
            self._refuse(number, outputs, "bounds of its values are too far to find")
            return
        self.bounds.proven.add(number)

    def _refuse(self, number: int, outputs: list[str], reason: str, by_value: bool = False) -> None:
        node = self.graph.index.nodes[number]
        shown = f"{node.op_type} '{node.name or node.output[0]}'"
        cause = Misalignment(shown, reason, by_value)
        self.causes.update(dict.fromkeys(outputs, cause))
