"""Known types of a graph's tensors, and values of small constants."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, TypeProto, numpy_helper

from byoc.boundary.border import Border
from byoc.boundary.edit import Editing, Scope
from byoc.graph.attributes import written
from byoc.graph.tensors import stored_bytes
from byoc.graph.types import DTYPES, TensorType, bits, read_type
from byoc.graph.walk import is_onnx

# Constants up to this are transposed at compile time; a larger one would be in the bundle twice.
_SMALL_BYTES = 4 << 20
# Extents that nobody knows: one image at a time, and an image is not small.
_UNKNOWN_BATCH, _UNKNOWN_EXTENT = 1, 64
_ELEMENT_BYTES = 4


class Facts:
    """The types and constants known in a graph, including those of the graphs around it."""

    def __init__(self, edit: Editing, scope: Scope, borders: Sequence[Border]) -> None:
        """Take a graph of a model that is edited."""
        assert isinstance(scope.proto, GraphProto)
        self.edit = edit
        self.graph = scope.proto
        self.outer = Facts(edit, scope.outer, borders) if scope.outer is not None else None
        self._borders = borders
        self._read: dict[str, TensorType | None] = {}
        self._constant_nodes = {
            node.output[0]: node for node in scope.nodes if node.op_type == "Constant" and is_onnx(node)
        }

    @cached_property
    def stored(self) -> Mapping[str, TensorProto]:
        """The initializers that no caller can override."""
        inputs = {value.name for value in self.graph.input}
        return {t.name: t for t in self.graph.initializer if t.name not in inputs}

    @cached_property
    def _own(self) -> Mapping[str, TypeProto]:
        values = (*self.graph.value_info, *self.graph.input, *self.graph.output)
        return {value.name: value.type for value in values if value.HasField("type")}

    def proto(self, name: str) -> TypeProto | None:
        """Return the known type of a tensor, or None."""
        found = self._own.get(name) or self.edit.values.get(name)
        if found is None and self.outer is not None:
            found = self.outer.proto(name)
        if found is None:
            found = next((b.types[name] for b in self._borders if name in b.types), None)
        return found

    def type_of(self, name: str) -> TensorType | None:
        """Return a tensor's type, constants included."""
        if name not in self._read:
            self._read[name] = self._type_of(name)
        return self._read[name]

    def _type_of(self, name: str) -> TensorType | None:
        tensor = self.tensor(name)
        if tensor is not None:
            return TensorType(DTYPES[tensor.data_type], tuple(tensor.dims))
        kind = self.proto(name)
        return read_type(kind) if kind is not None else None

    def rank(self, name: str) -> int | None:
        """Return a tensor's rank, or None if it is not known."""
        kind = self.type_of(name)
        return None if kind is None or kind.shape is None else len(kind.shape)

    def is_single(self, name: str) -> bool:
        """Return whether a tensor has exactly one element and is therefore the same in every layout."""
        kind = self.type_of(name)
        return kind is not None and kind.elements == 1

    def tensor(self, name: str) -> TensorProto | None:
        """Return the stored tensor of an initializer or Constant node by name."""
        found = self.stored.get(name)
        node = self._constant_nodes.get(name)
        if node is not None:
            found = next((a.t for a in node.attribute if a.name == "value"), None)
        if found is None and node is None and self.outer is not None and name not in self._own:
            return self.outer.tensor(name)
        return found

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor can be transposed at compile time: stored, small, whole bytes."""
        tensor = self.tensor(name)
        return (
            tensor is not None
            and tensor.data_location != TensorProto.EXTERNAL
            and tensor.data_type != TensorProto.STRING
            and bits(DTYPES[tensor.data_type]) >= 8
            and stored_bytes(tensor) <= _SMALL_BYTES
        )

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant, or None if it is not constant or not small."""
        node = self._constant_nodes.get(name)
        if node is not None:
            listed = written(node)
            for key in ("value_ints", "value_int"):
                if key in listed:
                    return np.asarray(listed[key], np.int64)
        tensor = self.tensor(name)
        if tensor is None or not self.is_constant(name):
            return None
        value: NDArray[Any] = numpy_helper.to_array(tensor)
        return value

    def bytes(self, name: str) -> int:
        """Return the size of a tensor in bytes, at least 1; unknown extents are guessed."""
        kind = self.type_of(name)
        if kind is None or kind.shape is None:
            return _ELEMENT_BYTES * _UNKNOWN_EXTENT**2
        guesses = [_UNKNOWN_BATCH] + [_UNKNOWN_EXTENT] * len(kind.shape)
        extents = (
            dim if isinstance(dim, int) else guess
            for dim, guess in zip(kind.shape, guesses, strict=False)
        )
        return max(1, prod(extents) * bits(kind.dtype) // 8)


def lasting(scope: Scope) -> dict[str, None]:
    """Return the tensors that must keep their names: a graph's outputs and captures of bodies."""
    assert isinstance(scope.proto, GraphProto)
    names = [value.name for value in scope.proto.output]
    for node in scope.nodes:
        for body in scope.inner.get(id(node), ()):
            names += body.captures()
    return dict.fromkeys(names)
