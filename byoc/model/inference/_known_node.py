"""A node with the types and values that are known before the model runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model._tensor_types import Dim, TensorType


@dataclass(frozen=True, eq=False)
class KnownNode:
    """A node with the types and values of its inputs, as far as they are known.

    `attributes` are those in effect: stated ones and the defaults of the schema. `types` and `values`
    have an entry for each name in `proto.input`, None where it is left out or not known. Integer values
    may be arrays of objects whose elements are extents: a number, an expression, or None.
    """

    proto: NodeProto
    opset: int
    attributes: Mapping[str, Any]
    types: tuple[TensorType | None, ...]
    values: tuple[NDArray[Any] | None, ...]

    def has_input(self, position: int) -> bool:
        """Return whether an input is there, not left out."""
        return position < len(self.proto.input) and bool(self.proto.input[position])

    def get_type(self, position: int) -> TensorType | None:
        """Return the type of an input, None if it is not known or left out."""
        return self.types[position] if position < len(self.types) else None

    def get_shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of an input, None if its rank is not known."""
        kind = self.get_type(position)
        return kind.shape if kind else None

    def get_dtype(self, position: int) -> str | None:
        """Return the dtype of an input, None if it is not known."""
        kind = self.get_type(position)
        return kind.dtype if kind else None

    def get_value(self, position: int) -> NDArray[Any] | None:
        """Return the value of an input, None if it is not known; elements may be symbolic."""
        return self.values[position] if position < len(self.values) else None


Rule = Callable[[KnownNode], Sequence[TensorType | None]]
"""Types the outputs of a node: an entry for each, None where nothing is known."""
