"""Preparation of a model for quantization: newer versions, and what is affine folded.

Its IR is raised for metadata, its operator set for scales. Scales per channel need operator set 13, 16
bits need 21. The model is converted rather than given onnxruntime's own DequantizeLinear and
QuantizeLinear (domain com.microsoft), which could stand beside any version: ONNX's shape inference, its
reference implementation and the compilers of the regions know only ONNX's operators.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    MIN_IR,
    VIEW_OPERATORS,
    ConversionError,
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    convert_opset,
    copy_without,
    get_node_name,
    get_stated_attributes,
    is_onnx,
    prepare_model,
    set_ir_version,
)
from byoc.passes import FoldBatchNormalization, FoldScales, clean_model
from byoc.patterns import Match, find_matches, parse_pattern
from byoc.quantization._accuracy_measures import find_logits
from byoc.quantization._calibrators import CHANNELS
from byoc.quantization._channel_classes import AXES_ARE_INPUTS, add_channel_reductions
from byoc.quantization._equalization import has_fixed_range
from byoc.quantization._weights import WEIGHTED, is_depthwise
from byoc.rules import read_library
from byoc.samples import model_samples

# Models extended to output the tensors, or their extremes, that calibration observes.
#
# Tensors inside the bodies of If, Loop and Scan cannot be outputs of a model, and are left out.

FLOATS = ("float32", "float16")
EXTREMES = ("low", "high", "check", "size")
"""What is given out of each tensor in the first pass: `check` is 0 when all is finite, else NaN."""

_OPSET = 17  # of the operators added to a model that uses none of ONNX's own


def find_activations(index: GraphIndex) -> list[str]:
    """Return the tensors of the main graph that can be calibrated: floats that are not constant."""
    names_of = (name for node in index.nodes for name in node.output if name)
    return [name for name in (*index.inputs, *names_of) if not _find_obstacle(index, name)]


def check_tensors(index: GraphIndex, names: Sequence[str]) -> None:
    """Raise InputError for a tensor that cannot be calibrated, with the reason."""
    for name in names:
        objection = _find_obstacle(index, name)
        if objection:
            raise InputError(f"'{name}' cannot be calibrated: {objection}")


def _find_obstacle(index: GraphIndex, name: str) -> str:
    if name not in index.producers and name not in index.inputs and name not in index.initializers:
        inner = (graph for graph in index.walk() if graph is not index)
        if any(name in graph.producers or name in graph.inputs for graph in inner):
            return "it is inside the body of a node"
        return f"the model has no such tensor{suggest_nearest(name, [*index.inputs, *index.producers])}"
    if index.is_constant(name):
        return "it is a constant"
    kind = index.types.get(name)
    if kind is None:
        return "it is not a tensor, or its type is unknown"
    return "" if kind.dtype in FLOATS else f"it is of {kind.dtype}, not of {' or '.join(FLOATS)}"


def find_free_outputs(index: GraphIndex, tensors: Collection[str]) -> list[str]:
    """Return those tensors that are outputs of the model, and whose range no operator fixes."""
    return [
        name
        for name in index.outputs
        if name in tensors and name in index.producers and not has_fixed_range(index, name)
    ]


def count_channels(index: GraphIndex, tensors: Sequence[str]) -> dict[str, int]:
    """Return the number of channels of those tensors that a depthwise convolution reads.

    That is where a scale for each channel helps: no other channel makes up for one that is inexact.
    Channels whose number is not known are left out.
    """
    found = {}
    for name in tensors:
        readers = (index.nodes[number] for number in index.consumers.get(name, ()))
        for channels in (index.get_shape(name) or ())[CHANNELS : CHANNELS + 1]:
            if isinstance(channels, int) and any(is_depthwise(index, node) for node in readers):
                found[name] = channels
    return found


def add_extremes(
    index: GraphIndex,
    tensors: Sequence[str],
    by_channel: Collection[str] = (),
    whole: Sequence[str] = (),
) -> ModelProto:
    """Return a model that outputs the `EXTREMES` of each tensor, tensor after tensor.

    Behind these it outputs the least and the greatest values of the channels, `[C]` each, of the tensors
    `by_channel`, in the order of `tensors`. They are computed inside the model, so that it outputs only
    a few numbers and its memory use stays the same. The `whole` tensors come last, as they are.
    """
    result = _copy_without_outputs(index)
    prefix = _free_prefix(index)
    outputs_of_channels: list[str] = []
    seen_as = _add_clipped_scores(index, result, tensors, prefix)
    for number, tensor in enumerate(tensors):
        name = seen_as.get(tensor, tensor)
        names_of = {what: f"{prefix}{number}.{what}" for what in ("value", "zero", *EXTREMES)}
        # onnxruntime has no reductions of float16.
        cast = build_node("Cast", [name], [names_of["value"]], to=onnx.TensorProto.FLOAT)
        half = index.types[tensor].dtype == "float16"
        result.graph.node.extend([cast] if half else [])
        result.graph.node.extend(_make_reductions(names_of["value"] if half else name, names_of))
        result.graph.output.extend(onnx.ValueInfoProto(name=names_of[what]) for what in EXTREMES)
        if tensor in by_channel:
            value = names_of["value"] if half else name
            steps = [("ReduceMin", value), ("ReduceMax", value)]
            outputs_of_channels += add_channel_reductions(
                result, steps, index.get_rank(tensor) or 0, f"{prefix}{number}.channels"
            )
    last = (*outputs_of_channels, *whole)
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in last)
    return result


# Scores of an attention, which masks make as small as the type allows.
#
# A Softmax makes nothing of a score that lies far below the largest of its row, whether that is a
# mask's -1e9, -3e38 or -inf, or a key that nothing asks for. Measured with them a range would have no
# step left for the others, so they are measured as if they were no smaller than counts. Their mask is
# measured as small as is needed to make any score of the sample so small.

_MASKED = -1000.0  # what is smaller is no score
_COUNTING = 10.0  # below the largest of a row a key counts less than a twenty-thousandth of it
_FLAT_SOFTMAX = 13  # before it, a Softmax is over all axes from its own on


@dataclass(frozen=True)
class _Scores:
    """The scores that a Softmax inside a network reads, its axis, and the mask added to them."""

    name: str
    axis: int
    mask: str = ""
    unmasked: str = ""


def _find_scores(index: GraphIndex) -> Iterator[_Scores]:
    """Yield the float32 tensors that are read by a Softmax alone, which makes no output."""
    at_end = {name for name, _ in find_logits(index).values()}
    for node in index.nodes:
        name = node.input[0] if node.input else ""
        if node.op_type != "Softmax" or not is_onnx(node) or name in at_end or name in index.outputs:
            continue
        rank, readers = index.get_rank(name), index.consumers.get(name, ())
        before = index.opsets.get("", 1) < _FLAT_SOFTMAX
        axis = get_stated_attributes(node).get("axis", 1 if before else -1)
        single = len(readers) == 1 and index.get_dtype(name) == "float32" and rank
        if not single or not rank or (before and axis % rank != rank - 1):
            continue
        made = index.nodes[index.producers[name]] if name in index.producers else None
        found = _Scores(name, axis)
        if made is not None and made.op_type == "Add" and is_onnx(made):
            masks = [each for each in made.input if _is_mask(index, each)]
            if len(masks) == 1:
                (unmasked,) = (each for each in made.input if each != masks[0])
                found = replace(found, mask=masks[0], unmasked=unmasked)
        yield found


def _is_mask(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor may be a mask: no product of what is asked and what is there makes it."""
    seen: set[int] = set()
    waiting = [name]
    while waiting:
        number = index.producers.get(waiting.pop())
        if number is None or number in seen:
            continue
        if index.nodes[number].op_type in WEIGHTED or len(seen) > _MASK_NODES:
            return False
        seen.add(number)
        waiting += index.reads[number]
    return not index.is_constant(name)


_MASK_NODES = 60  # that make a mask, at most


def _add_clipped_scores(
    index: GraphIndex, result: ModelProto, tensors: Sequence[str], prefix: str
) -> dict[str, str]:
    """Add nodes to a model that clip scores and masks among tensors; return their names by tensor."""
    found: dict[str, str] = {}
    for number, scores in enumerate(_find_scores(index)):
        wanted = {scores.name, scores.mask}.intersection(tensors)
        if not wanted:
            continue
        root = f"{prefix}scores{number}."
        for what, value in (("masked", _MASKED), ("counting", _COUNTING), ("zero", 0.0)):
            stored = numpy_helper.from_array(np.asarray(value, np.float32), root + what)
            result.graph.initializer.append(stored)
        nodes = [
            _reduce(result, "ReduceMax", scores.name, f"{root}most", scores.axis),
            build_node("Sub", [f"{root}most", f"{root}counting"], [f"{root}least"]),
            build_node("Max", [scores.name, f"{root}least"], [f"{root}counted"]),
            build_node("Less", [f"{root}most", f"{root}masked"], [f"{root}no_key"]),
            build_node("Where", [f"{root}no_key", f"{root}zero", f"{root}counted"], [f"{root}clipped"]),
        ]
        found[scores.name] = f"{root}clipped"
        if scores.mask in wanted and scores.mask not in found:
            nodes += [
                build_node("ReduceMin", [f"{root}clipped"], [f"{root}low"], keepdims=0),
                build_node("ReduceMax", [scores.unmasked], [f"{root}high"], keepdims=0),
                build_node("Sub", [f"{root}low", f"{root}high"], [f"{root}distance"]),
                build_node("Sub", [f"{root}distance", f"{root}counting"], [f"{root}floor"]),
                build_node("Less", [scores.mask, f"{root}masked"], [f"{root}hidden"]),
                build_node("Where", [f"{root}hidden", f"{root}floor", scores.mask], [f"{root}mask"]),
            ]
            found[scores.mask] = f"{root}mask"
        result.graph.node.extend(nodes)
    return found


def _reduce(result: ModelProto, operator: str, read: str, made: str, axis: int) -> NodeProto:
    """Return a reduction along an axis; where axes are an input, the model gets them as a constant."""
    version = next(each.version for each in result.opset_import if not each.domain)
    if version < AXES_ARE_INPUTS:
        return build_node(operator, [read], [made], axes=[axis], keepdims=1)
    axes = numpy_helper.from_array(np.asarray([axis], np.int64), f"{made}.axes")
    result.graph.initializer.append(axes)
    return build_node(operator, [read, axes.name], [made], keepdims=1)


def _make_reductions(value: str, names_of: dict[str, str]) -> Iterator[NodeProto]:
    yield build_node("ReduceMin", [value], [names_of["low"]], keepdims=0)
    yield build_node("ReduceMax", [value], [names_of["high"]], keepdims=0)
    # Neither of these says that there is a NaN; the difference is zero but for infinities and NaN.
    yield build_node("Sub", [value, value], [names_of["zero"]])
    yield build_node("ReduceSum", [names_of["zero"]], [names_of["check"]], keepdims=0)
    yield build_node("Size", [value], [names_of["size"]])


def add_outputs(index: GraphIndex, tensors: Sequence[str]) -> ModelProto:
    """Return a model that outputs the given tensors in that order, scores of an attention clipped."""
    result = _copy_without_outputs(index)
    prefix = _free_prefix(index)
    seen_as = _add_clipped_scores(index, result, tensors, prefix)
    for number, name in enumerate(tensors):
        output = seen_as.get(name, name)
        if output != name:
            result.graph.output.append(onnx.ValueInfoProto(name=output))
            continue
        if name not in index.producers:  # an input that is also an output is no good everywhere
            output = f"{prefix}{number}"
            result.graph.node.append(build_node("Identity", [name], [output]))
        result.graph.output.append(onnx.ValueInfoProto(name=output))
    return result


def _copy_without_outputs(index: GraphIndex) -> ModelProto:
    result = copy_without(index.proto, "output")
    if "" not in index.opsets:
        result.opset_import.append(helper.make_opsetid("", _OPSET))
    return result


def _free_prefix(index: GraphIndex) -> str:
    """Return a prefix that no name in the main graph begins with."""
    prefix = "byoc.calibrate."
    while any(
        name.startswith(prefix) for name in (*index.inputs, *index.producers, *index.stored_tensors)
    ):
        prefix += "_"
    return prefix


# The ends of a network: units before its first linear operators, behind its last ones, before
# outputs.
#
# Little is computed there, and what is rounded there is never averaged: a Concat of boxes and
# scores has one scale for both, the Sigmoid of a score near zero a step of 1/255, and so has a
# sample before it is normalized.


def find_tail_units(index: GraphIndex, units: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or behind them."""
    linear: set[int] = set()
    for number in reversed(range(len(index.nodes))):
        readers = {user for name in index.nodes[number].output for user in index.consumers.get(name, ())}
        if _is_linear(index, number) or not linear.isdisjoint(readers):
            linear.add(number)
    return _find_units_without(index, units, linear)


def find_tail_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], output: str
) -> tuple[str, ...]:
    """Return the tail of one output: the units of `find_tail_units` that it depends on."""
    seen: set[int] = set()
    waiting = [output]
    while waiting:
        number = index.producers.get(waiting.pop())
        if number is not None and number not in seen:
            seen.add(number)
            waiting += index.reads[number]
    before = {get_node_name(index.nodes[number]) for number in seen}
    return tuple(name for name in find_tail_units(index, units) if not before.isdisjoint(units[name]))


def find_head_units(index: GraphIndex, units: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or before them."""
    linear: set[int] = set()
    for number in range(len(index.nodes)):
        makers = {index.producers[name] for name in index.reads[number] if name in index.producers}
        if _is_linear(index, number) or not linear.isdisjoint(makers):
            linear.add(number)
    return _find_units_without(index, units, linear)


def _find_units_without(
    index: GraphIndex, units: Mapping[str, Sequence[str]], numbers: Collection[int]
) -> tuple[str, ...]:
    names = {get_node_name(index.nodes[number]) for number in numbers}
    return tuple(name for name, nodes in units.items() if names.isdisjoint(nodes))


def find_units_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], tensors: Collection[str]
) -> tuple[str, ...]:
    """Return the units (nodes by name) that make tensors, nearest first.

    Views and nodes in no unit round nothing: the search goes on to what makes their operands.
    """
    owners = {node: name for name, nodes in units.items() for node in nodes}
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting = list(tensors)
    while waiting:
        number = index.producers.get(waiting.pop(0))
        if number is None or number in seen:
            continue
        seen.add(number)
        unit = owners.get(get_node_name(index.nodes[number]))
        if unit is not None:
            found[unit] = None
        if unit is None or _is_view(index, number):
            waiting += index.reads[number]
    return tuple(found)


def list_read_tensors(
    index: GraphIndex, units: Mapping[str, Sequence[str]], names: Collection[str]
) -> tuple[str, ...]:
    """Return the tensors that some of the units read, and none of them makes."""
    nodes = {node for name in names for node in units[name]}
    numbers = [number for number, node in enumerate(index.nodes) if get_node_name(node) in nodes]
    made = {name for number in numbers for name in index.nodes[number].output}
    return tuple(name for number in numbers for name in index.reads[number] if name not in made)


def _is_linear(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and (node.op_type in WEIGHTED or number in index.bodies)


def _is_view(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and node.op_type in VIEW_OPERATORS


PER_CHANNEL = 13
"""From here on QuantizeLinear and DequantizeLinear have an axis."""
SIXTEEN_BITS = 21
"""From here on they take int16 and uint16."""


def upgrade_ir(model: Model) -> Model:
    """Return a model of an IR version whose nodes have metadata; the same model if it already is."""
    if model.structure.ir_version >= MIN_IR:
        return model
    proto = copy_without(model.structure)
    set_ir_version(proto, model.index)
    return replace(model, structure=proto)


def upgrade_opset(model: Model, least: int) -> Model:
    """Return a model of at least a given operator set version; the same model if it already is.

    The weights are not converted. Raises InputError if ONNX's converter fails, or would lose functions.
    """
    version = model.index.opsets.get("", 1)
    if version >= least:
        return model
    why = f"{model.source}: to be quantized it must be of operator set {least} or newer, not {version}"
    proto = copy_without(model.proto)
    try:
        convert_opset(proto, least, model.folder)
    except ConversionError as error:
        raise InputError(f"{why}: {error}") from None
    return replace(
        prepare_model(proto, model.source, model.folder), make_samples=partial(model_samples, model)
    )


def fold_affine_nodes(model: Model, *, through_sums: bool) -> Model:
    """Return a model with BatchNormalization and constant operands folded into linear nodes beside them.

    What can be folded beside one node follows one another, so it takes several rounds. With
    `through_sums` factors go through sums with constants, which makes other tensors, of other ranges. A
    model with nothing to fold is returned as it is.
    """
    passes = (FoldBatchNormalization(), FoldScales(through_sums=through_sums))
    folded = model
    while True:
        before, folded = folded, clean_model(folded, passes).model
        if folded is before:
            break
    if folded is model:
        return model
    return replace(folded, make_samples=partial(model_samples, model))


# Activations that exporters write as several operators, made one that targets take quantized.
#
# Each step between the operators of a decomposed activation would be rounded to integers of its
# own; one operator is a table, which is rounded once. The forms are those of the library of
# composites.


@dataclass(frozen=True)
class _Activation:
    """The operator that a composite of the library is, from an operator set version on."""

    operator: str
    since: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


_ACTIVATIONS = {
    "hard_sigmoid": _Activation("HardSigmoid", 6, {"alpha": 1 / 6, "beta": 0.5}),
    "hard_swish": _Activation("HardSwish", 14),
    "mish": _Activation("Mish", 18),
    "gelu": _Activation("Gelu", 20),
    "gelu_tanh": _Activation("Gelu", 20, {"approximate": "tanh"}),
    "silu": _Activation("Swish", 24),
}


def fuse_activations(model: Model, operators: Collection[str]) -> Model:
    """Return a model in which decomposed activations are single operators, if among `operators`.

    The operator set is raised where that is needed, to 21 at most; where ONNX's converter cannot, the
    model stays as it is. A model with nothing to fuse is returned as it is.
    """
    found = [match for match in _find_activations(model.index, operators) if _is_new(model.index, match)]
    versions = [_ACTIVATIONS[match.pattern.name].since for match in found]
    usable = max(SIXTEEN_BITS, model.index.opsets.get("", 1))
    least = max((version for version in versions if version <= usable), default=0)
    if not least:
        return model
    try:
        raised = upgrade_opset(model, least)
    except InputError:
        return model
    if raised is not model:
        found = _find_activations(raised.index, operators)
    return _replace_matches(raised, [m for m in found if _ACTIVATIONS[m.pattern.name].since <= usable])


def _find_activations(index: GraphIndex, operators: Collection[str]) -> list[Match]:
    """Return the decomposed activations of the main graph, no two of which share a node."""
    library = read_library()
    patterns = []
    for name, activation in _ACTIVATIONS.items():
        if activation.operator in operators and name in library.entries:
            composite = library.get(name)
            where = [(condition.expr, condition.reason) for condition in composite.where]
            patterns.append(parse_pattern(name, composite.pattern, where=where))
    free = frozenset(range(len(index.nodes))) - index.constant_nodes
    chosen: list[Match] = []
    taken: set[int] = set()
    for match in find_matches(index, patterns, free):
        nodes = set(match.nodes.values())
        if taken.isdisjoint(nodes):
            taken |= nodes
            chosen.append(match)
    return chosen


def _is_new(index: GraphIndex, match: Match) -> bool:
    return len(match.nodes) > 1 and index.get_dtype(match.tensors["x"]) == "float32"


def _replace_matches(model: Model, matches: list[Match]) -> Model:
    index = model.index
    matches = [match for match in matches if _is_new(index, match)]
    if not matches:
        return model
    graph = EditableGraph.of_index(index)
    for match in matches:
        graph.remove(*{*match.nodes.values()} - {match.root})
        graph.replace(match.root, _make_node(index, match))
    read = {name for match in matches for n in match.nodes.values() for name in index.reads[n]}
    graph.drop_unread(read, lambda number, nodes: index.node_kinds[number].operator == "Constant")
    proto = copy_without(model.proto)
    graph.write_to(proto.graph)
    return replace(
        prepare_model(proto, model.source, model.folder),
        lost=model.lost,
        make_samples=partial(model_samples, model),
    )


def _make_node(index: GraphIndex, match: Match) -> NodeProto:
    activation, root = _ACTIVATIONS[match.pattern.name], index.nodes[match.root]
    return build_node(
        activation.operator, [match.tensors["x"]], [root.output[0]], root.name, **activation.attributes
    )
