"""Roofline cost models: a device limited by arithmetic or by memory, described by a few figures."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from byoc.costs._cost_file import DEFAULT, CostFile, Number, Positive, Seconds, check_dtypes
from byoc.costs._cost_model import Price, Unknown
from byoc.costs._task import Task
from byoc.costs._work import Work
from byoc.support import StrictModel


class OperatorFigures(StrictModel):
    """Figures of an operator or a composite that differ from the rest."""

    efficiency: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    """the part of the peak that it reaches"""
    overhead: Seconds | None = None
    """seconds for each, instead of the file's"""


class Roofline(CostFile):
    """A device limited by arithmetic or by memory (Williams, Waterman, Patterson 2009).

    seconds = overhead + max(operations / (efficiency * peak), bytes / bandwidth)
    """

    kind: Literal["roofline"]
    peak: Annotated[dict[str, Positive], Field(min_length=1), AfterValidator(check_dtypes)]
    """operations per second by dtype; `default` stands for all others"""
    bandwidth: Positive
    """bytes per second to and from memory"""
    overhead: Seconds = 0.0
    """seconds for each operator"""
    operators: dict[str, OperatorFigures] = Field(default_factory=dict)
    """deviations of some operators and composites, by name; a composite without figures of its own has
    those of its operators"""

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
        special = self.operators.get(task.op) or self._figures_of_parts(task)
        seconds = self.seconds(task.work, task.dtype, special)
        return self.make_price(task, seconds)

    def _figures_of_parts(self, task: Task) -> OperatorFigures | None:
        """Return the figures of a composite that has none of its own, from those of its operators.

        The efficiency is the one at which all operations take as long as each operator's at its own; the
        overhead is the largest that an operator has. None if no operator in it has figures.
        """
        figures = [self.operators.get(part.op) for part in task.parts]
        given = [each for each in figures if each is not None]
        if not given:
            return None
        operations = sum(part.work.operations for part in task.parts)
        slowed = sum(
            part.work.operations / (1.0 if each is None else each.efficiency)
            for part, each in zip(task.parts, figures, strict=True)
        )
        overheads = [each.overhead for each in given if each.overhead is not None]
        return OperatorFigures(
            efficiency=operations / slowed if slowed else 1.0, overhead=max(overheads, default=None)
        )

    def seconds(self, work: Work, dtype: str, special: OperatorFigures | None = None) -> float:
        """Return the seconds of some work; 0 if nothing is computed and no byte moved."""
        if not work.operations and not work.bytes:
            return 0.0
        peak = self.peak.get(dtype, self.peak.get(DEFAULT, min(self.peak.values())))
        overhead = self.overhead
        if special is not None:
            peak *= special.efficiency
            overhead = self.overhead if special.overhead is None else special.overhead
        return overhead + max(work.operations / peak, work.bytes / self.bandwidth)
