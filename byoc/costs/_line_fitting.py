"""Fitting lines to measured costs: the time of an operator per operation, byte and call."""

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from byoc.costs._measured_costs import CostLine, CostTable, Linear, Measurement
from byoc.costs._task import list_families

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
