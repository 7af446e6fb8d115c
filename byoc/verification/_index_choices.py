"""Choices whose indices are outputs (TopK, ArgMax, ArgMin, MaxPool), checked by the keys they choose.

Where the indices of a bundle are there to be read, ties need not be looked for. They are those of a
right execution if the keys that they choose are the best, in order, within the tolerance of the keys.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import GraphIndex, describe_node, get_stated_attributes, is_onnx
from byoc.verification._output_error import TieBreak

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
