"""Loops of convolutions, pools and matrix products, and what an array of multipliers makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Annotated

from pydantic import Field

from byoc.costs._cost_file import Number
from byoc.costs._task import Task
from byoc.support import StrictModel

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_IMAGE_RANK = 3  # batch, channels, and at least one axis of positions

Multiple = Annotated[int, Number, Field(ge=1)]


@dataclass(frozen=True)
class ProductLoops:
    """The loops of sums of products: each result sums over inputs and the taps of a kernel.

    `rows` and `columns` are those of the result, a matrix has its rows as columns. `outputs` and
    `inputs` are the channels of one of `groups`; where `separate`, each output channel reads only its
    own input channel, and all channels are in one group. `steps` are the strides of rows and columns.
    """

    batch: int
    rows: int
    columns: int
    outputs: int
    inputs: int
    taps: tuple[int, int] = (1, 1)
    steps: tuple[int, int] = (1, 1)
    groups: int = 1
    separate: bool = False

    @property
    def weights(self) -> int:
        """The elements of the kernels of all groups."""
        return self.groups * self.outputs * self.inputs * prod(self.taps)

    @property
    def read_once(self) -> int:
        """The elements of the input, as far as windows cover it, each counted once."""
        return self.batch * self._count_window(self.rows, self.columns) * self._channels * self.groups

    @property
    def _channels(self) -> int:
        return self.outputs if self.separate else self.inputs

    def _count_window(self, rows: int, columns: int) -> int:
        """Return the positions of the input that so many rows and columns of the result cover."""
        down, across = (
            min(extent * step, (extent - 1) * step + taps)
            for extent, step, taps in zip((rows, columns), self.steps, self.taps, strict=True)
        )
        return down * across

    def count_traffic(self, tile: int, multiple: int, channels: int) -> tuple[float, float]:
        """Count the elements of the input and of the weights that tiles of the result read.

        A tile has at most `tile` results, its output channels in steps of `multiple`; for each the
        window of the input that it covers is read, `channels` at a time, and the weights of its output
        channels. Of all tiles whose sides are powers of two the one with the least traffic is taken.
        """
        deep = _round_up(self._channels, channels)
        best = (float("inf"), 0.0, 0.0)
        for high in _list_powers(self.rows):
            for wide in _list_powers(self.columns):
                most = tile // (high * wide) // multiple * multiple
                if not most:
                    break
                places = ceil(self.rows / high) * ceil(self.columns / wide)
                turns = 1 if self.separate else ceil(self.outputs / most)
                read = places * turns * self._count_taken(min(high, self.rows), min(wide, self.columns))
                read *= deep * self.groups * self.batch
                again = (places * self.batch - 1) * self.weights
                best = min(best, (read + again, read, again))
        return best[1], best[2]

    def _count_taken(self, rows: int, columns: int) -> int:
        down, across = (
            (extent - 1) * step + taps
            for extent, step, taps in zip((rows, columns), self.steps, self.taps, strict=True)
        )
        return down * across


class Multiples(StrictModel):
    """The loop extents that an array of multipliers computes at once; others are rounded up to them."""

    rows: Multiple = 1
    columns: Multiple = 1
    outputs: Multiple = 1
    inputs: Multiple = 1
    taps: Multiple = 1

    def waste(self, loops: ProductLoops) -> float:
        """Return the rounded work over the work, at least 1."""
        pairs = (
            (loops.rows, self.rows),
            (loops.columns, self.columns),
            (loops.outputs, self.outputs),
            (loops.inputs, self.inputs),
            (prod(loops.taps), self.taps),
        )
        return prod(_round_up(extent, multiple) / extent for extent, multiple in pairs)


def read_loops(task: Task) -> ProductLoops | None:
    """Return the loops of a task that is a convolution, a pool or a product; None for any other."""
    shapes = [None if kind is None else kind.shape for kind in (*task.inputs[:2], *task.outputs[:1])]
    if not task.sized or not task.inputs or not task.outputs or shapes[0] is None or shapes[-1] is None:
        return None
    source, result = _as_numbers(shapes[0]), _as_numbers(shapes[-1])
    second = _as_numbers(shapes[1]) if len(task.inputs) > 1 and shapes[1] is not None else ()
    if not all((*source, *result, *second)):
        return None
    if task.op in _POOLS and len(source) >= _IMAGE_RANK:
        taps = task.attributes.get("kernel_shape", ())
        return _make_image_loops(task, result, result[1], 1, taps, separate=True)
    if task.op == "Conv" and len(source) >= _IMAGE_RANK and len(second) == len(source):
        groups = task.attributes.get("group", 1)
        separate = groups > 1 and second[1] == 1
        outputs = second[0] if separate else second[0] // groups
        groups = 1 if separate else groups
        return _make_image_loops(task, result, outputs, second[1], second[2:], groups, separate)
    if task.op in ("Gemm", "MatMul") and len(source) > 1 and len(result) > 1:
        inner = source[-2] if task.attributes.get("transA", 0) else source[-1]
        return ProductLoops(1, 1, prod(result[:-1]), result[-1], inner)
    return None


def _make_image_loops(  # noqa: PLR0913, PLR0917 - what an image's loops are made of
    task: Task,
    result: Sequence[int],
    outputs: int,
    inputs: int,
    taps: Sequence[int],
    groups: int = 1,
    separate: bool = False,
) -> ProductLoops:
    steps = task.attributes.get("strides", [1] * len(taps))
    return ProductLoops(
        result[0],
        prod(result[2:-1]),
        result[-1],
        outputs,
        inputs,
        (prod(taps[:-1]), taps[-1]),
        (prod(steps[:-1]), steps[-1]),
        groups,
        separate,
    )


def _as_numbers(shape: Sequence[object]) -> tuple[int, ...]:
    return tuple(extent if isinstance(extent, int) else 0 for extent in shape)


def _round_up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def _list_powers(extent: int) -> list[int]:
    """Return 1, 2, 4, ... up to the first power of two that is at least `extent`."""
    return [1 << number for number in range((extent - 1).bit_length() + 1)]
