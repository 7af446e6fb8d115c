"""Calibrators: from the observed values of a tensor to the range that it is quantized over.

All use each tensor's least and greatest value over all samples; some also count its values in a
histogram between these in a second pass. A result does therefore not depend on the order of samples, and
equals that of a histogram of all values at once, in memory that does not grow with the samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.quantization._range_search import find_best_range, find_best_threshold, find_entropy_range
from byoc.quantization._ranges import Range

BINS = 2048  # as TensorRT and onnxruntime's percentile calibrator count in

Options = Mapping[str, bool | int | float]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of a tensor's values: `counts[i]` of them lie between `edges[i]` and `edges[i + 1]`.

    `low` and `high` are the least and the greatest of the values.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float32]
    low: float
    high: float


def count_values(values: NDArray[np.float32], ends: tuple[float, float]) -> NDArray[np.int64]:
    """Return the number of values in each of `BINS` bins between two ends."""
    return np.histogram(values, BINS, _to_float32(ends))[0]


def find_edges(ends: tuple[float, float]) -> NDArray[np.float32]:
    """Return the edges of the bins that `count` uses."""
    edges = np.histogram_bin_edges(np.zeros(0, np.float32), BINS, _to_float32(ends))
    return edges.astype(np.float32)


def _to_float32(ends: tuple[float, float]) -> Any:
    """Return ends in the type of the values, in which onnxruntime's calibrators compute their bins."""
    return tuple(map(np.float32, ends))


@dataclass(frozen=True)
class Calibrator:
    """A calibrator; its dataclass fields are its options.

    Unless overridden, the histogram ranges from minus to plus the greatest magnitude of all values.
    """

    name: ClassVar[str]
    needs_histogram: ClassVar[bool] = True
    symmetric: bool = False
    """Whether the range is symmetric around zero."""

    def find_ends(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the histogram of a tensor with values from `low` to `high`."""
        most = max(abs(low), abs(high))
        return -most, most

    def select_values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values of a tensor that the histogram counts."""
        return values

    def make_range(self, low: float, high: float) -> Range:
        """Return the range between two ends, made symmetric if that is an option taken."""
        most = max(abs(low), abs(high))
        return Range(-most, most) if self.symmetric else Range(low, high)

    def choose_range(self, seen: Histogram) -> Range:
        """Return the range to quantize over: here from the least value to the greatest."""
        return self.make_range(seen.low, seen.high)


@dataclass(frozen=True)
class MinMax(Calibrator):
    """The range from the least value to the greatest."""

    name: ClassVar[str] = "minmax"
    needs_histogram: ClassVar[bool] = False


@dataclass(frozen=True)
class Percentile(Calibrator):
    """The middle `percentile` per cent of the values, or of their magnitudes if symmetric.

    To the edge of a bin, as onnxruntime's calibrator computes it.
    """

    name: ClassVar[str] = "percentile"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        """Raise InputError for a percentile out of bounds."""
        if not 0 < self.percentile <= 100:
            raise InputError(f"the percentile is {self.percentile:g}: must be above 0 and at most 100")

    def find_ends(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the values, or of their magnitudes if symmetric."""
        begin, end = super().find_ends(low, high)
        return (0.0 if self.symmetric else begin), end

    def select_values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values, or their magnitudes if symmetric."""
        return np.absolute(values) if self.symmetric else values

    def choose_range(self, seen: Histogram) -> Range:
        """Return the range, which does not exceed the values."""
        shares = np.cumsum(seen.counts / seen.counts.sum())
        if self.symmetric:
            high = seen.edges[np.searchsorted(shares, self.percentile / 100)]
            low = -high
        else:
            cut = (100 - self.percentile) / 200
            low, high = seen.edges[np.searchsorted(shares, (cut, 1 - cut))]
        return self.make_range(max(float(low), seen.low), min(float(high), seen.high))


@dataclass(frozen=True)
class Entropy(Calibrator):
    """The range with the least relative entropy between the values and their quantization.

    The search is around zero; the result does not exceed the values.
    """

    name: ClassVar[str] = "entropy"

    def choose_range(self, seen: Histogram) -> Range:
        """Return the range."""
        low, high = find_entropy_range(seen.counts, seen.edges)
        return self.make_range(max(low, seen.low), min(high, seen.high))


@dataclass(frozen=True)
class MSE(Calibrator):
    """The range with the least mean squared error of quantization to `bits` bits."""

    name: ClassVar[str] = "mse"
    bits: int = 8

    def __post_init__(self) -> None:
        """Raise InputError for a number of bits out of bounds."""
        if not 2 <= self.bits <= 16:
            raise InputError(f"{self.bits} bits: tensors are quantized to 2 to 16")

    def find_ends(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the values and zero, or of the magnitudes and zero."""
        if self.symmetric:
            return 0.0, max(abs(low), abs(high))
        return min(low, 0.0), max(high, 0.0)

    def select_values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values except zeros, which are quantized exactly, or their magnitudes."""
        rest: NDArray[np.float32] = values[values != 0]
        return np.absolute(rest) if self.symmetric else rest

    def choose_range(self, seen: Histogram) -> Range:
        """Return the range, which includes zero."""
        if self.symmetric:
            most = find_best_threshold(seen.counts, seen.edges, self.bits)
            return Range(-most, most)
        return Range(*find_best_range(seen.counts, seen.edges, self.bits))


CALIBRATORS: dict[str, type[Calibrator]] = {
    method.name: method for method in (MinMax, Percentile, Entropy, MSE)
}
"""The calibrators by name."""


def find_calibrator(name: str, **options: Any) -> Calibrator:
    """Return a calibrator by its name, with options; an option that is None counts as not given.

    Raises InputError for an unknown name or option.
    """
    if name not in CALIBRATORS:
        hint = suggest_nearest(name, CALIBRATORS)
        raise InputError(f"no calibrator '{name}'{hint}; there are {', '.join(CALIBRATORS)}")
    kind = CALIBRATORS[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in kind.__dataclass_fields__:
            raise InputError(f"the calibrator {name} has no option '{key}'")
    return kind(**given)
