"""Roofline cost models: a device limited by arithmetic or by memory, described by a few figures."""

from collections.abc import Collection, Iterator
from math import prod
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from byoc.costs._cost_file import DEFAULT, Amount, CostFile, Number, Positive, Seconds, check_dtypes
from byoc.costs._cost_model import Price, Unknown
from byoc.costs._product_loops import Multiple, Multiples, ProductLoops, read_loops
from byoc.costs._task import Task
from byoc.costs._work import Work
from byoc.support import StrictModel


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
