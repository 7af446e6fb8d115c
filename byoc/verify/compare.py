"""Comparing outputs: the largest error of each, relative to the range of what was expected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# The largest error as a share of the expected output's range; whatever is not here must be equal.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far an output is off. `relative` is `absolute` over the expected range (max - min).

    Infinite when dtype or shape differ, or one side is not finite where the other is.
    """

    name: str
    dtype: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def within(self) -> bool:
        """Return whether the error is at most the tolerance."""
        return self.relative <= self.tolerance


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all outputs; `against` says what the bundle was compared with."""

    against: str
    outputs: tuple[OutputError, ...]

    @property
    def passed(self) -> bool:
        """Return whether every output is within its tolerance."""
        return all(output.within for output in self.outputs)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest error over tolerance; None when there are no outputs."""
        return max(self.outputs, key=_excess, default=None)


def compare(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterable[OutputError]:
    """Yield the error of each expected output; a sequence is compared element by element."""
    for name, value in expected.items():
        got = actual.get(name)
        if isinstance(value, list) and isinstance(got, list) and len(value) == len(got):
            for i, (one, other) in enumerate(zip(value, got, strict=True)):
                yield _error(f"{name}[{i}]", one, other)
        elif isinstance(value, list) or isinstance(got, list):
            yield OutputError(name, "sequence", np.inf, np.inf, 0.0)
        else:
            yield _error(name, value, got)


def _error(name: str, expected: Any, actual: Any) -> OutputError:
    wanted, got = np.asarray(expected), np.asarray(actual)
    dtype = str(wanted.dtype)
    tolerance = TOLERANCE.get(dtype, 0.0)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return OutputError(name, dtype, np.inf, np.inf, tolerance)
    if dtype not in TOLERANCE:
        off = 0.0 if np.array_equal(wanted, got) else np.inf
        return OutputError(name, dtype, off, off, tolerance)
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    usual = np.isfinite(wanted)
    if not np.array_equal(wanted[~usual], got[~usual], equal_nan=True) or not np.all(
        np.isfinite(got[usual])
    ):
        return OutputError(name, dtype, np.inf, np.inf, tolerance)
    values = wanted[usual]
    absolute = float(np.max(np.abs(values - got[usual]), initial=0.0))
    span = float(np.ptp(values)) if values.size else 0.0
    scale = span or float(np.max(np.abs(values), initial=0.0)) or 1.0
    return OutputError(name, dtype, absolute, absolute / scale, tolerance)


def _excess(output: OutputError) -> tuple[bool, float]:
    return (not output.within, output.relative)
