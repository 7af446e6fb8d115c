"""The axes of a moved part of a tensor: two that a tile has, and those over which it is repeated."""

from dataclasses import dataclass
from math import prod

from .layers import MoveLayer


@dataclass(frozen=True)
class MovedAxis:
    """An axis of a moved part: its extent, and its steps in elements in `x` and in `y`."""

    extent: int
    x_step: int
    y_step: int


def split_axes(layer: MoveLayer) -> tuple[list[MovedAxis], list[MovedAxis]]:
    """Return the two axes of a tile, and the others."""
    x_steps = dense_steps(layer.whole)
    made = dense_steps(tuple(layer.shape[axis] for axis in layer.order))
    y_steps = dict(zip(layer.order, made, strict=True))
    lengths = [tensor.width * tensor.channels for tensor in (layer.x, layer.y)]
    axes: list[MovedAxis] = []
    for number, extent in enumerate(layer.shape):
        axis = MovedAxis(extent, x_steps[number], y_steps[number])
        if axes and extent != 1:
            last = axes[-1]
            both = MovedAxis(last.extent * extent, axis.x_step, axis.y_step)
            adjacent = (last.x_step, last.y_step) == (axis.x_step * extent, axis.y_step * extent)
            if adjacent and _is_inside_rows(both, lengths):
                axes[-1] = both
                continue
        if extent != 1:
            axes.append(axis)
    inside = sorted((a for a in axes if _is_inside_rows(a, lengths)), key=lambda a: -a.extent)[:2]
    outer = [axis for axis in axes if axis not in inside]
    return (inside + [MovedAxis(1, 1, 1)] * 2)[:2], outer


def dense_steps(shape: tuple[int, ...]) -> list[int]:
    """Return the elements from one position of each axis to the next, in a tensor without gaps."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _is_inside_rows(axis: MovedAxis, lengths: list[int]) -> bool:
    """Whether an axis does not leave a row of `x` or `y`, whose rows have so many elements."""
    steps = (axis.x_step, axis.y_step)
    return all(axis.extent * step <= row for step, row in zip(steps, lengths, strict=True))


def count_tile_elements(layer: MoveLayer) -> int:
    """Return the elements of a tile of two whole axes."""
    return prod(axis.extent for axis in split_axes(layer)[0])
