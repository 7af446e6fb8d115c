"""Fitting lines to measured costs: what an operator takes for each operation, byte and call."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from byoc.costs.linear import Line, Linear
from byoc.costs.table import Entry, Table
from byoc.costs.task import family

Floats = NDArray[np.float64]

# Below what a profiler can tell, relative errors mean nothing.
_LEAST_SECONDS, _LEAST_JOULES = 1e-6, 1e-9
# How much a coefficient that is off the line leaned on by its own size weighs, against a measurement
# that the fit is off by its own size: next to nothing where measurements tell the coefficients apart.
_PULL = 1e-3
# A coefficient that adds less than this share to every measurement is rounding of the linear algebra,
# which differs from one processor to the next: it is 0.
_ROUNDING = 1e-9


def fitted(entries: Sequence[Entry], around: Line | None = None, typical: Floats | None = None) -> Line:
    """Return the line through entries of a table.

    Non-negative least squares (Lawson and Hanson 1974) of the relative errors, as costs range over
    orders of magnitude; `r2` is that of the seconds themselves, and below 0 where the mean fits better.
    What the measurements leave open (too few, all small, or bytes in step with operations) is as on the
    line `around`, times what the operator is off it by (ridge regression); `typical` are coefficients
    of a usual size, for those that are 0 on it. Joules get a line where every entry has them.
    """
    features = _features(entries)
    seconds = np.array([e.seconds for e in entries])
    found = _solved(features, seconds, _LEAST_SECONDS, around, typical)
    spent = [e.joules for e in entries if e.joules is not None]
    joules = None
    if len(spent) == len(entries):
        operation, byte, call = _solved(features, np.array(spent), _LEAST_JOULES).tolist()
        joules = Line(operation=operation, byte=byte, call=call)
    operation, byte, call = found.tolist()
    r2 = _r2(seconds, features @ found)
    return Line(operation=operation, byte=byte, call=call, joules=joules, r2=r2, samples=len(entries))


def fit(table: Table) -> Linear:
    """Return a linear model of a table: a line for each of its operators, one through all of them."""
    of: dict[str, list[Entry]] = {}
    for entry in table.entries:
        of.setdefault(family(entry.op, entry.attributes), []).append(entry)
    every, typical = fitted(table.entries), _typical(table.entries)
    kept = ("name", "launch", "link", "energy", "machine", "together")
    return Linear(
        kind="linear",
        description=f"fitted to {len(table.entries)} measurements",
        operators={op: fitted(entries, every, typical) for op, entries in sorted(of.items())},
        estimates=every,
        **{"else": table.otherwise},
        **{name: getattr(table, name) for name in kept},
    )


def _features(entries: Sequence[Entry]) -> Floats:
    return np.array([[e.operations, e.bytes, 1.0] for e in entries])


def _typical(entries: Sequence[Entry]) -> Floats:
    """Return what each coefficient would be if it alone made up the seconds: medians, float64 (3,)."""
    features, seconds = _features(entries), np.array([e.seconds for e in entries])
    columns = [(column[column > 0], seconds[column > 0]) for column in features.T]
    return np.array([float(np.median(s / c)) if c.size else 0.0 for c, s in columns])


def _solved(
    features: Floats,
    values: Floats,
    least: float,
    around: Line | None = None,
    typical: Floats | None = None,
) -> Floats:
    """Return the three coefficients, float64."""
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
    scale = rows.max(axis=0, initial=0.0)  # operations are 1e9 times calls: bring both near 1
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, targets)  # targets are at most 1, and so is each scaled row
    solution[solution < _ROUNDING] = 0.0
    return np.asarray(solution / scale, np.float64)


def _r2(values: Floats, predicted: Floats) -> float | None:
    """Return the coefficient of determination; None where all values are the same."""
    variance = float(((values - values.mean()) ** 2).sum())
    return 1.0 - float(((values - predicted) ** 2).sum()) / variance if variance else None
