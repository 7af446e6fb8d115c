"""Measured costs: a row for each operator, or fitted lines, fitted to whole models, too."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import exp, log, nan
from typing import Annotated, Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, field_validator

from byoc._dataclasses import dataclass
from byoc.costs._cost_model import (
    Amount,
    MeasuredCostFile,
    Number,
    Price,
    Seconds,
    Task,
    Unknown,
    canonical_attributes,
    list_families,
    price_parts,
)
from byoc.costs._work import Work
from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS
from byoc.support import StrictModel

_MOST_TOGETHER = 1000.0  # a factor; more is a mistake of units


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
    `byoc.costs._cost_model.list_families`.
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


# Fitting lines to measured costs: the time of an operator per operation, byte and call.

Floats = NDArray[np.float64]

# Below the resolution of a profiler, relative errors are meaningless.
_LEAST_SECONDS, _LEAST_JOULES = 1e-6, 1e-9
# Weight of a coefficient's relative distance from the line `around`, against the relative error of a
# measurement: negligible if the measurements determine the coefficient.
_PULL = 1e-3
# A coefficient that adds less than this share to every measurement is a rounding error, which differs
# between processors: it is set to 0.
_ROUNDING = 1e-9


def fit_line(
    entries: Sequence[Measurement], around: CostLine | None = None, typical: Floats | None = None
) -> CostLine:
    """Return the line fitted to entries of a table.
    Non-negative least squares (Lawson and Hanson 1974) of the relative errors, as costs range over
    orders of magnitude; `r2` refers to the seconds themselves and is below 0 where the mean fits better.
    Coefficients that the measurements do not determine (too few, all small, or bytes proportional to
    operations) follow the line `around`, scaled to the operator (ridge regression); `typical` are
    coefficients of a usual size, for those that are 0 on that line. Joules get a line if every entry has
    them.
    """
    features = _features(entries)
    seconds = np.array([e.seconds for e in entries])
    found = _solve_least_squares(features, seconds, _LEAST_SECONDS, around, typical)
    spent = [e.joules for e in entries if e.joules is not None]
    joules = None
    if len(spent) == len(entries):
        operation, byte, call = _solve_least_squares(features, np.array(spent), _LEAST_JOULES).tolist()
        joules = CostLine(operation=operation, byte=byte, call=call)
    operation, byte, call = found.tolist()
    r2 = _r2(seconds, features @ found)
    return CostLine(
        operation=operation, byte=byte, call=call, joules=joules, r2=r2, samples=len(entries)
    )


def fit_linear_model(table: CostTable) -> Linear:
    """Return a linear model of a table: one line for each operator and each kind of it that runs at a
    rate of its own (`list_families`), and one through all entries.
    """
    chains = [list_families(each.op, each.attributes, each.weights) for each in table.entries]
    narrowest = {chain[0] for chain in chains}
    of: dict[str, list[Measurement]] = {}
    for entry, (first, *broader) in zip(table.entries, chains, strict=True):
        for name in (first, *(name for name in broader if name not in narrowest)):
            of.setdefault(name, []).append(entry)
    every, typical = fit_line(table.entries), _typical(table.entries)
    kept = ("name", "launch", "link", "energy", "machine", "together")
    return Linear(
        kind="linear",
        description=f"fitted to {len(table.entries)} measurements",
        operators={op: fit_line(entries, every, typical) for op, entries in sorted(of.items())},
        estimates=every,
        **{"else": table.otherwise},
        **{name: getattr(table, name) for name in kept},
    )


def _features(entries: Sequence[Measurement]) -> Floats:
    return np.array([[e.operations, e.bytes, 1.0] for e in entries])


def _typical(entries: Sequence[Measurement]) -> Floats:
    """Return each coefficient as if it alone explained the seconds: medians, float64 (3,)."""
    features, seconds = _features(entries), np.array([e.seconds for e in entries])
    columns = [(column[column > 0], seconds[column > 0]) for column in features.T]
    return np.array([float(np.median(s / c)) if c.size else 0.0 for c, s in columns])


def _solve_least_squares(
    features: Floats,
    values: Floats,
    least: float,
    around: CostLine | None = None,
    typical: Floats | None = None,
) -> Floats:
    """Return the three coefficients, float64 (3,)."""

    bounded = np.maximum(values, least)
    rows = features / bounded[:, None]
    targets = values / bounded
    if around is not None:
        line = np.array([around.operation, around.byte, around.call])
        line *= np.exp(np.mean(np.log(bounded / np.maximum(features @ line, least))))
        size = line if typical is None else np.maximum(line, typical)
        size = np.where(size > 0, size, 1.0)
        rows = np.vstack([rows, np.sqrt(_PULL) * np.diag(1.0 / size)])
        targets = np.concatenate([targets, np.sqrt(_PULL) * line / size])
    scale = rows.max(axis=0, initial=0.0)  # operations are about 1e9 times calls: scale both to 1
    scale[scale == 0] = 1.0
    # Targets are at most 1, and so is each scaled row.
    solution, _ = scipy.optimize.nnls(rows / scale, targets)
    solution[solution < _ROUNDING] = 0.0
    return np.asarray(solution / scale, np.float64)


def _r2(values: Floats, predicted: Floats) -> float | None:
    """Return the coefficient of determination; None if all values are equal."""
    variance = float(((values - values.mean()) ** 2).sum())
    return 1.0 - float(((values - predicted) ** 2).sum()) / variance if variance else None


# Factors for the lines of a linear cost model, fitted to the times of whole models.
#
# A library that sees a whole fuses elementwise operators into what makes their inputs, and keeps
# tensors in layouts of its own. So the time of a whole is not the sum of what its operators take
# alone. The factor `together` of a line is what operators of this family take within a whole over
# what they take alone.

# Weight of a factor's distance from the usual one, against the relative error of a whole: chosen by how
# well models are predicted that the fit has not seen.
_WHOLE_PULL = 0.05
_USUAL, _USUAL_FUSED = 0.9, 0.3
_LEAST_WHOLES = 3  # measured wholes: a factor from fewer explains those alone


@dataclass(frozen=True, eq=False)
class MeasuredWhole:
    """A model that a device runs as a whole: its name, the tasks of its units, the measured seconds."""

    model: str
    tasks: Sequence[Task]
    seconds: float


@dataclass(frozen=True, slots=True)
class UnseenPrediction:
    """The seconds of a model, predicted by a fit to all other models, and measured."""

    model: str
    predicted: float
    measured: float


def fit_wholes(table: CostTable, wholes: Sequence[MeasuredWhole]) -> Linear:
    """Return lines fitted to measurements, with factors fitted to the times of whole models.

    Each family of operators has a factor, which may be 0. Non-negative least squares of the relative
    errors of the wholes; what they leave open stays near 0.9, and 0.3 for fused operators. With fewer
    than three wholes the lines are those of `fit_linear_model`.
    """
    lines = fit_linear_model(table)
    known = [whole for whole in wholes if whole.seconds > 0]
    if len(known) < _LEAST_WHOLES:
        return lines
    sums = [_sum_by_family(lines, whole.tasks) for whole in known]
    families = sorted({family for each in sums for family in each})
    matrix = np.array(
        [
            [each.get(family, 0.0) / whole.seconds for family in families]
            for each, whole in zip(sums, known, strict=True)
        ]
    )
    usual = np.array([_get_usual_factor(family) for family in families])
    rows = np.vstack([matrix, np.sqrt(_WHOLE_PULL) * np.eye(len(families))])
    targets = np.concatenate([np.ones(len(known)), np.sqrt(_WHOLE_PULL) * usual])
    factors = dict(zip(families, scipy.optimize.nnls(rows, targets)[0].tolist(), strict=True))
    return lines.model_copy(update={"operators": _scale_lines(lines, factors), "together": 1.0})


def predict_unseen(table: CostTable, wholes: Sequence[MeasuredWhole]) -> list[UnseenPrediction]:
    """Predict each model by a fit to all others: to their wholes, and to the units that they have."""
    found = []
    for left_out in wholes:
        others = [whole for whole in wholes if whole is not left_out]
        seen = {task.key for whole in others for task in whole.tasks}
        entries = tuple(entry for entry in table.entries if entry.key in seen)
        if entries:
            lines = fit_wholes(table.model_copy(update={"entries": entries}), others)
            seconds = sum_seconds(lines, left_out.tasks)
            found.append(UnseenPrediction(left_out.model, seconds, left_out.seconds))
    return found


def mean_factor(predictions: Sequence[UnseenPrediction]) -> float:
    """Return the geometric mean of the factors between prediction and measurement; at least 1."""
    logs = [abs(log(max(each.predicted, 1e-12) / each.measured)) for each in predictions]
    return exp(sum(logs) / len(logs)) if logs else 1.0


def sum_seconds(lines: Linear, tasks: Sequence[Task]) -> float:
    """Return the seconds of tasks that run as a whole."""
    return sum(
        (lines.execution(task) or lines.estimate(task)).seconds for task in tasks if not task.view
    )


def _sum_by_family(lines: Linear, tasks: Sequence[Task]) -> dict[str, float]:
    """Return the seconds of tasks alone, summed by their narrowest families."""
    sums: dict[str, float] = {}
    for task in tasks:
        if not task.view:
            family = task.families[0]
            price = lines.execution(task) or lines.estimate(task)
            sums[family] = sums.get(family, 0.0) + price.seconds
    return sums


def _get_usual_factor(family: str) -> float:
    return _USUAL_FUSED if family.endswith("/fused") else _USUAL


def _scale_lines(lines: Linear, factors: dict[str, float]) -> dict[str, CostLine]:
    """Return the lines of all families with their factors, the usual one where no whole has any."""
    scaled = {}
    for family in {**lines.operators, **factors}:
        operator = family.partition("/")[0]
        line = lines.operators.get(family) or lines.operators.get(operator) or lines.estimates
        factor = factors.get(family, _get_usual_factor(family))
        scaled[family] = (line or STAND_IN_LINE).model_copy(update={"together": factor})
    return dict(sorted(scaled.items()))
