"""Rows that a TopK or NonMaxSuppression selects and orders, found in a graph.

The outputs of a detector (boxes, labels, scores) have one row for each detection. All depend on the
selection through one tensor of indices into the candidates. This module finds that tensor, the keys by
which the selection orders, and runs the parts of the model between them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from byoc.model import (
    GraphIndex,
    copy_without,
    describe_node,
    get_stated_attributes,
    is_onnx,
    make_unique_name,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._index_choices import IndexChoice, find_choices
from byoc.verification._rounding_noise import expose_tensors
from byoc.verification._unit_noise import is_computed

Array = NDArray[Any]
Values = Mapping[str, Any]

_LEAST_OPSET = 11  # the first with GatherElements


@dataclass(frozen=True)
class RowSelection:
    """A TopK or NonMaxSuppression, or a node with one in a body, and the outputs whose rows it selects.

    `keys` is the tensor by which it orders, the largest first unless `ascending`. `indices` are tensors
    through each of which all outputs depend on the selection, the last one first.
    """

    name: str
    keys: str
    ascending: bool
    indices: tuple[str, ...]
    outputs: tuple[str, ...]


def find_selections(index: GraphIndex) -> Iterator[RowSelection]:
    """Yield the selections of a main graph that alone decide on the rows of some outputs.

    An output behind several selections, none of which depends on the others, belongs to none.
    """
    sorters = {i: found for i in range(len(index.nodes)) if (found := _find_sorter(index, i))}
    outputs: dict[int, list[str]] = {}
    for name in index.outputs:
        last = _find_last(index, name, sorters)
        if len(last) == 1:
            outputs.setdefault(last.pop(), []).append(name)
    for number, names in outputs.items():
        operator, keys, ascending = sorters[number]
        between = _find_dominators(index, number, names)
        node = index.nodes[number]
        name = (
            f"{operator} in {describe_node(node)}" if operator != node.op_type else describe_node(node)
        )
        yield RowSelection(name, keys, ascending, tuple(between), tuple(names))


def _find_sorter(index: GraphIndex, number: int) -> tuple[str, str, bool] | None:
    """Return the operator of a selection, its keys in this graph, and whether the least come first."""
    node = index.nodes[number]
    if is_onnx(node) and node.op_type == "TopK":
        return "TopK", node.input[0], not get_stated_attributes(node).get("largest", 1)
    if is_onnx(node) and node.op_type == "NonMaxSuppression":
        return ("NonMaxSuppression", node.input[1], False) if len(node.input) > 1 else None
    found = [
        (body.index, sorter)
        for body in index.bodies.get(number, ())
        for i in range(len(body.index.nodes))
        if (sorter := _find_sorter(body.index, i))
    ]
    if len(found) != 1:
        return None
    body, (operator, name, ascending) = found[0]
    while name in body.producers:
        maker = body.nodes[body.producers[name]]
        if maker.op_type not in {"Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity"}:
            return None
        name = maker.input[0]
    captured = name not in {value.name for value in body.graph.input}
    return (operator, name, ascending) if captured else None


def _find_last(index: GraphIndex, name: str, sorters: Collection[int]) -> set[int]:
    """Return the selections on which a tensor depends, without those on which another one depends."""
    last: set[int] = set()
    before = set[int]()
    for number in sorted(_find_ancestors(index, [name]), reverse=True):
        if number in sorters and number not in before:
            last.add(number)
            before |= _find_ancestors(index, index.reads[number])
    return last


def _find_ancestors(index: GraphIndex, names: Sequence[str]) -> set[int]:
    """Return the nodes on which some tensors depend."""
    found, pending = set[int](), [*names]
    while pending:
        number = index.producers.get(pending.pop())
        if number is not None and number not in found:
            found.add(number)
            pending.extend(index.reads[number])
    return found


def _find_dominators(index: GraphIndex, number: int, outputs: Sequence[str]) -> list[str]:
    """Return the tensors that lie on every path from a node to some outputs, the last one first."""
    paths: Counter[str] = Counter({name: 1 for name in index.nodes[number].output if name})
    for i in range(number + 1, len(index.nodes)):
        count = sum(paths[name] for name in index.reads[i])
        if count:
            paths.update({name: count for name in index.nodes[i].output if name})
    total = sum(paths[name] for name in outputs)
    onward: Counter[str] = Counter(outputs)
    for i in reversed(range(number + 1, len(index.nodes))):
        count = sum(onward[name] for name in index.nodes[i].output if name)
        if count:
            onward.update(dict.fromkeys(index.reads[i], count))
    makers = index.producers
    found = [name for name in paths if paths[name] and paths[name] * onward[name] == total]
    return sorted(found, key=lambda name: makers[name], reverse=True)


@dataclass(frozen=True, eq=False)
class SelectionRuns:
    """Runs the parts of a model before and behind the indices of its selections, for given inputs.

    What these parts read else is what plain onnxruntime computes without optimizations, and so are
    their results. `folder` holds the external data of the model.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values

    @cached_property
    def index(self) -> GraphIndex:
        """The graph, in which each value of a TopK is gathered by its indices."""
        return GraphIndex(_gather_top_values(self.model), {})

    @cached_property
    def selections(self) -> tuple[RowSelection, ...]:
        """The selections of the graph."""
        return tuple(find_selections(self.index))

    @cached_property
    def choices(self) -> tuple[IndexChoice, ...]:
        """The choices of the graph whose indices are outputs."""
        return tuple(find_choices(self.index))

    def is_computed(self, name: str) -> bool:
        """Return whether a tensor is more than a selection of numbers that the graph is given."""
        return is_computed(self.index, name)

    @cached_property
    def _recorded(self) -> dict[str, Array]:
        return {name: np.asarray(value) for name, value in self.inputs.items()}

    def record(self, names: Collection[str]) -> dict[str, Array]:
        """Return the values of tensors that are not stored. Raises InputError."""
        missing = [name for name in dict.fromkeys(names) if name not in self._recorded]
        if missing:
            with without_optimizations():
                session = open_session(expose_tensors(self.index.proto, missing), self.folder)
            made = run_session(session, self.inputs)
            self._recorded.update((name, np.asarray(made[name])) for name in missing)
        return {name: self._recorded[name] for name in names}

    def list_reads(self, tensor: str, outputs: Collection[str]) -> set[str]:
        """Return the other inputs of the nodes between a tensor and some outputs."""
        nodes = self._find_between(tensor, outputs)
        made = {tensor, *(name for i in nodes for name in self.index.nodes[i].output)}
        return {name for i in nodes for name in self.index.reads[i]} - made - {*self._stored}

    def run(self, tensor: str, value: Array, outputs: Collection[str]) -> dict[str, Array]:
        """Compute outputs of the model for another value of a tensor. Raises InputError."""
        nodes = self._find_between(tensor, outputs)
        reads = {name for i in nodes for name in self.index.reads[i]}
        given = {tensor: value, **self.record(self.list_reads(tensor, outputs))}
        names = [name for name in outputs if name != tensor]
        model = copy_without(
            self.index.proto,
            "node",
            "input",
            "output",
            "initializer",
            "value_info",
            "sparse_initializer",
        )
        model.graph.node.extend(self.index.nodes[i] for i in nodes)
        model.graph.initializer.extend(self._stored[name] for name in reads & self._stored.keys())
        model.graph.input.extend(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
            for name, array in given.items()
            if name in reads
        )
        model.graph.output.extend(ValueInfoProto(name=name) for name in names)
        found = {tensor: value} if tensor in outputs else {}
        if names:
            with without_optimizations():
                session = open_session(model, self.folder)
            made = run_session(session, {name: given[name] for name in given if name in reads})
            found |= {name: np.asarray(made[name]) for name in names}
        return found

    @cached_property
    def _stored(self) -> dict[str, Any]:
        return dict(self.index.initializers)

    def _find_between(self, tensor: str, outputs: Collection[str]) -> list[int]:
        """Return the nodes that depend on a tensor and on which some outputs depend, in order."""
        after, reached = {tensor}, list[int]()
        for i, node in enumerate(self.index.nodes):
            if tensor not in node.output and not after.isdisjoint(self.index.reads[i]):
                reached.append(i)
                after.update(node.output)
        needed, found = {*outputs}, list[int]()
        for i in reversed(reached):
            if not needed.isdisjoint(self.index.nodes[i].output):
                found.append(i)
                needed.update(self.index.reads[i])
        return found[::-1]


def _gather_top_values(model: ModelProto) -> ModelProto:
    """Return a model in which the values of each TopK are gathered from its keys by its indices.

    So that the indices alone say what was selected.
    """
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 1)
    if opset < _LEAST_OPSET:
        return model
    result = copy_without(model, "node")
    names = {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if not is_onnx(node) or node.op_type != "TopK" or not node.output[0]:
            result.graph.node.append(node)
            continue
        result.graph.node.extend(_split_top(node, names))
    return result


def _split_top(node: NodeProto, names: set[str]) -> tuple[NodeProto, NodeProto]:
    """Return a TopK whose values are not used, and the node that gathers them."""
    values = node.output[0]
    indices = (node.output[1] if len(node.output) > 1 else "") or make_unique_name(
        f"{values}_indices", names
    )
    names.add(indices)
    top = NodeProto()
    top.CopyFrom(node)
    del top.output[:]
    top.output.extend([make_unique_name(f"{values}_sorted", names), indices])
    names.update(top.output)
    axis = get_stated_attributes(node).get("axis", -1)
    return top, helper.make_node("GatherElements", [node.input[0], indices], [values], axis=axis)
