"""The measurement of a quantized layer alone: its largest error, and what it is off by on average.

A right machine rounds some results to the neighbouring integer, and up as often as down. So no result
is more than one unit off, and no channel is off on average: a bias that is missing, a zero point or a
scale that is another one moves all results of a channel to one side, however little. Results of one
real value are rounded alike: the white of a page is one result, however many pixels it has. How far a
mean may be off depends on the fractions that real values have: where all lie just below a half, as those
of a pool over two pixels, an error of a hundredth of a unit moves every one of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.verification._layer_probe import LayerRun, QuantizedLayer
from byoc.verification._verification_result import LayerError

Array = NDArray[Any]

_MEAN_SHARE = 1 / 8  # of a unit, that a mean may be off, and an error before rounding
_DEVIATIONS = 4.0  # of a mean of that many results
_LEAST_RESULTS = 16
_TIE = 1e-3  # how near to a half, in units, rounding may go either way
_EPSILON = float(np.finfo(np.float32).eps)
_STEPS = 16  # of a unit: real values in the same step count as one
_TABLE = 2**22  # steps of all channels that a table is made of


def measure_layer(layer: QuantizedLayer, runs: Sequence[LayerRun], units: float) -> LayerError:
    """Return the error of a layer over several runs; infinite where shapes or dtypes differ.

    `units` is the most that a result may be off.
    """
    if any(
        run.actual.shape != run.expected.shape or run.actual.dtype != run.expected.dtype for run in runs
    ):
        infinite = float("inf")
        return LayerError(layer.name, layer.op, layer.tensor, infinite, 1.0, 0.0, 0.0, "", units)
    results = [_compare_run(run) for run in runs]
    errors = [result.errors for result in results]
    largest = max((float(np.max(np.abs(error), initial=0.0)) for error in errors), default=0.0)
    count = sum(error.size for error in errors)
    differing = sum(int(np.count_nonzero(error)) for error in errors) / max(count, 1)
    mean, allowed, where = 0.0, _MEAN_SHARE, ""
    if differing:
        means = list(_list_means(results))
        if means:
            mean, allowed, where = max(means, key=lambda each: abs(each[0]) - each[1])
    return LayerError(
        layer.name, layer.op, layer.tensor, largest, differing, mean, allowed, where, units
    )


@dataclass(frozen=True, eq=False)
class _RealValues:
    """Real values before they were rounded, as arrays of the layer's shape.

    `steps` number them by sixteenths of a unit. `rises` and `falls` mark the results that an error of an
    eighth of a unit before rounding would move up, or down.
    """

    steps: NDArray[np.int64]
    rises: NDArray[np.bool_]
    falls: NDArray[np.bool_]

    def select(self, indices: Any) -> "_RealValues":
        """Return those at some indices."""
        return _RealValues(self.steps[indices], self.rises[indices], self.falls[indices])


@dataclass(frozen=True, eq=False)
class _Results:
    """The results of a layer on one run, arrays of its shape.

    `errors` are in units, `decided` marks those that rounding decides. `real` is None where the real
    values are not known.
    """

    errors: Array
    decided: NDArray[np.bool_]
    real: _RealValues | None = None

    def take_end(self, axis: int, index: int) -> "_Results":
        """Return the results at one index of an axis, which remains."""
        end: tuple[Any, ...] = (*[slice(None)] * axis, [index])
        real = None if self.real is None else self.real.select(end)
        return _Results(self.errors[end], self.decided[end], real)


def _compare_run(run: LayerRun) -> _Results:
    errors = run.actual.astype(np.float64) - run.expected.astype(np.float64)
    decided = _find_decided(run)
    real = run.real
    if real is None or real.shape != errors.shape or not np.isfinite(real).all():
        return _Results(errors, decided)
    nearest = np.rint(real)
    steps = np.floor(real * _STEPS).astype(np.int64)
    rises, falls = np.rint(real + _MEAN_SHARE) != nearest, np.rint(real - _MEAN_SHARE) != nearest
    return _Results(errors, decided, _RealValues(steps, rises, falls))


def _find_decided(run: LayerRun) -> NDArray[np.bool_]:
    """Mark the results that rounding decides: not clamped, and not halfway between two integers."""
    expected, actual = run.expected.astype(np.float64), run.actual.astype(np.float64)
    if not expected.size:
        return np.zeros(expected.shape, bool)
    ends = expected.min(), expected.max()
    decided = np.ones(expected.shape, bool)
    if ends[0] < ends[1]:
        for end in ends:
            decided &= (expected != end) | (actual != end)
    if run.real is not None and run.real.shape == expected.shape:
        near = np.maximum(_TIE, 4 * _EPSILON * np.abs(run.real))
        halfway = np.abs(np.abs(run.real - np.floor(run.real)) - 0.5) < near
        decided &= ~(halfway & (np.abs(actual - expected) <= 1))
    return decided


def _list_means(results: Sequence[_Results]) -> Iterator[tuple[float, float, str]]:
    """Yield mean errors: each mean, what is allowed, and where it is, empty for the whole tensor.

    They are those of the whole, of each channel, and of each channel at both ends of each axis of an
    image, which padding reaches.
    """
    for mean, allowed, _ in _compare_means(results, None):
        yield mean, allowed, ""
    shapes = [result.errors.shape for result in results]
    rank = len(shapes[0])
    if rank < 2 or any(len(shape) != rank for shape in shapes):
        return
    for axis in dict.fromkeys((1, rank - 1)):
        if len({shape[axis] for shape in shapes}) == 1:
            word = "channel" if axis == 1 or rank < 3 else "last index"
            for mean, allowed, index in _compare_means(results, axis):
                yield mean, allowed, f"{word} {index}"
    if len({shape[1] for shape in shapes}) > 1:
        return
    for axis in range(2, rank):
        for index, word in ((0, "first"), (-1, "last")):
            if all(shape[axis] > 2 for shape in shapes):
                ends = [result.take_end(axis, index) for result in results]
                for mean, allowed, channel in _compare_means(ends, 1):
                    yield mean, allowed, f"channel {channel}, {word} index of axis {axis},"


def _find_indices(shape: tuple[int, ...], axis: int | None) -> NDArray[np.int64]:
    """Return the index of each element along an axis; 0 without one."""
    if axis is None:
        return np.zeros(shape, np.int64)
    around = [1] * len(shape)
    around[axis] = -1
    return np.broadcast_to(np.arange(shape[axis]).reshape(around), shape)


def _compare_means(results: Sequence[_Results], axis: int | None) -> Iterator[tuple[float, float, int]]:
    """Yield the mean error at each index of an axis with enough results: mean, allowed, index."""
    indices = np.concatenate([_find_indices(each.errors.shape, axis)[each.decided] for each in results])
    if not indices.size:
        return
    errors = np.concatenate([each.errors[each.decided] for each in results])
    moved = [np.full(errors.shape, _MEAN_SHARE)] * 2
    real = [each.real.select(each.decided) for each in results if each.real is not None]
    if len(real) == len(results):
        steps = np.concatenate([each.steps for each in real])
        rises = np.concatenate([each.rises for each in real])
        falls = np.concatenate([each.falls for each in real])
        indices, (errors, *moved) = _average_steps(indices, steps, (errors, rises, falls))
    counts = np.bincount(indices)
    sums = [np.bincount(indices, each) for each in (errors, errors**2, *moved)]
    for index in np.flatnonzero(counts >= _LEAST_RESULTS):
        mean, square, rising, falling = (float(each[index] / counts[index]) for each in sums)
        deviation = np.sqrt(max(square - mean**2, 0.0) / counts[index])
        share = max(_MEAN_SHARE, rising if mean > 0 else falling)
        yield mean, float(share + _DEVIATIONS * deviation), int(index)


def _average_steps(
    channels: NDArray[np.int64], steps: NDArray[np.int64], values: Sequence[Array]
) -> tuple[NDArray[np.int64], list[Array]]:
    """Return the means of values in each step of a channel that has some, and the channel of each."""
    steps = steps - steps.min()
    width = int(steps.max()) + 1
    keys = channels * width + steps
    size = (int(channels.max()) + 1) * width
    if size > _TABLE:
        owners, keys = np.unique(keys, return_inverse=True)
    else:
        owners = np.arange(size)
    counts = np.bincount(keys, minlength=owners.size)
    filled = counts > 0
    means = [np.bincount(keys, each, minlength=owners.size)[filled] / counts[filled] for each in values]
    return owners[filled] // width, means
