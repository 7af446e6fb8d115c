"""A node as the counting of work sees it: its attributes, and the sizes of its tensors, known or not."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.model import GraphIndex, TensorType, evaluate_dim, get_constant_value

# The sizes of a graph's tensors, with a stand-in for what is not known of them.


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a tensor type as far as it is known (see `Sizes`); `number` identifies the type."""

    known: bool
    shape: tuple[int, ...]
    bytes: int
    number: int


class _LazySizes(dict[str, Size]):
    """Sizes by name, each computed at its first use."""

    def __init__(self, compute: Callable[[str], Size]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, name: str) -> Size:
        found = self[name] = self._compute(name)
        return found


@dataclass(frozen=True, eq=False)
class Sizes:
    """The size of every tensor, with a stand-in for unknown sizes.

    An open dimension counts at its planned size, and as known. An unknown extent counts as 1, a tensor
    of unknown rank as `fallback` bytes. Models have few distinct types, so each is computed once.
    """

    types: Mapping[str, TensorType]
    planned: Mapping[str, int] = field(default_factory=dict)
    fallback: int = 4096
    _seen: dict[Any, Size] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, Size]:
        """The size of any tensor by name."""
        return _LazySizes(self._find)

    def _find(self, name: str) -> Size:
        kind = self.types.get(name)
        key = (kind.dtype, kind.shape) if kind is not None else None
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._compute(kind)
        return found

    def _compute(self, kind: TensorType | None) -> Size:
        if kind is None or kind.shape is None:
            return Size(False, (), self.fallback, len(self._seen))
        found = [evaluate_dim(dim, self.planned) for dim in kind.shape]
        shape = tuple(1 if dim is None or dim < 0 else dim for dim in found)
        size = TensorType(kind.dtype, shape).bytes or 0
        return Size(None not in found, shape, size, len(self._seen))

    def is_known(self, name: str) -> bool:
        """Return whether every dimension of a tensor is known."""
        return self.by_name[name].known

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape with 1 for unknown dimensions; empty for an unknown rank."""
        return self.by_name[name].shape

    def get_bytes(self, name: str) -> int:
        """Return a tensor's bytes, or the stand-in."""
        return self.by_name[name].bytes


_MAX_NUMBER = 2**62


@dataclass(frozen=True, eq=False)
class CountedNode:
    """A node whose work is counted.

    Inputs and outputs are numbered from 0. Unknown extents count as `Sizes` says. Nobody has checked
    nodes of operators of onnxruntime before, so an attribute of a wrong type counts as its default, and
    an extent that a shape of a wrong rank lacks as 1.
    """

    index: GraphIndex
    proto: NodeProto
    sizes: Sizes

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes in effect."""
        return self.index.get_attributes(self.proto)

    @property
    def opset(self) -> int:
        """The version of the operator set of the node."""
        return self.index.get_opset(self.proto)

    def has_input(self, number: int) -> bool:
        """Return whether an input is given."""
        return number < len(self.proto.input) and bool(self.proto.input[number])

    def has_output(self, number: int) -> bool:
        """Return whether an output is made and used."""
        outputs = self.proto.output
        return number < len(outputs) and bool(outputs[number]) and self.index.is_used(outputs[number])

    def get_shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of an input, empty for one that is left out or of unknown rank."""
        return self.sizes.get_shape(self.proto.input[number]) if self.has_input(number) else ()

    def get_output_shape(self, number: int = 0) -> tuple[int, ...]:
        """Return the shape of an output, empty for one that is left out or of unknown rank."""
        outputs = self.proto.output
        return self.sizes.get_shape(outputs[number]) if number < len(outputs) and outputs[number] else ()

    def get_extent(self, number: int, axis: int, default: int = 1) -> int:
        """Return an extent of an input, `default` where it has no such axis."""
        return get_axis(self.get_shape(number), axis, default)

    def count_input(self, number: int = 0) -> int:
        """Return the elements of an input, 0 if it is left out."""
        return prod(self.get_shape(number)) if self.has_input(number) else 0

    def count_output(self, number: int = 0) -> int:
        """Return the elements of an output, 0 if the node has no such output."""
        return prod(self.get_output_shape(number)) if number < len(self.proto.output) else 0

    def get_number(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) and abs(value) < _MAX_NUMBER else default

    def get_float(self, name: str, default: float) -> float:
        """Return a float attribute."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def get_text(self, name: str, default: str) -> str:
        """Return a text attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def get_numbers(self, name: str) -> Sequence[int]:
        """Return an attribute that is a list of integers, empty if it is not stated."""
        value = self.attributes.get(name, ())
        fine = isinstance(value, list) and all(isinstance(item, int) for item in value)
        return value if fine else ()

    def count_attribute(self, *names: str) -> int:
        """Return the number of elements of the first of some list or tensor attributes that is given."""
        for name in names:
            value = self.attributes.get(name)
            if isinstance(value, list):
                return len(value)
            if value is not None and hasattr(value, "dims"):
                return prod(value.dims)
        return 0

    def get_value(self, number: int) -> int | None:
        """Return the value of a constant input of one integer, None if it is not known.

        The operators whose work depends on such inputs are listed in `VALUE_INPUTS`.
        """
        if not self.has_input(number):
            return None
        value = get_constant_value(self.index, self.proto.input[number])
        if value is None or value.size != 1 or not np.issubdtype(value.dtype, np.integer):
            return None
        return int(value.reshape(()))


VALUE_INPUTS: dict[str, tuple[int, ...]] = {
    "DFT": (1, 2),
    "NonMaxSuppression": (2,),
    "STFT": (1, 3),
    "com.microsoft.GroupQueryAttention": (6,),
    "com.microsoft.SparseAttention": (7,),
}
"""The operators whose work depends on the values of inputs, and the numbers of these inputs."""


def get_axis(shape: Sequence[int], axis: int, default: int = 1) -> int:
    """Return the extent of an axis, `default` where a shape has none."""
    return shape[axis] if -len(shape) <= axis < len(shape) else default
