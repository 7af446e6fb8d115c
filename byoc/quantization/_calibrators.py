"""Calibrators: from the observed values of a tensor to its range.

All use each tensor's least and greatest value over all samples; some also count its values in a
histogram between these in a second pass. A result does therefore not depend on the order of samples, and
equals that of a histogram of all values at once, in memory that does not grow with the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, suggest_nearest
from byoc.support import make_file_error

if TYPE_CHECKING:
    from byoc.model import Model


CHANNELS = 1
"""The axis of a tensor that has its channels."""


# The ranges of a model's tensors, which scales are computed from.
#
# A calibrator measures the range of each tensor's values. A user may give scale and zero point
# instead, which are then used exactly. Scales and zero points are those of ONNX's QuantizeLinear:
# `real = scale * (quantized - zero_point)`.

DTYPES = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (4, 8, 16)
    for sign in ("", "u")
}
"""The types that tensors are quantized to, with their least and largest value."""

EIGHT_BITS = ("int8", "uint8")
"""Those of 8 bits."""

EIGHT_BIT_STEPS = 255
"""The steps of 8 bits, from the least integer to the largest."""

T = TypeVar("T")
_MAX_HINTS = 5  # names with a suggestion, in a sentence


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a tensor's values that a calibrator chose; both ends are finite.

    `data` are the least and the greatest value, where they are not the ends, and `clipped` is the share
    of the values that are outside of the range: of those other than 0 for the method `mse`.
    """

    low: float
    high: float
    data: tuple[float, float] | None = None
    clipped: float = 0.0

    @property
    def width(self) -> float:
        """The width that the steps of integers divide: that of the range extended to 0."""
        return max(self.high, 0.0) - min(self.low, 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class ChannelRange:
    """The ranges of a tensor's channels (axis 1): `low` and `high` are float64, `[C]`."""

    low: NDArray[Any]
    high: NDArray[Any]


@dataclass(frozen=True, slots=True)
class GivenQuantization:
    """A quantization of a tensor given by the user, which is used exactly.

    One scale and zero point for the whole tensor if `axis` is None, otherwise one for each index on that
    axis (negative axes count from the end). `dtype` is one of `DTYPES`.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int | None = None


@dataclass(frozen=True)
class Ranges:
    """The ranges of a model's tensors, and their origin.

    `method` is the calibrator's name with its `options`, `samples` the number of samples, `source` the
    name of the data, `random` whether it was random data, `model` the model's name. `notes` are
    sentences for the user. A tensor that is not in `tensors` has no range and cannot be quantized.
    `channels` are the ranges of the channels of tensors that may have a scale for each, `usual` those
    that nine tenths of the values of outputs lie in. `shifts` are
    taken from biases, `[C]` by what the node that reads one makes; `weights`, by their names, are
    quantized in the place of the model's, with their scales. Files have neither.
    """

    method: str
    samples: int
    source: str
    tensors: Mapping[str, Range | GivenQuantization]
    random: bool = False
    model: str = ""
    options: Mapping[str, bool | int | float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    shifts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    channels: Mapping[str, ChannelRange] = field(default_factory=dict)
    usual: Mapping[str, Range] = field(default_factory=dict)

    def check_names(self, model: Model, path: Path) -> None:
        """Raise InputError if a model lacks a named tensor, or has it with another number of channels.

        Tensors in the bodies of If, Loop and Scan count as well, and those that clean-up dropped. `path`
        is the file for the message.
        """
        known = {
            name
            for graph in model.index.walk()
            for name in (*graph.inputs, *graph.producers, *graph.stored_tensors)
        }
        unknown = [name for name in self.tensors if name not in known and name not in model.lost]
        if len(unknown) == len(self.tensors) > _MAX_HINTS:
            raise make_file_error(
                path, ["tensors: the model has none of them; are they those of another model?"]
            )
        if unknown:
            hints = {name: suggest_nearest(name, known) for name in unknown[:_MAX_HINTS]}
            reason = "the model has no such tensor"
            raise make_file_error(
                path, [f"tensors.{name}: {reason}{hints.get(name, '')}" for name in unknown]
            )
        problems = []
        for name, each in self.channels.items():
            found = (model.index.get_shape(name) or ())[CHANNELS : CHANNELS + 1]
            if found and isinstance(found[0], int) and found[0] != len(each.low):
                given = f"{len(each.low)} ranges, and the tensor has {found[0]} channels"
                problems.append(f"tensors.{name}.channels: {given}")
        if problems:
            raise make_file_error(path, problems)

    def add_twins(self, twins: Mapping[str, str]) -> Ranges:
        """Return the ranges with those of twins: tensors with one more axis of 1 before the last.

        `twins` maps each to the tensor whose values it has.
        """

        def add(known: Mapping[str, T]) -> dict[str, T]:
            return {**{twin: known[name] for twin, name in twins.items() if name in known}, **known}

        moved = {
            twin: replace(given, axis=_move_axis(given.axis))
            for twin, given in add(self.tensors).items()
            if twin in twins and isinstance(given, GivenQuantization) and given.axis is not None
        }
        return replace(
            self,
            tensors={**add(self.tensors), **moved},
            channels=add(self.channels),
            usual=add(self.usual),
        )


def _move_axis(axis: int) -> int:
    """Return an axis of a tensor of rank 3 in its twin of rank 4."""
    return {-3: 0, -2: 1, 2: 3}.get(axis, axis)


_MANY = 1 << 15  # values of a tensor in a sample, of which not all need to count
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

    def find_share_outside(self, found: Range) -> float:
        """Return the share of the values in bins whose middle is outside of a range."""
        middles = (self.edges[:-1].astype(np.float64) + self.edges[1:]) / 2
        outside = self.counts[(middles < found.low) | (middles > found.high)].sum()
        return float(outside / max(1, self.counts.sum()))


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


# Calibrators: from the observed values of a tensor to the range that it is quantized over.


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
    """The range with the least mean squared error of quantization to `bits` bits.

    Of many values of a tensor in a sample 32,768 or so count, at equal distances.
    """

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
        some = values[:: values.size // _MANY | 1]
        rest: NDArray[np.float32] = some[some != 0]
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
            takers = [each for each in CALIBRATORS if key in CALIBRATORS[each].__dataclass_fields__]
            hint = f"; {' and '.join(takers)} has it (--method)" if takers else ""
            raise InputError(f"the calibrator {name} has no option '{key}'{hint}")
    return kind(**given)


# Clipping thresholds that minimize the error of quantization: mean squared, or relative entropy.
#
# Mean squared error: a value `c` beyond an end `b` of the range is clipped, an error of `(c -
# b)**2`; a value inside is rounded to a step of `(high - low) / (levels - 1)`, a mean error of
# `step**2 / 12` (Widrow, "Statistical analysis of amplitude-quantized sampled-data systems", AIEE
# Transactions 79, 1961). The trade-off between the two is that of Banner et al., "Post training
# 4-bit quantization of convolutional networks for rapid-deployment", NeurIPS 2019; they fit a
# distribution, here the histogram itself is used, with the values of a bin at its middle. Zero is
# quantized exactly, so histograms exclude it.
#
# Relative entropy: Migacz, "8-bit inference with TensorRT", GTC 2017: choose the range around zero
# in which the histogram, with everything outside added to its last bins, has the least relative
# entropy to itself in as many bins as there are levels. The steps, including whole-number
# arithmetic, are those of onnxruntime's calibrator and give the same result, without its Python
# loop over the bins.

Float64Array = NDArray[np.float64]
_END_STRIDE = 16  # of the ends that are tried first


def find_best_range(
    counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int
) -> tuple[float, float]:
    """Return the best ends of a range that includes zero; each end is a histogram edge or zero.

    `counts[i]` values lie between `edges[i]` and `edges[i + 1]`; the edges rise. All levels of `bits`
    bits are for the one range.
    """
    ends = np.asarray(edges, np.float64)
    middles = (ends[:-1] + ends[1:]) / 2
    lows, highs = np.append(ends[ends < 0], 0.0), np.append(0.0, ends[ends > 0])
    left, below = _clipping_errors(-middles[::-1], counts[::-1], -lows)
    right, above = _clipping_errors(middles, counts, highs)
    total = int(counts.sum())

    def find_errors(rows: NDArray[Any], columns: NDArray[Any]) -> Float64Array:
        inside = total - below[rows, np.newaxis] - above[columns]
        step = (highs[columns] - lows[rows, np.newaxis]) / (2**bits - 1)
        return np.asarray(left[rows, np.newaxis] + right[columns] + inside * step**2 / 12)

    # A few ends give a bound; what more than that is clipped by either end alone needs no look.
    some, others = (np.arange(0, each.size, _END_STRIDE) for each in (lows, highs))
    bound = find_errors(some, others).min()
    rows, columns = np.flatnonzero(left <= bound), np.flatnonzero(right <= bound)
    errors = find_errors(rows, columns)
    row, column = np.unravel_index(np.argmin(errors), errors.shape)
    return float(lows[rows[row]]), float(highs[columns[column]])


def find_best_threshold(counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int) -> float:
    """Return the best edge to clip magnitudes at, for a range that is symmetric around zero.

    `counts[i]` magnitudes lie between `edges[i]` and `edges[i + 1]`; the edges rise from zero. The
    levels of `bits` bits, less one, cover both signs.
    """
    ends = np.asarray(edges, np.float64)
    clipped, above = _clipping_errors((ends[:-1] + ends[1:]) / 2, counts, ends)
    step = ends / (2 ** (bits - 1) - 1)
    errors = clipped + (counts.sum() - above) * step**2 / 12
    return float(ends[np.argmin(errors)])


def _clipping_errors(
    middles: Float64Array, counts: NDArray[np.int64], ends: Float64Array
) -> tuple[Float64Array, NDArray[np.int64]]:
    """Return the clipping error for each end, and the number of values that it clips.

    There are `counts` values at rising `middles`. The sum of `n * (c - end)**2` over all values above
    the end is computed from the sums of n, nc and nc².
    """
    first = np.searchsorted(middles, ends, "right")
    number = _reverse_cumsum(counts)[first]
    linear = _reverse_cumsum(counts * middles)[first]
    square = _reverse_cumsum(counts * middles**2)[first]
    return square - 2 * ends * linear + ends**2 * number, number


def _reverse_cumsum(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of the values from each position on; after the last one it is zero."""
    return np.append(np.cumsum(values[::-1])[::-1], 0).astype(values.dtype)


_LEVELS = 128  # of 8 bits with a sign
_EMPTY_SHARE = 1e-4  # what a bin without values counts, since relative entropy knows no zero


def find_entropy_range(counts: NDArray[np.int64], edges: NDArray[np.float32]) -> tuple[float, float]:
    """Return the best ends of a range around the middle of a histogram, which is zero.

    `counts[i]` values lie between `edges[i]` and `edges[i + 1]`; there are more than 128 bins.
    """
    middle = counts.size // 2
    best, least = (0, 0), np.inf
    for reach in range(_LEVELS // 2, middle + 1):
        start, end = middle - reach, min(middle + reach + 1, counts.size)
        entropy = _relative_entropy(counts, start, end)
        if entropy < least or best == (0, 0):
            best, least = (start, end), entropy
    return float(edges[best[0]]), float(edges[best[1]])


def _relative_entropy(counts: NDArray[np.int64], start: int, end: int) -> float:
    """Return the relative entropy of clipping to some bins; infinite if they are empty."""
    inside = counts[start:end]
    clipped = inside.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[end:].sum()
    width = inside.size // _LEVELS
    whole = _LEVELS * width
    levels = inside[:whole].reshape(_LEVELS, width).sum(axis=1)
    levels[-1] += inside[whole:].sum()
    filled = np.count_nonzero(clipped[:whole].reshape(_LEVELS, width), axis=1)
    reconstructed = np.zeros_like(inside)
    reconstructed[:whole] = np.repeat(levels // np.maximum(filled, 1) * (filled > 0), width)
    if not reconstructed.any():
        return float(np.inf)
    real, quantized = _smooth_distribution(clipped), _smooth_distribution(reconstructed)
    return float(np.sum(real * np.log(real / quantized)))


def _smooth_distribution(counts: NDArray[np.int64]) -> Any:
    """Return counts as shares of their sum; zeros get a small share, taken from the others."""
    empty = counts == 0
    number = int(np.count_nonzero(empty))
    share = np.float32(_EMPTY_SHARE * number / (counts.size - number))
    smooth = np.where(empty, np.float32(_EMPTY_SHARE), counts.astype(np.float32) - share)
    return smooth / np.sum(smooth)
