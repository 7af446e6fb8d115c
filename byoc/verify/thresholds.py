"""What errors are allowed, by dtype: a share of the range, units in the last place, or a ratio in dB."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from byoc.errors import InputError, nearest

Measure = Literal["relative", "units", "dB"]

TOLERANCE: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""The largest error as a share of what was expected's range; whatever is not here must be equal."""

QUANTIZED = "quantized"
"""What `--threshold` calls integers that stand for real numbers."""


@dataclass(frozen=True)
class Thresholds:
    """How far off a tensor may be.

    `relative` has for each floating-point dtype the largest error as a share of the expected range. With
    `signal_to_noise` (dB) that is what is asked of floats instead. Quantized integers may differ by
    `units` of their last place; other integers, booleans and texts must be equal. `asked` are the dtypes
    that the user has set.
    """

    relative: Mapping[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    units: float = 1.0
    signal_to_noise: float | None = None
    asked: frozenset[str] = frozenset()

    def of(self, dtype: str, quantized: bool) -> tuple[float, Measure]:
        """Return what bounds the error of a tensor, and what it is measured in."""
        if dtype in self.relative and self.signal_to_noise is not None:
            return self.signal_to_noise, "dB"
        if quantized and "int" in dtype:
            return self.units, "units"
        return self.relative.get(dtype, 0.0), "relative"

    def lowered(self, dtype: str) -> "Thresholds":
        """Return the thresholds where something is computed in a dtype: none is below that of it.

        What the user has set stays.
        """
        least = self.relative.get(dtype, 0.0)
        lowered = {
            name: value if name in self.asked else max(value, least)
            for name, value in self.relative.items()
        }
        return replace(self, relative=lowered)


DEFAULT = Thresholds()


def read_thresholds(given: Mapping[str, str], signal_to_noise: float | None = None) -> Thresholds:
    """Return the thresholds that a user gave by dtype, or under `quantized` in units, over the defaults.

    Raises InputError for another name, or what is no number of at least 0.
    """
    names = (*TOLERANCE, QUANTIZED)
    values = {}
    for name, text in given.items():
        if name not in names:
            known = ", ".join(names)
            raise InputError(f"threshold {name}: no such dtype{nearest(name, names)}; there are {known}")
        values[name] = _number(name, text)
    units = values.pop(QUANTIZED, DEFAULT.units)
    return Thresholds({**TOLERANCE, **values}, units, signal_to_noise, frozenset(values))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"threshold {name}: '{text}' is not a number of at least 0")
    return value
