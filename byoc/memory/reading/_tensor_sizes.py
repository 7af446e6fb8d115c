"""Sizes of a model's tensors, and the tensors known before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from byoc.errors import InputError
from byoc.model import (
    RANDOM_OPERATORS,
    GraphIndex,
    TensorType,
    is_onnx,
    list_bodies,
    list_dim_names,
    list_open_dims,
)

# Where every extent is known they depend on nothing else.
_OF_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, eq=False)
class TensorSizes:
    """The tensors of a graph; `source` names the model in messages."""

    index: GraphIndex
    source: str

    @property
    def types(self) -> Mapping[str, TensorType]:
        """The known types."""
        return self.index.types

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose outputs are known before the model runs, given all extents."""
        index = self.index
        found, known = set(index.constant_nodes), set[str]()
        for number, node in enumerate(index.nodes):
            if number in found or not is_onnx(node) or node.op_type in RANDOM_OPERATORS:
                continue
            if list_bodies(node):
                continue
            reads = index.reads[number]
            if node.op_type not in _OF_SHAPES and (
                not known.intersection(reads)
                or not all(name in known or index.is_constant(name) for name in reads)
            ):
                continue
            found.add(number)
            known.update(node.output)
        return frozenset(found)

    def is_constant(self, name: str) -> bool:
        """Tell whether a tensor is stored, or computed from stored tensors alone."""
        return self.index.is_constant(name) or self.index.producers.get(name) in self.constant_nodes

    def count_elements(self, name: str) -> int:
        """Return the number of elements. Raises InputError as `count_bytes` does."""
        return self._known_type(name).elements or 0

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a tensor, not rounded.

        Raises InputError for an unknown extent, and for strings, sequences, maps and optionals.
        """
        return self._known_type(name).bytes or 0

    def _known_type(self, name: str) -> TensorType:
        kind = self.types.get(name)
        if kind is None and name in self.index.type_protos:
            value = (self.index.type_protos[name].WhichOneof("value") or "value").removesuffix("_type")
            raise InputError(f"{self.source}: '{name}' is a {value}, whose bytes only a run can tell")
        if kind is not None and kind.dtype == "string":
            raise InputError(f"{self.source}: '{name}' holds strings, whose bytes only a run can tell")
        if kind is None or kind.elements is None:
            said = "of an unknown type" if kind is None else str(kind)
            raise InputError(f"{self.source}: '{name}' is {said}: {self._suggest_dims(kind)}")
        return kind

    def _suggest_dims(self, kind: TensorType | None) -> str:
        shape = (kind.shape or ()) if kind else ()
        dims = [name for dim in shape for name in sorted(list_dim_names(dim))]
        named = list_open_dims(self.index.proto)
        wanted = [dim for dim in dict.fromkeys(dims) if dim in named] or named
        if not wanted:
            return "an extent is not known before the model runs, and no --dim NAME=SIZE settles it"
        asked = " ".join(f"--dim {dim}=SIZE" for dim in wanted)
        return f"an extent is not known, which {asked} may settle"
