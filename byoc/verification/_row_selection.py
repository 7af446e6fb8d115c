"""Selections in a graph: rows that TopK or NonMaxSuppression orders, indices that are outputs.

The outputs of a detector (boxes, labels, scores) have one row for each detection. All depend on the
selection through one tensor of indices into the candidates. This module finds that tensor, the keys by
which the selection orders, and runs the parts of the model between them.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass
from byoc.model import (
    EditableGraph,
    GraphIndex,
    NameAllocator,
    build_node,
    copy_without,
    describe_node,
    get_stated_attributes,
    is_onnx,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._rounding_noise import expose_tensors
from byoc.verification._unit_noise import TieBreak, is_computed

# Choices whose indices are outputs (TopK, ArgMax, ArgMin, MaxPool), checked by the keys they
# choose.
#
# Where the indices of a bundle are there to be read, ties need not be looked for. They are those of
# a right execution if the keys that they choose are the best, in order, within the tolerance of the
# keys.

Array = NDArray[Any]
Values = Mapping[str, Any]

# What leaves the order of the elements, so that indices are read through it.
_RESHAPING = frozenset({"Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Identity"})
# The place of the indices among the outputs of each operator.
_PLACES = {"TopK": 1, "ArgMax": 0, "ArgMin": 0, "MaxPool": 1}
_MAX_LISTS = 1 << 12  # beyond, rows that are elsewhere are not told from replaced ones


@dataclass(frozen=True, eq=False)
class IndexChoice:
    """A node that chooses among its keys, and the output by which its indices are read.

    `outputs` are all that depend on the indices.
    """

    node: NodeProto
    read_from: str
    outputs: tuple[str, ...]

    @property
    def keys(self) -> str:
        """The tensor whose elements are chosen."""
        return self.node.input[0]

    @property
    def indices(self) -> str:
        """The tensor of the indices."""
        return self.node.output[_PLACES[self.node.op_type]]

    @property
    def is_ordered(self) -> bool:
        """Whether ONNX says in which order chosen keys stand."""
        return self.node.op_type != "TopK" or bool(get_stated_attributes(self.node).get("sorted", 1))

    def read_indices(self, values: Values, like: Array) -> Array | None:
        """Return the indices that outputs have, in the form of `like`; None if they are no such."""
        found = np.asarray(values.get(self.read_from))
        if found.size != like.size or found.dtype.kind not in "iuf":
            return None
        whole = found.astype(like.dtype)
        return whole.reshape(like.shape) if np.array_equal(whole, found) else None

    def measure_gap(self, keys: Array, wanted: Array, given: Array) -> float | None:
        """Return the distance of keys that have to change places for the `given` indices to be right.

        It is 0 where only equal ones do. None where the indices cannot be right: one is out of range,
        there twice, or of another window than the `wanted` one.
        """
        if self.node.op_type == "MaxPool":
            return _measure_windows(keys, wanted, given)
        rows, _, chosen = self._arrange(keys, wanted, given)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= rows.shape[1]):
            return None
        ordered = np.sort(chosen, axis=1)
        if np.any(ordered[:, 1:] == ordered[:, :-1]):
            return None
        attributes = get_stated_attributes(self.node)
        is_least = self.node.op_type == "ArgMin" or not attributes.get("largest", 1)
        ranked = -rows if is_least else rows
        taken = np.take_along_axis(ranked, chosen, axis=1)
        rest = ranked.copy()
        np.put_along_axis(rest, chosen, -np.inf, axis=1)
        best_left = rest.max(axis=1, initial=-np.inf, keepdims=True)
        later = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1] if self.is_ordered else taken
        better = np.maximum(later, best_left)
        with np.errstate(invalid="ignore"):  # infinities are equal
            gap = float(np.max(np.where(better == taken, 0.0, better - taken), initial=0.0))
        return gap if np.isfinite(gap) else None

    def describe(self, wanted: Array, given: Array, gap: float) -> TieBreak:
        """Return the number of rows that moved, and of those that were replaced."""
        name, differing = describe_node(self.node), int(np.sum(wanted != given))
        replaced = differing
        if self.node.op_type == "TopK":
            _, before, after = self._arrange(wanted, wanted, given)
            if len(before) <= _MAX_LISTS:
                pairs = zip(after, before, strict=True)
                replaced = sum(int(np.sum(~np.isin(*pair))) for pair in pairs)
        return TieBreak(name, self.outputs, wanted.size, max(differing - replaced, 0), replaced, gap)

    def _arrange(self, keys: Array, wanted: Array, given: Array) -> tuple[Array, Array, Array]:
        """Return keys [lists, candidates] as float64, integers by rank, and indices [lists, rows]."""
        attributes = get_stated_attributes(self.node)
        is_list = self.node.op_type == "TopK"
        axis = int(attributes.get("axis", -1 if is_list else 0)) % max(keys.ndim, 1)
        if not is_list and not attributes.get("keepdims", 1):
            wanted, given = (np.expand_dims(each, axis) for each in (wanted, given))
        if keys.dtype.kind in "iu":
            keys = np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
        last = [np.moveaxis(each, axis, -1) for each in (keys, wanted, given)]
        rows, before, after = (each.reshape(-1, each.shape[-1]) for each in last)
        return rows.astype(np.float64), before.astype(np.int64), after.astype(np.int64)


def find_choices(index: GraphIndex) -> Iterator[IndexChoice]:
    """Yield the choices of a main graph whose indices an output holds."""
    for node in index.nodes:
        place = _PLACES.get(node.op_type)
        if place is None or not is_onnx(node) or len(node.output) <= place or not node.output[place]:
            continue
        if node.op_type == "MaxPool" and get_stated_attributes(node).get("storage_order"):
            continue
        outputs = _list_dependent(index, node.output[place])
        read_from = next(
            (name for name in outputs if _find_origin(index, name) == node.output[place]), None
        )
        if read_from is not None:
            yield IndexChoice(node, read_from, outputs)


def _list_dependent(index: GraphIndex, tensor: str) -> tuple[str, ...]:
    """Return the outputs that depend on a tensor."""
    found, pending = {tensor}, deque([tensor])
    while pending:
        for number in index.consumers.get(pending.popleft(), ()):
            new = [name for name in index.nodes[number].output if name and name not in found]
            found.update(new)
            pending.extend(new)
    return tuple(name for name in index.outputs if name in found)


def _find_origin(index: GraphIndex, name: str) -> str:
    """Return the tensor whose elements another one has, in their order."""
    while (number := index.producers.get(name)) is not None:
        node = index.nodes[number]
        if not is_onnx(node) or node.op_type not in _RESHAPING:
            break
        name = node.input[0]
    return name


def _measure_windows(keys: Array, wanted: Array, given: Array) -> float | None:
    """Return the largest distance of the keys that two indices of MaxPool choose in one plane."""
    plane = max(prod(keys.shape[2:]), 1)
    if np.any(given < 0) or np.any(given >= keys.size) or np.any(wanted // plane != given // plane):
        return None
    flat = keys.reshape(-1)
    one, other = flat[wanted].astype(np.float64), flat[given].astype(np.float64)
    gap = float(np.max(np.where(one == other, 0.0, np.abs(one - other)), initial=0.0))
    return gap if np.isfinite(gap) else None


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
    result = copy_without(model)
    graph = EditableGraph(result.graph)
    for node in graph.nodes:
        if is_onnx(node) and node.op_type == "TopK" and node.output[0]:
            graph.replace(node, *_split_top(node, graph.names))
    graph.write_to(result.graph)
    return result


def _split_top(node: NodeProto, names: NameAllocator) -> tuple[NodeProto, NodeProto]:
    """Return a TopK whose values are not used, and the node that gathers them."""
    values = node.output[0]
    indices = (*node.output, "")[1] or names.new_tensor(f"{values}_indices")
    top = deepcopy(node)
    top.output[:] = [names.new_tensor(f"{values}_sorted"), indices]
    axis = get_stated_attributes(node).get("axis", -1)
    return top, build_node("GatherElements", [node.input[0], indices], [values], axis=axis)
