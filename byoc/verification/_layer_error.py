"""The measurement of a quantized layer alone: its largest error, and what it is off by on average.

A right machine rounds some results to the neighbouring integer, and up as often as down. So no result
is more than one unit off, and no channel is off on average: a bias that is missing, a zero point or a
scale that is another one moves all results of a channel to one side, however little. Results of one
real value are rounded alike: the white of a page is one result, however many pixels it has.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.verification._layer_probe import LayerRun, QuantizedLayer
from byoc.verification._layer_result import LayerError

Array = NDArray[Any]

_MEAN_SHARE = 1 / 8
_DEVIATIONS = 4.0  # of a mean of that many results
_LEAST_RESULTS = 16
_TIE = 1e-3  # how near to a half, in units, rounding may go either way
_EPSILON = float(np.finfo(np.float32).eps)
_STEPS = 16  # of a unit: real values in the same step count as one
_TABLE = 2**22  # steps of all channels that a table is made of


def measure_layer(layer: QuantizedLayer, runs: Sequence[LayerRun], units: float) -> LayerError:
    """Return the error of a layer over several runs; infinite where shapes or dtypes differ."""
    if any(
        run.actual.shape != run.expected.shape or run.actual.dtype != run.expected.dtype for run in runs
    ):
        infinite = float("inf")
        return LayerError(layer.name, layer.op, layer.tensor, infinite, 1.0, 0.0, 0.0, "", units)
    errors = [run.actual.astype(np.float64) - run.expected.astype(np.float64) for run in runs]
    largest = max((float(np.max(np.abs(error), initial=0.0)) for error in errors), default=0.0)
    count = sum(error.size for error in errors)
    differing = sum(int(np.count_nonzero(error)) for error in errors) / max(count, 1)
    mean, allowed, channel = 0.0, _MEAN_SHARE, ""
    if differing:
        means = list(
            _list_means(errors, [_find_decided(run) for run in runs], [run.real for run in runs])
        )
        if means:
            mean, allowed, channel = max(means, key=lambda each: abs(each[0]) - each[1])
    return LayerError(
        layer.name, layer.op, layer.tensor, largest, differing, mean, allowed, channel, units
    )


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


def _list_means(
    errors: Sequence[Array], decided: Sequence[NDArray[np.bool_]], reals: Sequence[Array | None]
) -> Iterator[tuple[float, float, str]]:
    """Yield the mean errors of the whole and of each channel: mean, what is allowed, the channel."""
    steps = _count_steps(errors, decided, reals)
    masked = [error[mask] for error, mask in zip(errors, decided, strict=True)]
    yield from _compare_means([np.zeros(len(each), np.int64) for each in masked], masked, steps, "")
    ranks = {error.ndim for error in errors}
    if len(ranks) != 1 or min(ranks) < 2:
        return
    rank = ranks.pop()
    for axis in dict.fromkeys((1, rank - 1)):
        if len({error.shape[axis] for error in errors}) == 1:
            word = "channel" if axis == 1 or rank < 3 else "last index"
            pairs = zip(errors, decided, strict=True)
            indices = [_find_indices(error.shape, axis)[mask] for error, mask in pairs]
            yield from _compare_means(indices, masked, steps, word)


def _find_indices(shape: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """Return the index of each element along an axis."""
    around = [1] * len(shape)
    around[axis] = -1
    return np.broadcast_to(np.arange(shape[axis]).reshape(around), shape)


def _count_steps(
    errors: Sequence[Array], decided: Sequence[NDArray[np.bool_]], reals: Sequence[Array | None]
) -> list[NDArray[np.int64]] | None:
    """Return the step that each decided result's real value lies in, from 0 on; None if not known."""
    found = []
    for error, mask, real in zip(errors, decided, reals, strict=True):
        if real is None or real.shape != error.shape or not np.isfinite(real).all():
            return None
        found.append(np.floor(real[mask] * _STEPS).astype(np.int64))
    least = min((int(each.min()) for each in found if each.size), default=0)
    return [each - least for each in found]


def _compare_means(
    indices: Sequence[NDArray[np.int64]],
    errors: Sequence[Array],
    steps: Sequence[NDArray[np.int64]] | None,
    word: str,
) -> Iterator[tuple[float, float, str]]:
    """Yield the mean errors of channels, `indices` of decided results, with enough of these."""
    channels, values = np.concatenate(indices), np.concatenate(errors)
    if not channels.size:
        return
    if steps is not None:
        channels, values = _average_steps(channels, np.concatenate(steps), values)
    counts = np.bincount(channels)
    sums, squares = (np.bincount(channels, each) for each in (values, values**2))
    for channel in np.flatnonzero(counts >= _LEAST_RESULTS):
        number = counts[channel]
        mean = sums[channel] / number
        deviation = np.sqrt(max(squares[channel] / number - mean**2, 0.0) / number)
        allowed = _MEAN_SHARE + _DEVIATIONS * deviation
        yield float(mean), float(allowed), f"{word} {channel}" if word else ""


def _average_steps(
    channels: NDArray[np.int64], steps: NDArray[np.int64], values: Array
) -> tuple[NDArray[np.int64], Array]:
    """Return the mean of the values in each step of a channel that has some, and the channel of each."""
    width = int(steps.max()) + 1
    keys = channels * width + steps
    size = (int(channels.max()) + 1) * width
    if size > _TABLE:
        owners, keys = np.unique(keys, return_inverse=True)
    else:
        owners = np.arange(size)
    counts = np.bincount(keys, minlength=owners.size)
    filled = counts > 0
    means = np.bincount(keys, values, minlength=owners.size)[filled] / counts[filled]
    return owners[filled] // width, means
