"""Passes that drop what does nothing: Dropout that does not train, and Identity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from byoc.model import GraphIndex, get_constant_value, get_stated_attributes, rate_knowledge
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits

# Until operator set 6 an attribute says whether Dropout trains, from 12 on an input.
_ATTRIBUTE_OPSET, _INPUT_OPSET = 6, 12
_TRAINING_INPUT = 2


@dataclass(frozen=True)
class DropIdentity(CleanPass):
    """Drop Identity nodes: their readers read what they copy.

    One between an input and an output of a graph stays, and so does one whose output says more of the
    type than its input.
    """

    name: ClassVar[str] = "drop-identity"
    operators: ClassVar[frozenset[str]] = frozenset({"Identity"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the nodes that can be dropped."""
        for number in numbers:
            _drop(edits, number)


@dataclass(frozen=True)
class DropDropout(CleanPass):
    """Drop Dropout nodes that do not train and whose mask is not read."""

    name: ClassVar[str] = "drop-dropout"
    operators: ClassVar[frozenset[str]] = frozenset({"Dropout"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the nodes that can be dropped."""
        index = edits.index
        for number in numbers:
            masks = index.node_outputs[number][1:]
            read = any(map(edits.is_read, filter(None, masks)))
            if read or _may_train(index, number):
                continue
            if _drop(edits, number):
                edits.drop_parameters(index.node_inputs[number][1:])


def _may_train(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    opset = index.get_opset(node)
    if opset <= _ATTRIBUTE_OPSET:
        return not get_stated_attributes(node).get("is_test", 0)
    names = index.node_inputs[number]
    if opset < _INPUT_OPSET or len(names) <= _TRAINING_INPUT or not names[_TRAINING_INPUT]:
        return False
    value = get_constant_value(index, names[_TRAINING_INPUT])
    return value is None or value.dtype != bool or bool(value.any())


def _drop(edits: GraphEdits, number: int) -> bool:
    """Drop a node whose first output is its first input; return whether that was possible."""
    index = edits.index
    given, made = index.node_inputs[number][0], index.node_outputs[number][0]
    if number in index.constant_nodes or not given or not made:
        return False
    types = index.type_protos
    if rate_knowledge(types.get(edits.find_root(given))) < rate_knowledge(types.get(made)):
        return False
    return edits.bypass(number, given, made)
