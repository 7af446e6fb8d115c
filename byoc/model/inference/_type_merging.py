"""Types merged from several sources, and the context of inference that all graphs of a model share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from onnx import FunctionProto, ModelProto

from byoc.model._node_kinds import KnownKinds
from byoc.model._tensor_types import Dim, TensorType
from byoc.model.inference._elementwise_shapes import merge_dims
from byoc.model.inference._extents import list_dim_names, parse_dim

_LIMIT = 2**63  # ONNX states extents in 64 bits


class MergedType(NamedTuple):
    """A type merged of what is inferred, was known before, and is stated.

    `corrected` says that what was known before was wrong, `uses_stated` that what is stated added to it.
    """

    kind: TensorType | None
    corrected: bool
    uses_stated: bool


class VisitError(Exception):
    """More visits of nodes than there is time for."""


@dataclass(eq=False)
class InferenceContext:
    """The functions of a model, the names of its open dimensions, and the visits of nodes left.

    `uses_stated` says whether a type is what the file states of a tensor that is no input. `kinds` are
    those of all nodes, `doubtful` the keys of functions whose types ONNX's inference may find otherwise
    than onnxruntime makes them; `attributes`, `inferred` and `merged` keep what was found for a node or
    a tensor, for others that are alike.
    """

    functions: Mapping[tuple[str, str, str], FunctionProto]
    names: frozenset[str]
    ir_version: int
    visits_left: int
    uses_stated: bool = False
    doubtful: frozenset[tuple[str, str, str]] = frozenset()
    kinds: KnownKinds = field(default_factory=dict)
    attributes: dict[object, Mapping[str, Any]] = field(default_factory=dict)
    inferred: dict[object, Sequence[TensorType | None]] = field(default_factory=dict)
    merged: dict[object, "MergedType"] = field(default_factory=dict)

    @classmethod
    def read(cls, model: ModelProto, names: Iterable[str], visits: int) -> "InferenceContext":
        """Return the context of inference in a model."""
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        known = frozenset(name for text in names for name in list_dim_names(parse_dim(text)))
        return cls(functions, known, model.ir_version, visits)

    def count_visit(self) -> None:
        """Count a visit of a node. Raises VisitError when none is left."""
        self.visits_left -= 1
        if self.visits_left < 0:
            raise VisitError

    def merge(
        self, inferred: TensorType | None, before: TensorType | None, stated: TensorType | None
    ) -> MergedType:
        """Merge the types of a tensor; alike ones once."""
        key = inferred, before, stated
        found = self.merged.get(key)
        if found is None:
            found = self.merged[key] = self._merge(*key)
        return found

    def _merge(
        self, inferred: TensorType | None, before: TensorType | None, stated: TensorType | None
    ) -> MergedType:
        made = self.clean_type(inferred)
        found = merge_types(made, before)
        corrected = made is not None and before is not None and contradicts(made, before)
        if found is not None and contradicts(stated, found):
            return MergedType(found, corrected, uses_stated=False)
        completed = complete_type(found, stated)
        return MergedType(completed, corrected, completed != found)

    def clean_type(self, kind: TensorType | None) -> TensorType | None:
        """Return a type with extents in canonical form; a name that is no open dimension is unknown."""
        if kind is None or kind.shape is None or is_fixed(kind):
            return kind
        return TensorType(kind.dtype, tuple(map(self._clean_dim, kind.shape)))

    def _clean_dim(self, dim: Dim) -> Dim:
        if not isinstance(dim, str):
            return None if dim is None or not 0 <= dim < _LIMIT else dim
        found = parse_dim(dim)
        return found if list_dim_names(found) <= self.names else None


@lru_cache(1 << 16)
def is_fixed(kind: TensorType) -> bool:
    """Return whether all extents of a type are numbers."""
    return kind.shape is not None and all(type(dim) is int and 0 <= dim < _LIMIT for dim in kind.shape)


def contradicts(one: TensorType | None, other: TensorType) -> bool:
    """Return whether two types cannot both be right."""
    if one is None or one.shape is None or other.shape is None:
        return one is not None and one.dtype != other.dtype
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return True
    pairs = zip(one.shape, other.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def merge_types(first: TensorType | None, second: TensorType | None) -> TensorType | None:
    """Merge two types, both right; where they contradict each other, the first one wins."""
    return _merge(first, second, merge_dims)


def complete_type(found: TensorType | None, stated: TensorType | None) -> TensorType | None:
    """Complete a type that was found: the stated type fills in the rank and extents that it lacks.

    A stated number does not replace the name that an extent follows from: files whose inputs were opened
    afterwards, to take any batch, still state the batch of 1 that they were exported with.
    """
    return _merge(found, stated, lambda one, other: other if one is None else one)


def _merge(
    first: TensorType | None, second: TensorType | None, merge: Callable[[Dim, Dim], Dim]
) -> TensorType | None:
    if first is None or second is None:
        return second if first is None else first
    if second.shape is None or first.dtype != second.dtype:
        return first
    if first.shape is None:
        return TensorType(first.dtype, second.shape)
    if len(first.shape) != len(second.shape):
        return first
    return TensorType(first.dtype, tuple(map(merge, first.shape, second.shape)))
