"""Measured costs: a row for each operator or composite, or one fitted line for each operator."""

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from math import nan
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from byoc.costs._cost_file import Amount, MeasuredCostFile, Number, Seconds
from byoc.costs._cost_model import Price, Unknown, price_parts
from byoc.costs._task import Task, canonical_attributes
from byoc.costs._work import Work
from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS
from byoc.support import StrictModel

_MOST_TOGETHER = 1000.0


def _check_together(value: float) -> float:
    if not value <= _MOST_TOGETHER:
        raise ValueError("expected at most 1000")
    return value


class CostLine(StrictModel):
    """seconds = together * (operation * operations + byte * bytes + call)."""

    operation: Amount = 0.0
    """seconds for each operation"""
    byte: Amount = 0.0
    """seconds for each byte read or written"""
    call: Seconds = 0.0
    """seconds for each call"""
    together: Annotated[float, Number, Field(ge=0), AfterValidator(_check_together)] = 1.0
    """time as part of a whole over the time alone"""
    joules: "CostLine | None" = None
    """the same line for joules, if they were measured"""
    r2: Annotated[float, Number] | None = Field(None, le=1, allow_inf_nan=False)
    """the part of the variance that the line explains (coefficient of determination)"""
    samples: Annotated[int, Number, Field(ge=0)] = 0
    """number of measurements that it was fitted to"""

    def evaluate(self, work: Work) -> float:
        """Return the line's value."""
        alone = self.operation * work.operations + self.byte * work.bytes + self.call
        return self.together * alone


STAND_IN_LINE = CostLine(operation=2e-11, byte=1e-10, call=2e-6)
"""Round figures for work of which nothing is known: 50 GFLOP/s, 10 GB/s, 2 us a call."""


class Linear(MeasuredCostFile):
    """A line for each operator or composite, and one through all of them for estimates.

    Kinds of an operator may have a line of their own, `Conv/grouped` or `Relu/fused`: see
    `byoc.costs._task.list_families`.
    """

    kind: Literal["linear"]
    operators: Annotated[dict[str, CostLine], Field(min_length=1)]
    estimates: CostLine | None = None
    """for operators without a line, if the user allows estimates"""

    @property
    def operator_names(self) -> Collection[str]:
        """The names of `operators`."""
        return self.operators.keys()

    def execution(self, task: Task) -> Price | Unknown:
        """Return the value of the operator's line; unknown if there is none or a shape is unknown."""
        line = self.get_line(task)
        if line is None:
            return Unknown(f"{self.name} has no costs of {task.op}")
        if not task.sized:
            return Unknown(f"a shape of {task.op} is not known")
        return self._price(line, task)

    def estimate(self, task: Task) -> Price:
        """Return the sum of a composite's parts, or the value of the operator's or the common line."""
        line = self.get_line(task)
        if line is None and task.parts:
            return price_parts(self, task)
        return self._price(line or self.estimates or STAND_IN_LINE, task)

    def get_line(self, task: Task) -> CostLine | None:
        """Return the line of a task's narrowest family that has one, None if none has."""
        found = (self.operators.get(family) for family in task.families)
        return next((line for line in found if line is not None), None)

    def _price(self, line: CostLine, task: Task) -> Price:
        seconds = line.evaluate(task.work) * self.together
        joules = line.joules.evaluate(task.work) if line.joules else nan
        return self.make_price(task, seconds, joules)


_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<dims>(\d+(, \d+)*)?)\]")

# More than any graph computes or moves; fitting a line through larger numbers would overflow.
_MAX_COUNTED = 1e30


def _check_types(text: str) -> str:
    """Normalise spaces of `types` as in `Task.types`. Raises ValueError if it is malformed."""
    if text.count("->") != 1:
        raise ValueError("expected types of inputs -> of outputs, such as float32[1, 8] -> int8[2]")
    sides = [", ".join(part.strip() for part in side.split(",")) for side in text.split("->")]
    for side in sides:
        for kind in side.replace("], ", "]\n").replace("-, ", "-\n").splitlines():
            found = _TYPE.fullmatch(kind)
            if kind != "-" and found is None:
                raise ValueError(f"'{kind}' is no type such as float32[1, 8], nor - for one left out")
            if found is not None and found["dtype"] not in DTYPE_NUMBERS:
                raise ValueError(
                    "no such data type "
                    f"'{found['dtype']}'{suggest_nearest(found['dtype'], DTYPE_NUMBERS)}"
                )
    return " -> ".join(sides).strip()


def _check_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    for name, value in attributes.items():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (int, float, str)) for item in items):
            raise ValueError(f"{name}: expected a number, text, or a list of these")
    return attributes


def _check_count(value: float) -> float:
    if not value <= _MAX_COUNTED:
        raise ValueError("expected at most 1e+30")
    return value


Count = Annotated[float, Number, Field(ge=0), AfterValidator(_check_count)]


class Measurement(StrictModel):
    """A measurement of one operator on tensors of certain types."""

    op: str
    """the operator, with its domain if that is not ONNX's own (acme::Odd), or a composite's name"""
    types: Annotated[str, AfterValidator(_check_types)]
    """of the inputs and of the outputs: float32[1, 8], - -> float32[1, 8]"""
    attributes: Annotated[dict[str, Any], AfterValidator(_check_attributes)] = Field(
        default_factory=dict
    )
    """attributes that differ from the operator's defaults; a composite's as 0.strides"""
    seconds: Seconds
    """the median"""
    spread: Seconds = 0.0
    """seconds between the quartiles"""
    samples: Annotated[int, Number, Field(ge=1)] = 1
    operations: Count = 0.0
    bytes: Count = 0.0
    joules: Amount | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """The lookup key, equal to the `key` of the measured task."""
        return self.op, self.types, canonical_attributes(self.attributes)

    @property
    def weights(self) -> tuple[int, ...] | None:
        """The shape of the second input, None without one."""
        inputs = self.types.partition("->")[0].replace("], ", "]\n").replace("-, ", "-\n").splitlines()
        found = _TYPE.fullmatch(inputs[1].strip()) if len(inputs) > 1 else None
        return tuple(map(int, filter(None, found["dims"].split(", ")))) if found else None


class CostTable(MeasuredCostFile):
    """Measured costs, looked up exactly; a task that was not measured is unknown."""

    kind: Literal["table"]
    entries: Annotated[tuple[Measurement, ...], Field(min_length=1)]

    @field_validator("entries")
    @classmethod
    def _each_once(cls, entries: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
        first: dict[Any, int] = {}
        for i, entry in enumerate(entries):
            before = first.setdefault(entry.key, i)
            if before != i:
                raise ValueError(f"[{i}] has the operator, types and attributes of [{before}]")
        return entries

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, str, str], Measurement]:
        return {entry.key: entry for entry in self.entries}

    @cached_property
    def _line(self) -> CostLine:
        from byoc.costs._line_fitting import fit_line  # noqa: PLC0415 - it imports this module

        return (
            fit_line(self.entries)
            if any(e.operations or e.bytes for e in self.entries)
            else STAND_IN_LINE
        )

    @property
    def operator_names(self) -> Collection[str]:
        """The operators and composites that the entries price."""
        return {entry.op: None for entry in self.entries}.keys()

    def execution(self, task: Task) -> Price | Unknown:
        """Return the measured cost; unknown if the task was not measured."""
        entry = self._by_key.get(task.key)
        if entry is None:
            return Unknown(f"{self.name} has no costs of {task}")
        joules = nan if entry.joules is None else entry.joules
        return self.make_price(task, entry.seconds * self.together, joules)

    def estimate(self, task: Task) -> Price:
        """Return the sum of a composite's parts, or the value of a line through all entries."""
        if task.parts:
            return price_parts(self, task)
        return self.make_price(task, self._line.evaluate(task.work) * self.together)
