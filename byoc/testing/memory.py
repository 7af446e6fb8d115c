"""What lies on disk and in memory, before and after."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]


def files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file under a folder by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same bytes."""
    return one.tobytes() == other.tobytes()


def others(inputs: Values, number: int) -> dict[str, Any]:
    """Return other inputs of the same types: the elements moved along by a number of places."""
    return {name: np.roll(value, number) for name, value in inputs.items()}


def strided(value: NDArray[Any]) -> NDArray[Any]:
    """Return the same array with gaps between its elements."""
    if not value.ndim:
        return value
    wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1]), value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]
