"""The sizes of a graph's tensors, with a stand-in for what is not known of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from byoc.model import TensorType, evaluate_dim


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
