"""Linear cost models: one fitted line for each operator."""

from math import nan
from typing import Annotated, Literal

from pydantic import Field

from byoc.costs.file import Amount, Measured, Number, Seconds
from byoc.costs.model import Price, Unknown, sum_of_parts
from byoc.costs.task import Task
from byoc.costs.work import Work
from byoc.yamlfile import Strict


class Line(Strict):
    """seconds = operation * operations + byte * bytes + call."""

    operation: Amount = 0.0
    """seconds for each operation"""
    byte: Amount = 0.0
    """seconds for each byte read or written"""
    call: Seconds = 0.0
    """seconds for each call"""
    joules: "Line | None" = None
    """the same line for joules, if they were measured"""
    r2: Annotated[float, Number] | None = Field(None, le=1, allow_inf_nan=False)
    """the part of the variance that the line explains (coefficient of determination)"""
    samples: Annotated[int, Number, Field(ge=0)] = 0
    """number of measurements that it was fitted to"""

    def at(self, work: Work) -> float:
        """Return the line's value."""
        return self.operation * work.operations + self.byte * work.bytes + self.call


STAND_IN = Line(operation=2e-11, byte=1e-10, call=2e-6)
"""Round figures for work of which nothing is known: 50 GFLOP/s, 10 GB/s, 2 us a call."""


class Linear(Measured):
    """A line for each operator or composite, and one through all of them for estimates.

    Grouped convolutions may have a line of their own, `Conv/grouped`.
    """

    kind: Literal["linear"]
    operators: Annotated[dict[str, Line], Field(min_length=1)]
    estimates: Line | None = None
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
            return sum_of_parts(self, task)
        return self._price(line or self.estimates or STAND_IN, task.work)

    def _line(self, task: Task) -> Line | None:
        return self.operators.get(task.family) or self.operators.get(task.op)

    def _price(self, line: Line, work: Work) -> Price:
        seconds = line.at(work) * self.together
        return self.priced(work, seconds, line.joules.at(work) if line.joules else nan)
