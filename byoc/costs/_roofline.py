"""Roofline cost models: a device limited by arithmetic or by memory, described by a few figures."""

from collections.abc import Collection, Iterator, Sequence
from math import ceil, prod
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from byoc._dataclasses import dataclass
from byoc.costs._cost_model import (
    DEFAULT,
    Amount,
    CostFile,
    Number,
    Positive,
    Price,
    Seconds,
    Task,
    Unknown,
    check_dtypes,
)
from byoc.costs._work import Work
from byoc.support import StrictModel

# Loops of convolutions, pools and matrix products, and what an array of multipliers makes of them.

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


# Roofline cost models: a device limited by arithmetic or by memory, described by a few figures.


class OperatorFigures(StrictModel):
    """Figures of an operator or a composite that differ from the rest."""

    efficiency: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    """the part of the peak that it reaches"""
    overhead: Seconds | None = None
    """seconds for each, instead of the file's"""
    elements: Positive = float("inf")
    """elements of the result that are written in a second, at most"""
    traffic: Amount = 1.0
    """bytes of activations that move for each that is counted; 0 where a compiler moves none"""
    multiples: Multiples | tuple[Multiples, ...] = ()
    """what the array computes at once; of several the best for each operator holds"""

    def waste(self, loops: ProductLoops | None) -> float:
        """Return the ratio of computed to needed multiplications, at least 1."""
        several = self.multiples if isinstance(self.multiples, tuple) else (self.multiples,)
        if loops is None or not several:
            return 1.0
        return min(each.waste(loops) for each in several)


class ConstantMemory(StrictModel):
    """A memory of their own for weights and other constants, which is read beside the others."""

    bandwidth: Positive
    """bytes a second"""
    packed: Amount = 1.0
    """bytes that are read for each byte of constants; below 1 where they are compressed"""


class Tile(StrictModel):
    """The size of the accumulators: a result is made tile by tile, the input read for each tile."""

    results: Multiple
    """elements of the result at once"""
    outputs: Multiple = 1
    """output channels are divided in multiples of this"""
    channels: Multiple = 1
    """input channels are read in multiples of this"""


_DEFAULT_FIGURES = OperatorFigures()
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators that a QDQ group has around others, whose traffic is that of the group."""


class Roofline(CostFile):
    """A device limited by arithmetic or by memory (Williams, Waterman, Patterson 2009).

    seconds = overhead + max(operations * waste / (efficiency * peak), results / elements,
        bytes of activations * traffic / bandwidth, bytes of constants * packed / their bandwidth)

    The terms that a file does not state are absent; without `constants` all bytes share `bandwidth`.
    """

    kind: Literal["roofline"]
    peak: Annotated[dict[str, Positive], Field(min_length=1), AfterValidator(check_dtypes)]
    """operations per second by dtype; `default` stands for all others"""
    bandwidth: Positive
    """bytes per second to and from memory"""
    constants: ConstantMemory | None = None
    """the memory of constants, if they have one of their own"""
    tile: Tile | None = None
    """how convolutions and products are cut, if their inputs are read more than once"""
    overhead: Seconds = 0.0
    """seconds for each operator"""
    groups: dict[str, list[str]] = Field(default_factory=dict)
    """operators that share figures, by the name under which `operators` has these; read before"""
    operators: dict[str, OperatorFigures] = Field(default_factory=dict)
    """deviations of some operators and composites, by name, or by a kind of them such as
    `Conv/depthwise`; a composite without figures of its own has those of its operators"""

    @property
    def operator_names(self) -> Collection[str]:
        """The names of `operators`."""
        return self.operators.keys()

    def execution(self, task: Task) -> Price | Unknown:
        """Return the roofline price; unknown if operations or shapes are not known exactly."""
        if task.work.estimated:
            what = "a shape" if not task.sized else "how much it computes"
            return Unknown(f"{what} of {task.op} is not known")
        return self.estimate(task)

    def estimate(self, task: Task) -> Price:
        """Return the roofline price of the known part of the work."""
        work = task.work
        if not work.operations and not work.bytes:
            return self.make_price(task, 0.0)
        parts = list(self._find_parts(task))
        peak = self.peak.get(task.dtype, self.peak.get(DEFAULT, min(self.peak.values())))
        computing = 0.0
        for part, figures, loops in parts:
            computing += part.work.operations * figures.waste(loops) / (figures.efficiency * peak)
        overheads = [figures.overhead for _, figures, _ in parts if figures.overhead is not None]
        writing = max(_count_results(task) / figures.elements for _, figures, _ in parts)
        moving = self._count_moving_seconds(task, parts)
        overhead = max(overheads, default=self.overhead)
        return self.make_price(task, overhead + max(computing, writing, moving))

    def seconds(self, work: Work, dtype: str) -> float:
        """Return the seconds of some work of an operator without figures of its own."""
        return self.estimate(Task("", work, dtype)).seconds

    def _find_parts(self, task: Task) -> "Iterator[_Part]":
        """Yield the operators of a task, each with its figures and its loops.

        What a composite has figures of is one operator, with the loops of the only product in it.
        """
        own = self._find_figures(task)
        if own is not None or not task.parts:
            loops = [read_loops(part) for part in task.parts or (task,)]
            found = [each for each in loops if each is not None]
            yield task, own or _DEFAULT_FIGURES, found[0] if len(found) == 1 else None
            return
        for part in task.parts:
            yield part, self._find_figures(part) or _DEFAULT_FIGURES, read_loops(part)

    def _find_figures(self, task: Task) -> OperatorFigures | None:
        """Return the figures of the narrowest kind of a task that has some."""
        found = (self.operators.get(name) for name in task.families)
        return next((each for each in found if each is not None), None)

    def _count_moving_seconds(self, task: Task, parts: "list[_Part]") -> float:
        """Return the seconds that the slower memory takes for a task's bytes."""
        activations, constants = task.work.bytes, 0.0
        if self.constants is not None:
            constants = task.work.constants * self.constants.packed / self.constants.bandwidth
            activations -= task.work.constants
        if self.tile is not None:
            size = _find_element_size(task)
            for _, _, loops in parts:
                if loops is not None:
                    tile = self.tile
                    counts = loops.count_traffic(tile.results, tile.outputs, tile.channels)
                    activations += size * (max(counts[0] - loops.read_once, 0.0) + counts[1])
        between = [each for each in parts if each[0].op not in _CONVERSIONS] or parts
        working = [figures.traffic for part, figures, _ in between if part.work.operations]
        traffic = max(working or [figures.traffic for _, figures, _ in between])
        return max(activations * traffic / self.bandwidth, constants)


_Part = tuple[Task, OperatorFigures, ProductLoops | None]
"""An operator with its figures, and its loops if it is a product."""


def _count_results(task: Task) -> int:
    """Return the elements that a task makes, as far as their shapes are known."""
    return sum(_count_elements(kind) for kind in task.outputs)


def _count_elements(kind: object) -> int:
    shape = getattr(kind, "shape", None)
    numbers = [extent for extent in shape or () if isinstance(extent, int)]
    return prod(numbers) if shape is not None and len(numbers) == len(shape) else 0


def _find_element_size(task: Task) -> float:
    """Return the bytes of an element of a task's first result, 0 if that is not known."""
    kind = next((each for each in task.outputs if each is not None), None)
    elements = _count_elements(kind)
    return (kind.bytes or 0) / elements if kind is not None and elements else 0.0
