"""Factors for the lines of a linear cost model, fitted to the times of whole models.

A library that sees a whole fuses elementwise operators into what makes their inputs, and keeps tensors
in layouts of its own. So the time of a whole is not the sum of what its operators take alone. The factor
`together` of a line is what operators of this family take within a whole over what they take alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
import scipy

from byoc.costs._line_fitting import fit_linear_model
from byoc.costs._measured_costs import STAND_IN_LINE, CostLine, CostTable, Linear
from byoc.costs._task import Task

# Weight of a factor's distance from the usual one, against the relative error of a whole: chosen by how
# well models are predicted that the fit has not seen.
_PULL = 0.05
_USUAL, _USUAL_FUSED = 0.9, 0.3
_LEAST_WHOLES = 3


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
    rows = np.vstack([matrix, np.sqrt(_PULL) * np.eye(len(families))])
    targets = np.concatenate([np.ones(len(known)), np.sqrt(_PULL) * usual])
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
