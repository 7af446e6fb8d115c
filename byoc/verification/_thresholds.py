"""The allowed errors by dtype: a share of the range, units in the last place, or a ratio in dB."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Literal

from byoc.errors import InputError, suggest_nearest

Measure = Literal["relative", "units", "dB"]

TOLERANCE: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""The largest error as a share of the expected range; tensors of other dtypes must be equal."""

QUANTIZED_NETWORK_TOLERANCE = 6e-2
"""The largest error that noise explains, as a share of the range; rounding in floats apart.

Single steps add up in a network with quantized activations. onnxruntime's own optimizations change the
outputs of trained ones by this much.
"""

LEAST_SIGNAL_TO_NOISE = 20.0
"""The least signal-to-noise ratio (dB) where activations are integers by the operators' definition."""

_ROUNDINGS = 4
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LEAST_RANGE: Mapping[str, float] = {
    dtype: min(1.0, _ROUNDINGS * epsilon / TOLERANCE[dtype]) for dtype, epsilon in EPSILON.items()
}
"""The least range as a share of the largest magnitude: float32 4.8e-3, float16 0.39, bfloat16 0.63.

At this range `TOLERANCE` equals four times the dtype's epsilon at that magnitude. Adding in another
order makes differences of this size, so that a smaller error shows nothing wrong.
"""

QUANTIZED_THRESHOLD = "quantized"
"""The name in `--threshold` of integers that represent real numbers."""


@dataclass(frozen=True)
class Thresholds:
    """The allowed error of tensors.

    `relative` has the largest error of each floating-point dtype as a share of the expected range; with
    `signal_to_noise` (dB), that is required of floats instead. Quantized integers may differ by `units`
    in their last place; other integers, booleans and strings must be equal. `asked` are the names set
    by the user, and `least_range` is set by `for_computation_in`. With `any_equal_keys` a selection need
    not take the first one of equal keys, as ONNX has it.
    """

    relative: Mapping[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    units: float = 1.0
    signal_to_noise: float | None = None
    asked: frozenset[str] = frozenset()
    least_range: float = 0.0
    any_equal_keys: bool = False

    def limit_for(self, dtype: str, quantized: bool) -> tuple[float, Measure]:
        """Return the limit on the error of a tensor, and its measure."""
        if dtype in self.relative and self.signal_to_noise is not None:
            return self.signal_to_noise, "dB"
        if quantized and "int" in dtype:
            return self.units, "units"
        return self.relative.get(dtype, 0.0), "relative"

    def error_scale(self, dtype: str, span: float, magnitude: float) -> float:
        """Return the divisor of the error of floats; never 0.

        It is the range `span` of the expected values, at least `LEAST_RANGE` of their largest
        `magnitude`, and the magnitude itself if all values are the same.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return max(span, least * magnitude) if span else magnitude or 1.0

    def for_computation_in(self, dtype: str) -> "Thresholds":
        """Return the thresholds for a computation in a dtype: none is below that of the dtype.

        Thresholds set by the user stay.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return replace(self._at_least(self.relative.get(dtype, 0.0)), least_range=least)

    def is_asked(self, dtype: str, measure: Measure) -> bool:
        """Return whether the user set the limit on the errors of a dtype in a measure."""
        return measure == "dB" or (QUANTIZED_THRESHOLD if measure == "units" else dtype) in self.asked

    def _at_least(self, least: float) -> "Thresholds":
        raised = {
            name: value if name in self.asked else max(value, least)
            for name, value in self.relative.items()
        }
        return replace(self, relative=raised)


DEFAULT_THRESHOLDS = Thresholds()


def read_thresholds(given: Mapping[str, str], signal_to_noise: float | None = None) -> Thresholds:
    """Parse thresholds by dtype, or `quantized` in units, over the defaults.

    Raise InputError for an unknown name, a value that is not a number of at least 0, and a ratio that
    is no number.
    """
    if signal_to_noise is not None and isnan(signal_to_noise):
        raise InputError("signal-to-noise ratio nan: not a number of dB")
    names = (*TOLERANCE, QUANTIZED_THRESHOLD)
    values = {}
    for name, text in given.items():
        if name not in names:
            known = ", ".join(names)
            raise InputError(
                f"threshold {name}: no such dtype{suggest_nearest(name, names)}; there are {known}"
            )
        values[name] = _parse_threshold(name, text)
    asked = frozenset(values)
    units = values.pop(QUANTIZED_THRESHOLD, DEFAULT_THRESHOLDS.units)
    return Thresholds({**TOLERANCE, **values}, units, signal_to_noise, asked)


def _parse_threshold(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"threshold {name}: '{text}' is not a number of at least 0")
    return value
