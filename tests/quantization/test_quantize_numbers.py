"""The arithmetic, by hand and for every range, and ranges that calibrators choose."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import HistogramCollector

from byoc.quantization._calibrators import (
    DTYPES,
    Histogram,
    count_values,
    find_best_range,
    find_best_threshold,
    find_calibrator,
    find_edges,
    find_entropy_range,
)
from byoc.quantization._weights import (
    QuantizationParams,
    ScaleRequirement,
    compute_params,
    find_extremes,
    find_largest_sum,
    fits_int32,
    quantize_bias,
    quantize_values,
    widen_scales,
)

FLOATS = st.floats(-1e6, 1e6, width=32)


FORMS = st.builds(
    ScaleRequirement, st.sampled_from(["int8", "uint8", "int16", "uint16"]), st.booleans(), st.booleans()
)


@pytest.mark.parametrize(
    ("low", "high", "form", "scale", "zero"),
    [
        (-1.0, 1.55, ScaleRequirement("int8"), 0.01, -28),  # -128 + 1 / 0.01
        (-1.0, 1.55, ScaleRequirement("uint8"), 0.01, 100),
        (0.5, 2.55, ScaleRequirement("uint8"), 0.01, 0),  # 0 is in it
        (-2.55, -1.0, ScaleRequirement("int8"), 0.01, 127),
        (-1.0, 2.54, ScaleRequirement("int8", symmetric=True), 0.02, 0),  # 2.54 / 127
        (-1.0, 2.52, ScaleRequirement("int8", symmetric=True, largest=126), 0.02, 0),
        (0.0, 2.55, ScaleRequirement("uint8", symmetric=True), 0.01, 0),
        (
            -1.0,
            1.55,
            ScaleRequirement("int8", power_of_two=True),
            2.0**-6,
            -64,
        ),  # 0.01 rounded up to 1/64
        (-1.0, 1.0, ScaleRequirement("int8", True, True), 2.0**-6, 0),  # 1 / 127 is above 1 / 128
        (0.0, 127.0, ScaleRequirement("int8", True, True), 1.0, 0),  # a power of two stays
        (0.0, 0.0, ScaleRequirement("int8"), 1.0, -128),
        (0.0, 65535.0, ScaleRequirement("uint16"), 1.0, 0),
    ],
)
def test_scales_by_hand(
    low: float, high: float, form: ScaleRequirement, scale: float, zero: int
) -> None:
    found = compute_params(low, high, form)
    assert found is not None
    assert float(found.scale) == np.float32(scale)
    assert int(found.zero_point) == zero


def test_what_is_below_zero_has_no_unsigned_symmetric_form() -> None:
    assert compute_params(-1e-3, 1.0, ScaleRequirement("uint8", symmetric=True)) is None


@given(low=FLOATS, high=FLOATS, form=FORMS, data=st.data())
def test_no_value_of_a_range_is_further_off_than_half_a_step(
    low: float, high: float, form: ScaleRequirement, data: st.DataObject
) -> None:
    low, high = sorted((low + 0.0, high + 0.0))  # no -0.0
    params = compute_params(low, high, form)
    if params is None:
        return
    scale = float(params.scale)
    values = np.array([low, high, 0.0, data.draw(st.floats(low, high))])
    back = scale * (quantize_values(values, params) - params.zero_point)
    assert np.abs(back - values).max() <= scale * 0.5 * (1 + 1e-4) + 1e-30
    assert back[2] == 0.0
    assert not form.power_of_two or np.frexp(scale)[0] == 0.5


def test_weights_are_rounded_half_to_even_and_saturated() -> None:
    params = QuantizationParams(np.float32([0.5, 1.0]), np.zeros(2, np.int64), "int8", 0)
    found = quantize_values(np.float32([[0.25, 0.75, -0.75, 1e3], [0.5, 1.5, 2.5, -1e3]]), params)
    assert found.tolist() == [[0, 2, -2, 127], [0, 2, 2, -128]]


def test_extremes_along_an_axis() -> None:
    low, high = find_extremes(np.float32([[1, -2], [3, 4]]), 1)
    assert (low.tolist(), high.tolist()) == ([1, -2], [3, 4])
    assert find_extremes(np.zeros((2, 0)), 0)[0].tolist() == [0, 0]


@given(
    scale=st.floats(2.0**-66, 1024.0, width=32),
    activation=st.floats(2.0**-40, 1024.0, width=32),
    bias=st.lists(FLOATS, min_size=1, max_size=3),
    two=st.booleans(),
    count=st.sampled_from([0, 1, 4608, 60000]),
)
def test_widened_weights_leave_room_for_the_bias_and_the_products(
    scale: float, activation: float, bias: list[float], two: bool, count: int
) -> None:
    before = QuantizationParams(
        np.full(len(bias), scale, np.float32), np.zeros(len(bias), np.int64), "int8", 0
    )
    values, source = np.float32(bias), np.asarray(np.float32(activation))
    products = find_largest_sum(count, "uint8", "int8")
    after = widen_scales(before, values, source, two, products)
    assert (after.scale >= before.scale).all()
    steps = np.asarray(source * after.scale, np.float32)
    if np.isfinite(steps).all() and (steps >= np.finfo(np.float32).tiny).all():
        assert fits_int32(values, steps)
        integers = quantize_bias(values, steps)
        assert np.abs(integers.astype(np.int64)).max() + products < 2**31
        back = integers * steps.astype(np.float64)
        assert (np.abs(back - values) <= steps * 0.5001).all()
    changed = after.scale != before.scale
    assert not two or (np.frexp(after.scale[changed])[0] == 0.5).all()


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


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.0), (0.0, 1.0), (-1.0, 1.0), (-0.2, 0.5)])
def test_no_integer_stands_for_an_infinite_number(
    dtype: str, symmetric: bool, two: bool, low: float, high: float
) -> None:
    """The constant of a mask is often the least float32, and 0 times -inf would be NaN."""
    most = float(np.finfo(np.float32).max)
    form = ScaleRequirement(dtype, symmetric=symmetric, power_of_two=two)
    params = compute_params(most * low, most * high, form)
    if params is None:
        assert symmetric
        return
    integers = np.arange(*DTYPES[dtype], dtype=np.int64)
    ends = np.append(integers, DTYPES[dtype][1]) - params.zero_point
    assert np.isfinite(ends.astype(np.float32) * params.scale).all()
    (made,) = quantize_values(np.float32([most * low or most * high]), params) - params.zero_point
    assert abs(made * float(params.scale)) > 0.2 * most * max(-low, 0.2)
