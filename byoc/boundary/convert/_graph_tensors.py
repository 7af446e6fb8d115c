"""The known types of a graph's tensors, the values of small constants, and orders of axes.

Orders are as in ONNX's Transpose: axis `i` of the output is axis `order[i]` of the input.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, numpy_helper

from byoc.boundary.convert._model_editor import ModelEditor
from byoc.boundary.convert._tensor_transfers import RegionBoundary, TransposeShares
from byoc.model import (
    DTYPES,
    EditableGraph,
    TensorType,
    count_bits,
    count_bytes,
    get_stated_attributes,
    is_onnx,
    read_type,
)

AxisOrder = tuple[int, ...]
PortShares = dict[str, float]
T = TypeVar("T")


def identity_order(rank: int) -> AxisOrder:
    """Return the order that changes nothing."""
    return tuple(range(rank))


def invert_order(order: AxisOrder) -> AxisOrder:
    """Return the order that reverts another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def compose_orders(first: AxisOrder, second: AxisOrder) -> AxisOrder:
    """Return the order that is equivalent to two orders in succession."""
    return tuple(first[axis] for axis in second)


def permute(order: AxisOrder, items: Sequence[T]) -> list[T]:
    """Return items given per axis (extents, pads) in the axis order of a transposed tensor."""
    return [items[axis] for axis in order]


def permute_axis(order: AxisOrder, axis: int) -> int:
    """Return the position of an axis, which may count from the end, in a transposed tensor."""
    return order.index(axis % len(order))


def transpose_type(kind: TypeProto | None, order: AxisOrder) -> TypeProto | None:
    """Return the type of a transposed tensor, or None if the rank is not known."""
    if kind is None or len(kind.tensor_type.shape.dim) != len(order):
        return None
    result = deepcopy(kind)
    for i, axis in enumerate(order):
        result.tensor_type.shape.dim[i].CopyFrom(kind.tensor_type.shape.dim[axis])
    return result


def read_order(node: NodeProto, rank: int | None) -> AxisOrder | None:
    """Return the axis order of a Transpose, or None for another node or an unknown rank."""
    if node.op_type != "Transpose" or not is_onnx(node):
        return None
    perm = get_stated_attributes(node).get("perm")
    if perm is not None:
        return tuple(perm)
    return tuple(reversed(range(rank))) if rank is not None else None


# Constants up to this are transposed at compile time; a larger one would be in the bundle twice.
MAX_CONSTANT_BYTES = 4 << 20
# Extents that nobody knows: one image at a time, and an image is not small.
_UNKNOWN_BATCH, _UNKNOWN_EXTENT = 1, 64
_ELEMENT_BYTES = 4


class GraphTensors:
    """A graph that is edited, with the known types and constants, those around the graph included."""

    def __init__(
        self, edit: ModelEditor, scope: EditableGraph, borders: Sequence[RegionBoundary]
    ) -> None:
        """Take a graph of a model that is edited."""
        self.edit = edit
        self.scope = scope
        self.graph = scope.graph
        self.outer = GraphTensors(edit, scope.outer, borders) if scope.outer is not None else None
        self._borders = borders
        self._read: dict[str, TensorType | None] = {}

    @cached_property
    def _constant_nodes(self) -> Mapping[str, NodeProto]:
        nodes = self.scope.nodes
        return {n.output[0]: n for n in nodes if n.op_type == "Constant" and is_onnx(n)}

    @cached_property
    def stored(self) -> Mapping[str, TensorProto]:
        """The initializers that no caller can override."""
        inputs = {value.name for value in self.graph.input}
        return {t.name: t for t in self.graph.initializer if t.name not in inputs}

    def find_port_shares(self, node: NodeProto, order: AxisOrder) -> tuple[PortShares, PortShares]:
        """Return the inputs and outputs of a call that its region may transpose, none for other nodes.

        Each has, by the name of a tensor in the layout of axis `order`, the price of its Transpose in
        the region as a share of that on the host.
        """
        call = self.edit.calls.get(node.op_type)
        border = self._border_of.get(node.op_type)
        if call is None or border is None or call.node is not node:
            return {}, {}
        layout = border.format.activations
        if layout is None or layout.blocks or order != layout.axis_order:
            return {}, {}
        sides: tuple[PortShares, PortShares] = {}, {}
        for side, names in zip(sides, (node.input, node.output), strict=True):
            for name in names:
                # A tensor of the user's that happens to be in the layout has no origin.
                shares = border.shares.get(self.edit.origins.get(name, ""), TransposeShares())
                share = shares.entering if side is sides[0] else shares.leaving
                if share is not None:
                    side[name] = share
        return sides

    @cached_property
    def _border_of(self) -> Mapping[str, RegionBoundary]:
        return {border.region: border for border in self._borders if border.shares}

    @cached_property
    def _own(self) -> Mapping[str, TypeProto]:
        values = (*self.graph.value_info, *self.graph.input, *self.graph.output)
        return {value.name: value.type for value in values if value.HasField("type")}

    def find_type_proto(self, name: str) -> TypeProto | None:
        """Return the known type of a tensor, or None."""
        found = self._own.get(name) or self.edit.types.get(name)
        if found is None and self.outer is not None:
            found = self.outer.find_type_proto(name)
        if found is None:
            found = next((b.types[name] for b in self._borders if name in b.types), None)
        return found

    def find_type(self, name: str) -> TensorType | None:
        """Return a tensor's type, constants included."""
        if name not in self._read:
            tensor, kind = self.find_tensor(name), self.find_type_proto(name)
            if tensor is not None:
                self._read[name] = TensorType(DTYPES[tensor.data_type], tuple(tensor.dims))
            else:
                self._read[name] = read_type(kind) if kind is not None else None
        return self._read[name]

    def find_rank(self, name: str) -> int | None:
        """Return a tensor's rank, or None if it is not known."""
        kind = self.find_type(name)
        return None if kind is None or kind.shape is None else len(kind.shape)

    def is_single(self, name: str) -> bool:
        """Return whether a tensor has exactly one element and is therefore the same in every layout."""
        kind = self.find_type(name)
        return kind is not None and kind.elements == 1

    def find_tensor(self, name: str) -> TensorProto | None:
        """Return the stored tensor of an initializer or Constant node by name."""
        found = self.stored.get(name)
        node = self._constant_nodes.get(name)
        if node is not None:
            found = next((a.t for a in node.attribute if a.name == "value"), None)
        if found is None and node is None and self.outer is not None and name not in self._own:
            return self.outer.find_tensor(name)
        return found

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor can be transposed at compile time: stored, small, whole bytes."""
        tensor = self.find_tensor(name)
        return (
            tensor is not None
            and tensor.data_location != TensorProto.EXTERNAL
            and tensor.data_type != TensorProto.STRING
            and count_bits(DTYPES[tensor.data_type]) >= 8
            and count_bytes(tensor) <= MAX_CONSTANT_BYTES
        )

    def find_value(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant, or None if it is not constant or not small."""
        node = self._constant_nodes.get(name)
        if node is not None:
            listed = get_stated_attributes(node)
            for key in ("value_ints", "value_int"):
                if key in listed:
                    return np.asarray(listed[key], np.int64)
        tensor = self.find_tensor(name)
        if tensor is None or not self.is_constant(name):
            return None
        value: NDArray[Any] = numpy_helper.to_array(tensor)
        return value

    def estimate_bytes(self, name: str) -> int:
        """Return the size of a tensor in bytes, at least 1; unknown extents are guessed."""
        kind = self.find_type(name)
        if kind is None or kind.shape is None:
            return _ELEMENT_BYTES * _UNKNOWN_EXTENT**2
        guesses = [_UNKNOWN_BATCH] + [_UNKNOWN_EXTENT] * len(kind.shape)
        extents = (
            dim if isinstance(dim, int) else guess
            for dim, guess in zip(kind.shape, guesses, strict=False)
        )
        return max(1, prod(extents) * count_bits(kind.dtype) // 8)
