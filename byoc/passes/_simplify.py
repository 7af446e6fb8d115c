"""The pass `simplify`: constants and shapes folded, equal nodes merged, by onnxslim."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from byoc.errors import MissingRuntimeError
from byoc.model import RANDOM_OPERATORS, is_onnx, walk_nodes
from byoc.support import Bytes

_HINT = "pass simplify needs onnxslim: pip install 'onnx-byoc[simplify]'"
# Fusions move floating-point results. What onnxslim 0.1.98 takes for dead nodes are none in the zoo's
# ddddocr_crnn, whose output has another shape then; and such nodes are few (9 of 1,753 in ssdlite320).
_SKIPPED = ("graph_fusion", "dead_node_elimination")
# Initializers need not be inputs from this version on.
_FREE_INITIALIZERS_IR = 4
_KNOWN_DOMAINS = ("ai.onnx.ml", "com.microsoft")
_HIDDEN_DOMAIN = "byoc_driver.hidden"
_TRAINING_INPUT = 2  # position of Dropout's `training_mode`
# What onnxslim 0.1.98 fails to fold: it takes every constant for an array.
_MAKERS_OF_LISTS = ("SequenceConstruct", "SequenceEmpty", "SequenceMap", "SplitToSequence", "Optional")


@dataclass(frozen=True)
class Simplify:
    """Fold constants and shapes, and merge nodes that compute the same, by onnxslim.

    No operators are fused, so floating-point results stay as they are, and so do the names of the nodes
    and tensors that are left.
    """

    scope: ClassVar[str] = "model"

    largest: Bytes = field(
        default=1 << 20, metadata={"help": "The size of the largest constant that is made."}
    )

    def run(self, model: ModelProto) -> ModelProto:
        """Return the simplified model. Raises MissingRuntimeError without onnxslim."""
        try:
            import onnxslim  # noqa: PLC0415 - it is optional
        except ImportError:
            raise MissingRuntimeError(_HINT) from None
        given = ModelProto()
        given.CopyFrom(model)
        hidden, functions = _hide_nodes(given)
        made = onnxslim.slim(
            given, skip_optimizations=list(_SKIPPED), size_threshold=max(self.largest, 1)
        )
        _show_hidden(made, hidden)
        made.functions.extend(functions)
        return _restore(model, made)


def _hide_nodes(model: ModelProto) -> tuple[dict[str, tuple[str, str]], list[FunctionProto]]:
    """Give nodes that onnxslim is not to look into operators of their own.

    These are random ones, and operators of vendors, of which nothing is known: onnxslim folds the
    former and merges equal nodes of both. It fails at sequences that are constant, and at functions
    beside or with bodies, where it looks for inner functions without end. Returns the domain and
    operator of each by the new name, and the functions that only such nodes call, which it is not given.
    """
    functions = {(each.domain, each.name): each for each in model.functions}
    has_bodies = any(map(_holds_bodies, model.graph.node))
    unsafe = set(functions) if has_bodies else set()

    def is_hidden(node: NodeProto) -> bool:
        if is_onnx(node):
            trains = node.op_type != "Dropout" or len(node.input) > _TRAINING_INPUT
            return (node.op_type in RANDOM_OPERATORS and trains) or node.op_type in _MAKERS_OF_LISTS
        kind = node.domain, node.op_type
        return kind in unsafe or (kind not in functions and node.domain not in _KNOWN_DOMAINS)

    while found := {
        kind
        for kind, each in functions.items()
        if kind not in unsafe
        and any(is_hidden(node) or _holds_bodies(node) for node in walk_nodes(each.node))
    }:
        unsafe |= found
    hidden: dict[str, tuple[str, str]] = {}
    for node in walk_nodes(model.graph.node):
        if is_hidden(node):
            name = f"{node.op_type}_{len(hidden)}"
            hidden[name] = node.domain, node.op_type
            node.domain, node.op_type = _HIDDEN_DOMAIN, name
    if hidden:
        model.opset_import.add(domain=_HIDDEN_DOMAIN, version=1)
    every = [*model.functions]
    aside = [each for each in every if (each.domain, each.name) in unsafe]
    del model.functions[:]
    model.functions.extend(each for each in every if each not in aside)
    return hidden, aside


def _holds_bodies(node: NodeProto) -> bool:
    return any(each.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for each in node.attribute)


def _show_hidden(model: ModelProto, hidden: Mapping[str, tuple[str, str]]) -> None:
    """Give hidden nodes back their domains and operators."""
    for node in walk_nodes(model.graph.node):
        if node.domain == _HIDDEN_DOMAIN:
            node.domain, node.op_type = hidden[node.op_type]
    imports = [each for each in model.opset_import if each.domain != _HIDDEN_DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _restore(before: ModelProto, after: ModelProto) -> ModelProto:
    """Restore what onnxslim drops: stated types, metadata of the model and of nodes, doc strings."""
    stored = {tensor.name for tensor in before.graph.initializer}
    del after.graph.input[:], after.graph.output[:]
    after.graph.input.extend(value for value in before.graph.input if value.name not in stored)
    after.graph.output.extend(before.graph.output)
    after.graph.name, after.graph.doc_string = before.graph.name, before.graph.doc_string
    after.ir_version = max(before.ir_version, _FREE_INITIALIZERS_IR)
    del after.metadata_props[:]
    after.metadata_props.extend(before.metadata_props)
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(after, name, getattr(before, name))
    nodes = {_identify(node): node for node in before.graph.node}
    for node in after.graph.node:
        own = nodes.get(_identify(node))
        if own is not None:
            del node.metadata_props[:]
            node.metadata_props.extend(own.metadata_props)
            node.doc_string = own.doc_string
    return after


def _identify(node: NodeProto) -> tuple[str, str]:
    """Return the key of a node: its operator, and its name or first output."""
    return node.op_type, node.name or next(iter(node.output), "")
