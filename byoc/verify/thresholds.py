"""What errors are allowed, by dtype: a share of the range, units in the last place, or a ratio in dB."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from byoc.errors import InputError, nearest

Measure = Literal["relative", "units", "dB"]

TOLERANCE: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""The largest error as a share of what was expected's range; whatever is not here must be equal."""

ROUNDED = 6e-2
"""The least of these for the outputs of a whole quantized network, in which single steps add up.

onnxruntime's own optimizations move the outputs of trained quantized networks by so much.
"""

_ROUNDINGS = 4
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LEAST_RANGE: Mapping[str, float] = {
    dtype: min(1.0, _ROUNDINGS * epsilon / TOLERANCE[dtype]) for dtype, epsilon in _EPSILON.items()
}
"""What a range counts as at least, as a share of the largest magnitude: float32 4.8e-3, float16 0.39,
bfloat16 0.63.

It is where `TOLERANCE` of the range comes to four times the dtype's epsilon at that magnitude. Sums
added in another order differ by as much, so no smaller error says that anything is wrong.
"""

QUANTIZED = "quantized"
"""What `--threshold` calls integers that stand for real numbers."""


@dataclass(frozen=True)
class Thresholds:
    """How far off a tensor may be.

    `relative` has for each floating-point dtype the largest error as a share of the expected range. With
    `signal_to_noise` (dB) that is what is asked of floats instead. Quantized integers may differ by
    `units` of their last place; other integers, booleans and texts must be equal. `asked` are the dtypes
    that the user has set, and `least_range` is what `lowered` makes of `LEAST_RANGE`.
    """

    relative: Mapping[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    units: float = 1.0
    signal_to_noise: float | None = None
    asked: frozenset[str] = frozenset()
    least_range: float = 0.0

    def of(self, dtype: str, quantized: bool) -> tuple[float, Measure]:
        """Return what bounds the error of a tensor, and what it is measured in."""
        if dtype in self.relative and self.signal_to_noise is not None:
            return self.signal_to_noise, "dB"
        if quantized and "int" in dtype:
            return self.units, "units"
        return self.relative.get(dtype, 0.0), "relative"

    def scale(self, dtype: str, span: float, magnitude: float) -> float:
        """Return what the largest error of floats is told as a share of; never 0.

        It is the range `span` of what was expected, but no less than `LEAST_RANGE` of its largest
        `magnitude`, and that itself where all are the same.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return max(span, least * magnitude) if span else magnitude or 1.0

    def lowered(self, dtype: str) -> "Thresholds":
        """Return the thresholds where something is computed in a dtype: none is below that of it.

        What the user has set stays.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return replace(self._at_least(self.relative.get(dtype, 0.0)), least_range=least)

    def rounded(self) -> "Thresholds":
        """Return the thresholds for the outputs of a whole quantized network; what was set stays."""
        return self._at_least(ROUNDED)

    def _at_least(self, least: float) -> "Thresholds":
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
