"""Windows of convolutions and pools over tiles."""

from dataclasses import dataclass

import numpy as np

from ..machine import ZERO, Conv, Pool
from .tagged_memory import Array, FaultError

_MAX_VALUES = 1 << 28
"""Values that a padded tile, and all windows of a command together, may hold in the simulator."""


@dataclass(frozen=True)
class WindowAxis:
    """A window along rows or along columns.

    `size` is the extent of the tile, `before` and `after` are its padding, `beyond` is how far windows
    may reach past that, `count` is the extent of the output.
    """

    size: int
    before: int
    after: int
    beyond: int
    kernel: int
    stride: int
    dilation: int
    count: int

    @property
    def span(self) -> int:
        """Positions from the start of the first window to the end of the last."""
        return (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    def count_positions(self, low: int, high: int) -> Array:
        """Return for each output how many positions of its window are in [low, high) of the tile."""
        starts = np.arange(self.count)[:, None] * self.stride - self.before
        reached = starts + np.arange(self.kernel)[None, :] * self.dilation
        counts: Array = np.count_nonzero((reached >= low) & (reached < high), axis=1)
        return counts


def window_axes(command: Conv | Pool) -> tuple[WindowAxis, WindowAxis]:
    """Return the window of a command along rows and along columns.

    Raises FaultError if the output depends on positions that are neither in the tile nor in its padding,
    and if a window or the padded tile is too large to be simulated.
    """
    beyond = command.overhang if isinstance(command, Pool) else ZERO
    x, y, pads = command.x, command.y, command.pads
    kernel, strides, dilations = command.kernel, command.strides, command.dilations
    rows = WindowAxis(
        x.rows, pads.top, pads.bottom, beyond.rows, kernel.rows, strides.rows, dilations.rows, y.rows
    )
    cols = WindowAxis(
        x.cols, pads.left, pads.right, beyond.cols, kernel.cols, strides.cols, dilations.cols, y.cols
    )
    for name, axis in (("rows", rows), ("columns", cols)):
        there = axis.before + axis.size + axis.after + axis.beyond
        if not (axis.kernel and axis.stride and axis.dilation):
            raise FaultError(f"a kernel, stride or dilation of 0 along the {name}")
        if axis.span > there:
            raise FaultError(f"its windows need {axis.span} {name}, but x has {there} with the padding")
    padded = max(rows.span, rows.before + rows.size) * max(cols.span, cols.before + cols.size)
    values = max(padded, rows.count * rows.kernel * cols.count * cols.kernel) * x.channels
    if values > _MAX_VALUES:
        raise FaultError(f"its windows and padding hold {values} values; {_MAX_VALUES} can be simulated")
    return rows, cols


def window_view(x: Array, rows: WindowAxis, cols: WindowAxis, fill: float) -> Array:
    """Return a view [output rows, output cols, kernel rows, kernel cols, channels] of a padded tile.

    `x` is [rows, cols, channels]; `fill` is the value of the padding.
    """
    lacking = [max(axis.span - axis.before - axis.size, 0) for axis in (rows, cols)]
    around = ((rows.before, lacking[0]), (cols.before, lacking[1]), (0, 0))
    padded = np.pad(x, around, constant_values=fill) if np.any(around) else x
    down, right, along = padded.strides
    shape = (rows.count, cols.count, rows.kernel, cols.kernel, x.shape[2])
    strides = (
        down * rows.stride, right * cols.stride, down * rows.dilation, right * cols.dilation, along
    )  # fmt: skip
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
