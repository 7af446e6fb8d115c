"""Where to clip: against every choice there is, real quantization, and onnxruntime's own."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import HistogramCollector

from byoc.quantization._calibrators import (
    Histogram,
    count_values,
    find_best_range,
    find_best_threshold,
    find_calibrator,
    find_edges,
    find_entropy_range,
)


@st.composite
def histograms(draw: st.DrawFn, signed: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    bins = draw(st.integers(2, 24))
    counts = draw(st.lists(st.integers(0, 1000), min_size=bins, max_size=bins).filter(any))
    low = draw(st.floats(-10, 0)) if signed else 0.0
    high = draw(st.floats(0.1, 10))
    return np.array(counts), np.linspace(low, high, bins + 1)


def _cost(
    counts: NDArray[np.int64], edges: NDArray[np.float64], low: float, high: float, steps: int
) -> float:
    """Return the squared error of a range as the definition has it, bin by bin."""
    total = 0.0
    for number, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        middle = (left + right) / 2
        clipped = min(max(middle, low), high)
        total += number * ((middle - clipped) ** 2 or ((high - low) / steps) ** 2 / 12)
    return total


@given(histograms(signed=True), st.sampled_from([2, 4, 8, 16]))
def test_mse_is_the_best_of_all_ranges(
    histogram: tuple[NDArray[np.int64], NDArray[np.float64]], bits: int
) -> None:
    counts, edges = histogram
    ends = [*edges.tolist(), 0.0]
    choices = [(a, b) for a, b in product(ends, ends) if a <= 0 <= b]
    best = min(_cost(counts, edges, *choice, 2**bits - 1) for choice in choices)
    found = find_best_range(counts, edges, bits)
    assert found in choices
    assert _cost(counts, edges, *found, 2**bits - 1) == pytest.approx(best, rel=1e-6, abs=1e-9)


@given(histograms(signed=False), st.sampled_from([2, 4, 8, 16]))
def test_symmetric_mse_is_the_best_of_all_thresholds(
    histogram: tuple[NDArray[np.int64], NDArray[np.float64]], bits: int
) -> None:
    counts, edges = histogram
    steps = 2**bits - 2  # between minus and plus the threshold
    costs = {end: _cost(counts, edges, -end, end, steps) for end in edges.tolist()}
    found = find_best_threshold(counts, edges, bits)
    assert costs[found] == pytest.approx(min(costs.values()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_quantizes_better_than_all_of_it(bits: int, symmetric: bool) -> None:
    """The model of the error is one thing; here the values are really quantized."""
    values = np.random.default_rng(0).laplace(size=50_000).astype(np.float32)
    values[:20_000] = 0.0
    method = find_calibrator("mse", bits=bits, symmetric=symmetric)
    low, high = float(values.min()), float(values.max())
    ends = method.find_ends(low, high)
    counted = count_values(method.select_values(values), ends)
    assert counted.sum() == 30_000
    found = method.choose_range(Histogram(counted, find_edges(ends), low, high))

    def error(low: float, high: float) -> float:
        steps = 2**bits - (2 if symmetric else 1)
        scale = (high - low) / steps
        zero = 0 if symmetric else np.rint(-low / scale)
        reach = (-steps // 2, steps // 2) if symmetric else (0, steps)
        quantized = np.clip(np.rint(values / scale) + zero, *reach)
        return float(np.mean((values - (quantized - zero) * scale) ** 2))

    whole = (-max(-low, high), max(-low, high)) if symmetric else (low, high)
    assert error(found.low, found.high) < 0.95 * error(*whole)
    around = [error(found.low * by, found.high * by) for by in (0.5, 0.7, 1.4, 2.0)]
    assert error(found.low, found.high) < min(around)


@pytest.mark.parametrize("seed", range(24))
def test_entropy_is_onnxruntimes(seed: int) -> None:
    """Of histograms of all kinds, sparse ones and ones of spikes among them."""
    generator = np.random.default_rng(seed)
    bins = [129, 200, 256, 401][seed % 4]
    spread = np.exp(-np.abs(np.linspace(-3, 3, bins)) * generator.uniform(0, 4))
    counts = generator.poisson(spread * 10.0 ** generator.integers(-1, 5))
    counts[generator.random(bins) < generator.choice([0.0, 0.5, 0.9])] = 0
    counts[: bins // 2] *= generator.integers(0, 2)
    counts[bins // 2] += 1 + 1000 * generator.integers(0, 2)
    edges = np.linspace(-2, 2, bins + 1, dtype=np.float32)
    theirs = HistogramCollector("entropy", False, bins, 128, 0, "same")
    ends = np.float32(-2), np.float32(2)
    assert find_entropy_range(counts, edges) == theirs.get_entropy_threshold((counts, edges, *ends), 128)
