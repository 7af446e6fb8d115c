"""The clean-up of operators in parts: casts and sums that their bodies have for other uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import NodeProto

from byoc.model import GraphIndex, build_node, get_constant_value, get_stated_attributes
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits


@dataclass(frozen=True)
class SimplifyParts(CleanPass):
    """Drop casts that change nothing, make sums of two additions, and do not let variances cancel.

    ONNX's bodies cast to the type that most inputs have, and write a variance as the mean of squares
    less the square of the mean, which loses all digits where the mean is large.
    """

    name: ClassVar[str] = "simplify-parts"
    operators: ClassVar[frozenset[str]] = frozenset({"Cast", "Sum", "Sub"})

    add_sums: bool = True
    """Whether Sum becomes Add, for targets that have no Sum."""

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Edit the nodes, which are of the operators above."""
        edit_of = {"Cast": _drop_cast, "Sum": self._split_sum, "Sub": _center_variance}
        for number in numbers:
            edit_of[edits.index.nodes[number].op_type](edits, number)

    def _split_sum(self, edits: GraphEdits, number: int) -> None:
        node = edits.index.nodes[number]
        if not self.add_sums or len(node.input) < 2 or edits.index.get_opset(node) < _BROADCAST_OPSET:
            return
        nodes, total = [], node.input[0]
        for position, each in enumerate(node.input[1:], 2):
            last = position == len(node.input)
            made = node.output[0] if last else edits.names.new_tensor(f"{node.output[0]}_{position}")
            nodes.append(build_node("Add", [total, each], [made]))
            total = made
        edits.replace(number, *nodes)


_BROADCAST_OPSET = 8  # from which on Sum broadcasts as Add does


def _drop_cast(edits: GraphEdits, number: int) -> None:
    node, index = edits.index.nodes[number], edits.index
    given, made = node.input[0], node.output[0]
    if index.get_dtype(given) is not None and index.get_dtype(given) == index.get_dtype(made):
        edits.bypass(number, given, made)


def _center_variance(edits: GraphEdits, number: int) -> None:
    """Make the mean of squares less the square of the mean the mean of squared deviations."""
    index = edits.index
    of_squares, squared = (_find_maker(index, name) for name in index.nodes[number].input)
    if of_squares is None or squared is None or of_squares.op_type != "ReduceMean":
        return
    mean = _find_maker(index, _find_squared(index, squared))
    values = _find_squared(index, _find_maker(index, of_squares.input[0]))
    if mean is None or not values or mean.op_type != "ReduceMean" or mean.input[0] != values:
        return
    attributes = get_stated_attributes(mean)
    same = attributes == get_stated_attributes(of_squares) and mean.input[1:] == of_squares.input[1:]
    if not same or not attributes.get("keepdims", 1):
        return
    made = index.nodes[number].output[0]
    deviation, square = (edits.names.new_tensor(f"{made}_{what}") for what in ("deviation", "square"))
    edits.types |= dict.fromkeys((deviation, square), index.type_protos[values])
    edits.replace(
        number,
        build_node("Sub", [values, mean.output[0]], [deviation]),
        build_node("Mul", [deviation, deviation], [square]),
        build_node("ReduceMean", [square, *mean.input[1:]], [made], **attributes),
    )
    for other in index.consumers[mean.output[0]]:
        node = index.nodes[other]
        if other > number and node.op_type == "Sub" and [*node.input] == [values, mean.output[0]]:
            edits.bypass(other, deviation, node.output[0])
    edits.drop_unread(index.nodes[number].input)


def _find_maker(index: GraphIndex, name: str) -> NodeProto | None:
    number = index.producers.get(name)
    return None if number is None else index.nodes[number]


def _find_squared(index: GraphIndex, node: NodeProto | None) -> str:
    """Return the tensor that a node squares, empty where it squares none."""
    if node is None:
        return ""
    if node.op_type == "Mul" and node.input[0] == node.input[1]:
        return node.input[0]
    if node.op_type == "Pow":
        power = get_constant_value(index, node.input[1])
        if power is not None and np.all(power == 2):
            return node.input[0]
    return ""
