"""Preparation of a model for quantization: newer versions, and what is affine folded.

Its IR is raised for metadata, its operator set for scales. Scales per channel need operator set 13, 16
bits need 21. The model is converted rather than given onnxruntime's own DequantizeLinear and
QuantizeLinear (domain com.microsoft), which could stand beside any version: ONNX's shape inference, its
reference implementation and the compilers of the regions know only ONNX's operators.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnx import NodeProto

from byoc.errors import InputError
from byoc.model import (
    MIN_IR,
    ConversionError,
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    convert_opset,
    copy_without,
    prepare_model,
    set_ir_version,
)
from byoc.passes import FoldBatchNormalization, FoldScales, clean_model
from byoc.patterns import Match, find_matches, parse_pattern
from byoc.rules import read_library
from byoc.samples import model_samples

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
