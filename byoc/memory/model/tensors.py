"""What a model's tensors take, and which of them are known before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from byoc.errors import InputError
from byoc.graph.dims import symbols
from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.walk import bodies, is_onnx
from byoc.memory.model.shapes import RANDOM, settled_types

# Where every extent is known they depend on nothing else.
_OF_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, eq=False)
class Tensors:
    """The tensors of a graph; `source` is what messages call the model."""

    index: GraphIndex
    source: str

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The types that are known, extents that follow from others included."""
        return settled_types(self.index)

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose outputs are known before the model runs, given that every extent is."""
        index = self.index
        found, known = set(index.constant_nodes), set[str]()
        for number, node in enumerate(index.nodes):
            if number in found or not is_onnx(node) or node.op_type in RANDOM:
                continue
            if any(True for _ in bodies(node)):
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
        """Return whether a tensor is stored, or computed of what is stored alone."""
        return self.index.is_constant(name) or self.index.producer.get(name) in self.constant_nodes

    def elements(self, name: str) -> int:
        """Return the number of elements. Raises InputError as `bytes` does."""
        return self._known(name).elements or 0

    def bytes(self, name: str) -> int:
        """Return the bytes of a tensor, not rounded.

        Raises InputError when an extent is not known, and for what has no bytes of its own: strings,
        sequences, maps and optionals.
        """
        return self._known(name).bytes or 0

    def _known(self, name: str) -> TensorType:
        kind = self.types.get(name)
        if kind is None and name in self.index.values:
            value = (self.index.values[name].WhichOneof("value") or "value").removesuffix("_type")
            raise InputError(f"{self.source}: '{name}' is a {value}, whose bytes only a run can tell")
        if kind is not None and kind.dtype == "string":
            raise InputError(f"{self.source}: '{name}' holds strings, whose bytes only a run can tell")
        if kind is None or kind.elements is None:
            said = "of an unknown type" if kind is None else str(kind)
            raise InputError(f"{self.source}: '{name}' is {said}: {self._remedy(kind)}")
        return kind

    def _remedy(self, kind: TensorType | None) -> str:
        dims = [dim for dim in (kind.shape or ()) if isinstance(dim, str)] if kind else []
        named = symbols(self.index.proto)
        wanted = [dim for dim in dict.fromkeys(dims) if dim in named] or named
        if not wanted:
            return "an extent is not known before the model runs, and no --dim NAME=SIZE settles it"
        asked = " ".join(f"--dim {dim}=SIZE" for dim in wanted)
        return f"an extent is not known, which {asked} may settle"
