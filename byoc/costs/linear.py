"""Linear cost models: one fitted line for each operator."""

from math import nan
from typing import Annotated, Literal

from pydantic import Field

from byoc.costs.file import Amount, MeasuredCostFile, Number, Seconds
from byoc.costs.model import Price, Unknown, price_parts
from byoc.costs.task import Task
from byoc.costs.work import Work
from byoc.yamlfile import StrictModel


class CostLine(StrictModel):
    """seconds = operation * operations + byte * bytes + call."""

    operation: Amount = 0.0
    """seconds for each operation"""
    byte: Amount = 0.0
    """seconds for each byte read or written"""
    call: Seconds = 0.0
    """seconds for each call"""
    joules: "CostLine | None" = None
    """the same line for joules, if they were measured"""
    r2: Annotated[float, Number] | None = Field(None, le=1, allow_inf_nan=False)
    """the part of the variance that the line explains (coefficient of determination)"""
    samples: Annotated[int, Number, Field(ge=0)] = 0
    """number of measurements that it was fitted to"""

    def evaluate(self, work: Work) -> float:
        """Return the line's value."""
        return self.operation * work.operations + self.byte * work.bytes + self.call


STAND_IN_LINE = CostLine(operation=2e-11, byte=1e-10, call=2e-6)
"""Round figures for work of which nothing is known: 50 GFLOP/s, 10 GB/s, 2 us a call."""


class Linear(MeasuredCostFile):
    """A line for each operator or composite, and one through all of them for estimates.

    Grouped convolutions may have a line of their own, `Conv/grouped`.
    """

    kind: Literal["linear"]
    operators: Annotated[dict[str, CostLine], Field(min_length=1)]
    estimates: CostLine | None = None
    """for operators without a line, if the user allows estimates"""

    def execution(self, task: Task) -> Price | Unknown:
        """Return the value of the operator's line; unknown if there is none or a shape is unknown."""
        line = self._line(task)
        if line is None:
            return Unknown(f"{self.name} has no costs of {task.op}")
        if not task.sized:
            return Unknown(f"a shape of {task.op} is not known")
        return self._price(line, task.work)

    def estimate(self, task: Task) -> Price:
        """Return the sum of a composite's parts, or the value of the operator's or the common line."""
        line = self._line(task)
        if line is None and task.parts:
            return price_parts(self, task)
        return self._price(line or self.estimates or STAND_IN_LINE, task.work)

    def _line(self, task: Task) -> CostLine | None:
        return self.operators.get(task.family) or self.operators.get(task.op)

    def _price(self, line: CostLine, work: Work) -> Price:
        seconds = line.evaluate(work) * self.together
        return self.make_price(work, seconds, line.joules.evaluate(work) if line.joules else nan)
