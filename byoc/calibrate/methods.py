"""From what was seen of a tensor to the range that it is quantized over: the calibrators.

All look at each tensor's least and greatest value over all samples; those that need more count its
values in a histogram between these in a second pass. So a result does not depend on the samples' order,
and is what a histogram of all values at once gives, in memory that does not grow with the samples.
"""

from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from byoc.calibrate.clipping import best_range, best_threshold
from byoc.calibrate.entropy import entropy_range
from byoc.errors import InputError, nearest
from byoc.quantize.ranges import Range
from byoc.runtime.onnxrt import calibrators

BINS = 2048  # as TensorRT and onnxruntime's percentile calibrator count in

Options = Mapping[str, bool | int | float]


@dataclass(frozen=True, eq=False)
class Histogram:
    """How often a tensor's values lie between some edges: `counts[i]` from `edges[i]` to `edges[i + 1]`.

    `low` and `high` are the least and the greatest of the values.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float32]
    low: float
    high: float


def count(values: NDArray[np.float32], ends: tuple[float, float]) -> NDArray[np.int64]:
    """Return how many values are in each of `BINS` bins between two ends."""
    return np.histogram(values, BINS, _float32(ends))[0]


def edges_between(ends: tuple[float, float]) -> NDArray[np.float32]:
    """Return the edges of the bins that `count` counts in."""
    edges = np.histogram_bin_edges(np.zeros(0, np.float32), BINS, _float32(ends))
    return edges.astype(np.float32)


def _float32(ends: tuple[float, float]) -> Any:
    """Return ends in the type of the values, as onnxruntime's calibrators work out their bins in it."""
    return tuple(map(np.float32, ends))


class Method(Protocol):
    """A calibrator: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]
    counts: ClassVar[bool]
    """Whether it needs histograms."""

    @property
    def symmetric(self) -> bool:
        """Whether the range is from minus to plus the same."""
        ...

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Return where the histogram of a tensor begins and ends whose values are `low` to `high`."""
        ...

    def values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what is counted of a tensor's values."""
        ...

    def range(self, seen: Histogram) -> Range:
        """Return the range that is to be quantized."""
        ...


class _Whole:
    """What most calibrators have in common: bins from minus to plus the greatest magnitude."""

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Return where the histogram begins and ends."""
        most = max(abs(low), abs(high))
        return -most, most

    def values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what is counted: all values."""
        return values


@dataclass(frozen=True)
class MinMax(_Whole):
    """From the least value to the greatest."""

    name: ClassVar[str] = "minmax"
    counts: ClassVar[bool] = False
    symmetric: bool = False

    def range(self, seen: Histogram) -> Range:
        """Return the range; of what was seen only `low` and `high` count."""
        return _mirrored(Range(seen.low, seen.high), self.symmetric)


@dataclass(frozen=True)
class Percentile(_Whole):
    """The middle `percentile` per cent of the values, or of their magnitudes if symmetric.

    By onnxruntime's calibrator, to the edge of a bin.
    """

    name: ClassVar[str] = "percentile"
    counts: ClassVar[bool] = True
    percentile: float = 99.99
    symmetric: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for what is no percentile."""
        if not 0 < self.percentile <= 100:
            raise InputError(f"the percentile is {self.percentile:g}: must be above 0 and at most 100")

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Return where the histogram of the values, or of their magnitudes, begins and ends."""
        begin, end = super().ends(low, high)
        return (0.0 if self.symmetric else begin), end

    def values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values, or their magnitudes."""
        return np.absolute(values) if self.symmetric else values

    def range(self, seen: Histogram) -> Range:
        """Return the range, which does not go beyond the values."""
        collector = calibrators().HistogramCollector(
            method=self.name,
            symmetric=self.symmetric,
            num_bins=BINS,
            num_quantized_bins=0,  # this and the scenario are other methods'
            percentile=self.percentile,
            scenario="same",
        )
        ends = np.float32(seen.low), np.float32(seen.high)
        collector.histogram_dict = {"": (seen.counts, seen.edges, *ends)}
        with redirect_stdout(StringIO()):  # it tells what it does
            low, high, *_ = collector.compute_percentile()[""]
        return _mirrored(Range(float(low), float(high)), self.symmetric)


@dataclass(frozen=True)
class Entropy(_Whole):
    """The range in which the quantized values tell most of the values, by relative entropy.

    See `byoc.calibrate.entropy`. The search is around zero; the result does not go beyond the values.
    """

    name: ClassVar[str] = "entropy"
    counts: ClassVar[bool] = True
    symmetric: bool = False

    def range(self, seen: Histogram) -> Range:
        """Return the range."""
        low, high = entropy_range(seen.counts, seen.edges)
        return _mirrored(Range(max(low, seen.low), min(high, seen.high)), self.symmetric)


@dataclass(frozen=True)
class MSE:
    """The range with the least mean squared error of quantization to `bits` bits, by the histogram.

    See `byoc.calibrate.clipping`.
    """

    name: ClassVar[str] = "mse"
    counts: ClassVar[bool] = True
    bits: int = 8
    symmetric: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for bits that nothing is quantized to."""
        if not 2 <= self.bits <= 16:
            raise InputError(f"{self.bits} bits: tensors are quantized to 2 to 16")

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the values and zero, or of the magnitudes and zero."""
        if self.symmetric:
            return 0.0, max(abs(low), abs(high))
        return min(low, 0.0), max(high, 0.0)

    def values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return all that is not zero, which is quantized exactly, or the magnitudes of that."""
        rest: NDArray[np.float32] = values[values != 0]
        return np.absolute(rest) if self.symmetric else rest

    def range(self, seen: Histogram) -> Range:
        """Return the range; zero is in it."""
        if self.symmetric:
            most = best_threshold(seen.counts, seen.edges, self.bits)
            return Range(-most, most)
        return Range(*best_range(seen.counts, seen.edges, self.bits))


METHODS: dict[str, type[MinMax | Percentile | Entropy | MSE]] = {
    method.name: method for method in (MinMax, Percentile, Entropy, MSE)
}
"""The calibrators by name."""


def find_method(name: str, **options: Any) -> Method:
    """Return a calibrator by its name, with options; one that is None counts as not given.

    Raises InputError for a name or an option that there is not.
    """
    if name not in METHODS:
        raise InputError(
            f"no calibrator '{name}'{nearest(name, METHODS)}; there are {', '.join(METHODS)}"
        )
    kind = METHODS[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in kind.__dataclass_fields__:
            raise InputError(f"the calibrator {name} has no option '{key}'")
    return kind(**given)


def options_of(method: Method) -> dict[str, bool | int | float]:
    """Return the options of a calibrator, by name."""
    return dict(vars(method))


def _mirrored(found: Range, symmetric: bool) -> Range:
    if not symmetric:
        return found
    most = max(abs(found.low), abs(found.high))
    return Range(-most, most)
