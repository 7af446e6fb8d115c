"""Convolutions and pools as ONNX has them, random arrays, and how results are compared."""

from dataclasses import dataclass

import numpy as np
from byoc.codegens.dla.machine import Pads, Pair
from dla_bench import Array


@dataclass(frozen=True)
class Case:
    """A convolution or a pool: what ONNX's attributes say."""

    channels: int = 8
    makes: int = 12
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    size: tuple[int, int] = (11, 9)
    ceil: int = 0

    @property
    def attributes(self) -> str:
        return (
            f"kernel_shape={list(self.kernel)}, strides={list(self.strides)}, "
            f"dilations={list(self.dilations)}, pads={list(self.pads)}"
        )

    @property
    def geometry(self) -> dict[str, object]:
        """What the command has of it."""
        return {
            "kernel": Pair(*self.kernel),
            "strides": Pair(*self.strides),
            "dilations": Pair(*self.dilations),
            "pads": Pads(*self.pads),
        }

    @property
    def out(self) -> tuple[int, int]:
        free = [
            self._there(axis) - self.dilations[axis] * (self.kernel[axis] - 1) - 1 for axis in (0, 1)
        ]
        steps = zip(free, self.strides, strict=True)
        rows, cols = (-(-room // step) if self.ceil else room // step for room, step in steps)
        return rows + 1, cols + 1

    @property
    def overhang(self) -> Pair:
        spans = (
            (self.out[axis] - 1) * self.strides[axis]
            + self.dilations[axis] * (self.kernel[axis] - 1)
            + 1
            for axis in (0, 1)
        )
        return Pair(*(max(span - self._there(axis), 0) for axis, span in enumerate(spans)))

    def _reach(self, axis: int) -> int:
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def _there(self, axis: int) -> int:
        return self.size[axis] + self.pads[axis] + self.pads[axis + 2]


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bytes_of(seed: int, dtype: type, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def close(mine: Array, theirs: Array) -> None:
    np.testing.assert_allclose(
        mine, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))
    )


def same_integers(mine: Array, theirs: Array, equal: float = 0.99) -> None:
    """Check that all are within one unit, and that at least so large a part is equal."""
    assert mine.dtype == theirs.dtype
    assert np.abs(mine.astype(int) - theirs.astype(int)).max() <= 1
    assert np.mean(mine == theirs) >= equal
    assert len(np.unique(theirs)) > 3
