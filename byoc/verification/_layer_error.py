"""The measurement of a quantized layer alone: its largest error, and what it is off by on average.

A right machine rounds some results to the neighbouring integer, and up as often as down. So no result
is more than one unit off, and no channel is off on average: a bias that is missing, a zero point or a
scale that is another one moves all results of a channel to one side, however little.
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
        decided = [_find_decided(run) for run in runs]
        means = list(_list_means(errors, decided))
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
    errors: Sequence[Array], decided: Sequence[NDArray[np.bool_]]
) -> Iterator[tuple[float, float, str]]:
    """Yield the mean errors of the whole and of each channel: mean, what is allowed, the channel."""
    whole = _add_up(errors, decided, ())
    yield from _compare_means(whole, "")
    ranks = {error.ndim for error in errors}
    if len(ranks) != 1 or min(ranks) < 2:
        return
    rank = ranks.pop()
    for axis in dict.fromkeys((1, rank - 1)):
        if len({error.shape[axis] for error in errors}) == 1:
            word = "channel" if axis == 1 or rank < 3 else "last index"
            yield from _compare_means(_add_up(errors, decided, (axis,)), word)


def _add_up(
    errors: Sequence[Array], decided: Sequence[NDArray[np.bool_]], kept: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return the number of decided results, the sum of their errors and of the squares, by channel."""
    counts, sums, squares = [], [], []
    for error, mask in zip(errors, decided, strict=True):
        others = tuple(axis for axis in range(error.ndim) if axis not in kept)
        masked = np.where(mask, error, 0.0)
        counts.append(np.atleast_1d(mask.sum(others)))
        sums.append(np.atleast_1d(masked.sum(others)))
        squares.append(np.atleast_1d((masked**2).sum(others)))
    return np.sum(counts, axis=0), np.sum(sums, axis=0), np.sum(squares, axis=0)


def _compare_means(added: tuple[Array, Array, Array], word: str) -> Iterator[tuple[float, float, str]]:
    counts, sums, squares = added
    for channel in np.flatnonzero(counts >= _LEAST_RESULTS):
        number = counts[channel]
        mean = sums[channel] / number
        deviation = np.sqrt(max(squares[channel] / number - mean**2, 0.0) / number)
        allowed = _MEAN_SHARE + _DEVIATIONS * deviation
        yield float(mean), float(allowed), f"{word} {channel}" if word else ""
