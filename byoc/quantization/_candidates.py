"""Candidates for quantization: the units of a float model that a target might take quantized."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.errors import YES, InputError, refuse
from byoc.model import (
    CLAMP_OPERATORS,
    VIEW_OPERATORS,
    GraphIndex,
    describe_node,
    get_metadata,
    get_node_name,
    get_operator_name,
    is_dequantize,
    is_onnx,
    is_qdq_node,
    is_quantize,
    may_be_float,
)
from byoc.numerics import merge_groups
from byoc.patterns import (
    ANY_OPERATOR,
    Mark,
    Match,
    Pattern,
    Unit,
    filter_allowed,
    find_matches,
    free_nodes,
    group_matches,
)
from byoc.quantization._calibrators import CHANNELS, DTYPES, ChannelRange, GivenQuantization, Range
from byoc.quantization._weights import (
    WEIGHTED,
    QuantizationParams,
    ScaleRequirement,
    compute_params,
    is_depthwise,
)
from byoc.rules import OpRule, QuantizedRule, QuantizedTensors, Target

_DEFAULT_DTYPE = "int8"
FINER_KEY = "byoc.finer"
"""The metadata of the last node of a finer composite that was chosen: the composite's name."""
FLOAT_KEY = "byoc.float_node"
"""The metadata of a node that stays in floating point: it was put in to be computed so."""


@dataclass(frozen=True)
class TensorRequirement:
    """The requirements on a tensor at one of its uses; the first of its `dtypes` is preferred.

    `channels` says whether an activation may have a scale for each channel (axis 1). `largest` is the
    greatest integer that weights may be, None for that of the data type.
    """

    dtypes: tuple[str, ...]
    symmetric: bool
    per_channel: bool
    power_of_two: bool
    channels: bool = False
    largest: int | None = None


@dataclass(frozen=True, eq=False)
class TargetRequirements:
    """The requirements of a target, use by use.

    `dtype` is that of activations, None for what each rule prefers.
    """

    target: Target
    dtype: str | None = None

    def find_ops(self) -> dict[str, bool]:
        """Return the operators that the target takes quantized, and whether each may stand alone."""
        found: dict[str, bool] = {}
        for rule in self.target.rules.ops:
            for op in rule.op if rule.quantized else ():
                found[op] = found.get(op, False) or rule.standalone
        return found

    def needs_same_scale(self, node: NodeProto) -> bool:
        """Return whether inputs and output of a node must share one scale and zero point."""
        return get_operator_name(node) in (self.target.rules.quantization.same_scale or ())

    @property
    def names_channels(self) -> bool:
        """Whether a rule for a quantized operator names an axis of scales."""
        return any(
            tensor.quantized is not None and tensor.quantized.axis is not None
            for rule in self.target.rules.ops
            if rule.quantized
            for tensor in rule.tensors.values()
        )

    def find_requirement(
        self, index: GraphIndex, node: NodeProto, position: int, role: str, *, out: bool
    ) -> TensorRequirement:
        """Return the requirements on an input or output; `role` is activations, weights or bias.

        Of the rules for the quantized operator the first counts whose result may have the data type, or
        the first of all; if a node only fits a later one, the annotator refuses it. An
        activation may have a scale for each channel if any rule names the axis, and the node does not
        add up products of several channels.
        """
        rules = self._find_rules(get_operator_name(node))
        result = find_formal_name(index, node, 0, out=True)
        fitting = (
            each for each in rules if self.dtype in self._list_dtypes(each, result, "activations")
        )
        rule = next(fitting, rules[0] if rules else None)
        formal = find_formal_name(index, node, position, out=out)
        tensor = rule.tensors.get(formal) if rule is not None and formal else None
        own = (tensor.quantized if tensor else None) or QuantizedRule()
        scheme = self.target.rules.quantization
        part = getattr(scheme, role) or QuantizedTensors()
        dtypes = self._list_dtypes(rule, formal, role)
        stated = own.model_fields_set
        symmetric = own.symmetric if "symmetric" in stated else part.symmetric
        if symmetric is None:
            symmetric = role == "weights" and "symmetric" not in stated
        power_of_two = own.power_of_two if "power_of_two" in stated else scheme.scales == "power_of_two"
        per_channel = own.per_channel if "per_channel" in stated else part.per_channel
        integers = tuple(dtype for dtype in dtypes if dtype in DTYPES) or (_DEFAULT_DTYPE,)
        rank = index.get_rank((node.output if out else node.input)[position]) or 0
        return TensorRequirement(
            integers,
            bool(symmetric),
            bool(per_channel),
            bool(power_of_two),
            (out or node.op_type not in WEIGHTED or is_depthwise(index, node))
            and any(_names_channels(rule, formal, rank, part) for rule in rules),
            scheme.weights.largest if role == "weights" and scheme.weights else None,
        )

    def _list_dtypes(self, rule: OpRule | None, formal: str, role: str) -> Sequence[str]:
        """Return the data types that a tensor may have by a rule, by its formal name and its role."""
        tensor = rule.tensors.get(formal) if rule is not None and formal else None
        part = getattr(self.target.rules.quantization, role) or QuantizedTensors()
        lists = (tensor.dtype if tensor else None, rule.dtype if rule else None, part.dtype)
        return next((found for found in lists if found), self.target.rules.dtype)

    def _find_rules(self, op: str) -> list[OpRule]:
        """Return the rules for a quantized operator, those for any operator where none names it."""
        rules = [rule for rule in self.target.rules.ops if rule.quantized]
        named = [rule for rule in rules if op in rule.op]
        return named or [rule for rule in rules if ANY_OPERATOR in rule.op]


def _names_channels(rule: OpRule, formal: str, rank: int, part: QuantizedTensors) -> bool:
    """Return whether a rule names the channels as an axis that scales of a tensor may lie along."""
    tensor = rule.tensors.get(formal)
    own = tensor.quantized if tensor else None
    if own is None or own.axis is None or rank <= CHANNELS:
        return False
    per_channel = own.per_channel if "per_channel" in own.model_fields_set else part.per_channel
    return per_channel is not False and CHANNELS in {axis % rank for axis in own.axis}


def find_formal_name(index: GraphIndex, node: NodeProto, position: int, *, out: bool) -> str:
    """Return ONNX's name of an input or output of a node, empty if it has no schema."""
    schema = index.get_schema(node)
    if schema is None:
        return ""
    found = schema.outputs if out else schema.inputs
    return found[min(position, len(found) - 1)].name if found else ""


_DTYPE = "float32"
_NO_NUMBERS = "it computes with no floating-point numbers"  # not worth a note


@dataclass(frozen=True, eq=False)
class QuantizationCandidate:
    """A unit to be quantized for a target, and the tensors that enter and leave it.

    `reads` and `makes` are float tensors that are not constant; numbers and names are those of the float
    model.
    """

    unit: Unit
    requirements: TargetRequirements
    reads: tuple[str, ...]
    makes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The unit's name."""
        return self.unit.name


def find_candidates(
    index: GraphIndex, wishes: TargetRequirements, out: Collection[int]
) -> tuple[list[QuantizationCandidate], dict[int, str]]:
    """Return the candidates of a target without the nodes `out`, and reasons for rejected nodes.

    The reasons are by node number, for nodes whose operators the target takes quantized.
    """
    ops = wishes.find_ops()
    standalone = {
        number: ops.get(get_operator_name(node), ops.get(ANY_OPERATOR, False))
        for number, node in enumerate(index.nodes)
        if number not in index.constant_nodes and (get_operator_name(node) in ops or ANY_OPERATOR in ops)
    }
    never = {number: why for number in standalone if (why := _find_obstacle(index, number))}
    free = {number for number in standalone if number not in never and number not in out}
    marks = [
        Mark(YES, standalone=standalone[number]) if number in free else Mark(refuse("not quantized"))
        for number in range(len(index.nodes))
    ]
    found = [unit for unit in _group_units(index, wishes.target.patterns, marks) if unit.verdict]
    return [_make_candidate(index, wishes, unit) for unit in found], {
        number: why for number, why in never.items() if why != _NO_NUMBERS
    }


def _group_units(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Unit]:
    """Divide a float model into units; composites that are finer stand only where they were chosen."""
    matches = find_matches(index, patterns, free_nodes(index, marks))
    wanted = [match for match in matches if not match.pattern.finer or is_finer(index, match)]
    return group_matches(index, filter_allowed(index, wanted, marks), marks)


def is_finer(index: GraphIndex, match: Match) -> bool:
    """Return whether a match of a finer composite was chosen: `mark_finer` marked its last node."""
    return get_metadata(index.nodes[match.root], FINER_KEY) == match.pattern.name


def _find_obstacle(index: GraphIndex, number: int) -> str:
    """Return why a node is never quantized, empty if it may be."""
    node = index.nodes[number]
    if is_qdq_node(node) or number in index.bodies or get_metadata(node, FLOAT_KEY):
        return _NO_NUMBERS
    if _is_quantized(index, number):
        return f"{describe_node(node)} is quantized already"
    for name in (*index.reads[number], *filter(None, node.output)):
        if not may_be_float(index, name):
            continue
        tensor_type = index.types.get(name)
        if tensor_type is None or tensor_type.dtype != _DTYPE:
            return f"'{name}' is {tensor_type or 'of an unknown type'}, and float32 alone is quantized"
    if all(index.is_constant(name) for name in index.reads[number] if may_be_float(index, name)):
        return _NO_NUMBERS
    return ""


def _is_quantized(index: GraphIndex, number: int) -> bool:
    """Return whether a node has a DequantizeLinear before it or a QuantizeLinear after it."""
    makers = (index.producers.get(name, -1) for name in index.reads[number])
    before = any(
        is_dequantize(index.nodes[m]) and m not in index.constant_nodes for m in makers if m >= 0
    )
    users = (user for name in index.nodes[number].output for user in index.consumers.get(name, ()))
    return before or any(is_quantize(index.nodes[user]) for user in users)


def _make_candidate(index: GraphIndex, wishes: TargetRequirements, unit: Unit) -> QuantizationCandidate:
    inside = set(unit.nodes)
    made = {name for number in unit.nodes for name in index.nodes[number].output if name}
    reads = dict.fromkeys(
        name
        for number in unit.nodes
        for name in index.reads[number]
        if name not in made and not index.is_constant(name) and may_be_float(index, name)
    )
    makes = [
        name
        for number in unit.nodes
        for name in index.nodes[number].output
        if name
        and may_be_float(index, name)
        and (name in index.outputs or not inside.issuperset(index.consumers.get(name, ())))
    ]
    return QuantizationCandidate(unit, wishes, tuple(reads), tuple(makes))


def find_unit_names(index: GraphIndex, unit: Unit) -> set[str]:
    """Return the names by which a user may refer to a unit: its own, its nodes' and their outputs'."""
    nodes = [index.nodes[number] for number in unit.nodes]
    names = {unit.name, *(node.name for node in nodes), *(name for n in nodes for name in n.output)}
    return names - {""}


def find_node_names(index: GraphIndex, unit: Unit) -> tuple[str, ...]:
    """Return the names of a unit's nodes; for a node without a name, its first output."""
    return tuple(get_node_name(index.nodes[n]) for n in unit.nodes)


# Classes of tensors that share one scale.
#
# Views and concatenations return the values that they read, so one scale for both is exact; other
# operators have one scale for all their tensors if the target asks for it
# (`quantization.same_scale`). The range of a class is the union of the ranges of its tensors; a
# quantization given by the user takes precedence.

_SYMMETRIC = "int16"
_LEAST_SHARE = 2.0**-24  # of the widest channel: the digits of a float32


def find_scale_classes(index: GraphIndex, units: Sequence[QuantizationCandidate]) -> Mapping[str, str]:
    """Return for each tensor that shares its scale with others if units are quantized their first."""
    groups: list[list[str]] = []
    for unit in units:
        inner = {name for number in unit.unit.nodes for name in index.nodes[number].output}
        for number in unit.unit.nodes:
            groups.append(list(_tensors_of_one_scale(index, index.nodes[number], unit, inner)))
    names = list(dict.fromkeys(name for group in groups for name in group))
    position = {name: i for i, name in enumerate(names)}
    roots = merge_groups(len(names), ([position[name] for name in group] for group in groups))
    return {name: names[root] for name, root in zip(names, roots, strict=True)}


def shares_scale(node: NodeProto, unit: QuantizationCandidate) -> bool:
    """Return whether all tensors of a node share one scale, including constants that it reads."""
    concat = is_onnx(node) and node.op_type == "Concat"
    return concat or unit.requirements.needs_same_scale(node)


def _tensors_of_one_scale(
    index: GraphIndex, node: NodeProto, unit: QuantizationCandidate, inner: set[str]
) -> Iterator[str]:
    floats = [name for name in (*node.input, *node.output) if name and may_be_float(index, name)]
    if shares_scale(node, unit):
        yield from floats
    elif not is_onnx(node):
        return
    elif node.op_type in VIEW_OPERATORS or (node.op_type in CLAMP_OPERATORS and node.input[0] in inner):
        yield node.input[0]
        yield from (name for name in node.output if name in floats)


def combine_requirements(uses: Sequence[TensorRequirement], dtype: str | None) -> ScaleRequirement:
    """Return the requirements for a class: the first use's preferred dtype that suits the most uses.

    Zero points of int16 are 0, as in TensorFlow Lite's 16x8 scheme: what they could gain is one bit.
    """
    first = uses[0].dtypes
    common = [one for one in first if all(one in use.dtypes for use in uses)] or list(first)
    chosen = dtype if dtype is not None else common[0]
    symmetric = chosen == _SYMMETRIC or any(use.symmetric for use in uses)
    return ScaleRequirement(chosen, symmetric, any(use.power_of_two for use in uses))


def compute_class_params(
    entries: Mapping[str, Range | GivenQuantization], form: ScaleRequirement
) -> QuantizationParams | None:
    """Return the quantization of a class from the ranges of its tensors.

    None if there are negative values, and the form has none. Raises InputError if the user gave two of
    its tensors different scales.
    """
    given = {name: entry for name, entry in entries.items() if isinstance(entry, GivenQuantization)}
    if given:
        (first, entry), *others = given.items()
        for name, other in others:
            if other != entry:
                raise InputError(
                    f"calibration: '{first}' and '{name}' must have one scale and zero point, "
                    "and different ones are given"
                )
        return convert_given(entry)
    ranges = [entry for entry in entries.values() if isinstance(entry, Range)]
    low, high = min(r.low for r in ranges), max(r.high for r in ranges)
    return compute_params(low, high, form)


def convert_given(given: GivenQuantization) -> QuantizationParams:
    """Return the quantization that a user gave for a tensor."""
    scale, points = np.asarray(given.scale, np.float32), np.asarray(given.zero_point, np.int64)
    if given.axis is None:
        return QuantizationParams(scale.reshape(()), points.reshape(()), given.dtype)
    return QuantizationParams(scale, points, given.dtype, given.axis)


def compute_channel_params(channels: ChannelRange, form: ScaleRequirement) -> QuantizationParams | None:
    """Return a quantization with a scale for each channel, None as `compute_class_params`.

    A channel that is narrower than `_LEAST_SHARE` of the widest one holds rounding errors alone, and
    gets that range: no multiplier of an accelerator has the ratio of sums to a scale of its own.
    """
    reach = np.maximum(np.abs(channels.low), np.abs(channels.high))
    least = reach.max(initial=0.0) * _LEAST_SHARE
    high = np.where(reach < least, least, channels.high)
    return compute_params(channels.low, high, form, CHANNELS)
