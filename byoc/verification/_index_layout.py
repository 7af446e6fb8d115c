"""Indices of a selection: which candidates they name, by the places of these in the keys."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IndexLayout:
    """The meaning of indices: the candidates that they name, by their places in the keys.

    Each of the `lists` has `count` candidates of its own. In `triples` each index is a row of three:
    batch, class and box, as NonMaxSuppression makes it.
    """

    shape: tuple[int, ...]
    lists: int
    count: int
    triples: tuple[int, ...] = ()
    dtype: Any = np.int64

    @property
    def groups(self) -> Numbers | None:
        """The candidates that are ordered together, as a number for each; None for all."""
        return np.arange(self.count) // self.triples[2] if self.triples else None

    def arrange(self, keys: Array) -> Array:
        """Return keys as an array [lists, candidates]."""
        return keys.reshape(self.lists, self.count)

    def decode(self, indices: Array) -> Numbers:
        """Return the candidates of indices, [lists, rows]. Raises ValueError for impossible ones."""
        if self.triples:
            places = tuple(indices.T.astype(np.int64))
            return np.asarray(np.ravel_multi_index(places, self.triples), np.int64)[None]
        return indices.astype(np.int64).reshape(self.lists, -1)

    def encode(self, numbers: Numbers) -> Array:
        """Return the indices of candidates, [lists, rows]."""
        if self.triples:
            return np.stack(np.unravel_index(numbers[0], self.triples), axis=1).astype(self.dtype)
        return numbers.astype(self.dtype).reshape(*self.shape, numbers.shape[1])


def read_index_layout(keys: Array, indices: Array) -> IndexLayout | None:
    """Return the meaning of indices into keys, None if they cannot be such."""
    if indices.dtype.kind not in "iu" or not indices.ndim or not indices.size:
        return None
    dtype = indices.dtype
    if indices.ndim == 1:
        layout = IndexLayout((), 1, keys.size, dtype=dtype)
    elif indices.ndim == keys.ndim and indices.shape[:-1] == keys.shape[:-1]:
        layout = IndexLayout(keys.shape[:-1], prod(keys.shape[:-1]), keys.shape[-1], dtype=dtype)
    elif indices.ndim == 2 and indices.shape[1] == keys.ndim == 3:
        layout = IndexLayout((), 1, keys.size, keys.shape, dtype)
    else:
        return None
    numbers = layout.decode(indices)
    distinct = all(len(np.unique(row)) == len(row) for row in numbers)
    return layout if distinct and numbers.min() >= 0 and numbers.max() < layout.count else None
