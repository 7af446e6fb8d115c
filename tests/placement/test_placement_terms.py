"""Terms of the solvers' sums, one by one: transfers of a unit, of a segment; steps, shares, sweeps."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import inf, nan

import numpy as np
import pytest
from helpers.placement_oracle import chain
from helpers.placement_random import random_problem
from hypothesis import given
from hypothesis import strategies as st

from byoc.placement import HostDeviceCuts, Problem
from byoc.placement._chain_split import _find_rectangles
from byoc.placement._host_device_cut import UNDECIDED
from byoc.placement._load_covering import CoverDevices, _scale
from byoc.placement._load_frontier import _align_step
from byoc.placement._unit_groups import HOST, GroupTensor, Neighbours
from byoc.placement.strategies import FasterOpsTransfer
from byoc.placement.strategies._baselines import _Sweeper


def sum_around(problem: Problem, unit: int, labels: list[int]) -> float:
    """Return the seconds of a unit and of all tensors that it makes or reads; -1 is nowhere."""
    total = float(problem.costs[unit, labels[unit]])
    for tensor in range(problem.tensors):
        start, stop = problem.consumer_start[tensor : tensor + 2].tolist()
        readers, producer = problem.consumers[start:stop].tolist(), int(problem.producer[tensor])
        home = labels[producer] if producer >= 0 else 0
        if unit not in (producer, *readers) or home < 0:
            continue
        wanted = {labels[reader] for reader in readers} - {-1, home}
        if problem.is_output[tensor] and home:
            wanted.add(0)
        if wanted:
            total += problem.to_host[tensor, home - 1] if home else 0.0
            total += sum(problem.to_device[tensor, device - 1] for device in wanted if device)
    return total


@pytest.mark.parametrize(
    ("seed", "devices"), [*product(range(6), (frozenset[str](), frozenset({"two devices"})))]
)
def test_a_unit_pays_for_the_tensors_around_it_on_each_device(
    seed: int, devices: frozenset[str]
) -> None:
    problem = random_problem(seed, 6, devices)
    around, rng = Neighbours(problem), np.random.default_rng(seed)
    for _ in range(20):
        labels = rng.integers(-1, 1 + problem.devices, problem.units).tolist()
        for unit in range(problem.units):
            expected = [
                sum_around(problem, unit, [*labels[:unit], device, *labels[unit + 1 :]])
                for device in range(1 + problem.devices)
            ]
            assert around.seconds_with_transfers(unit, labels) == pytest.approx(expected)


@given(
    st.integers(HOST, 4),
    st.sets(st.integers(0, 4), max_size=3),
    st.booleans(),
)
def test_a_segment_moves_what_it_does_not_hold_all_of(
    home: int, readers: set[int], is_output: bool
) -> None:
    """Segments [start, stop) of five groups; what is in none is on the host."""
    tensor = GroupTensor(home, tuple(sorted(readers - {home})), is_output, (2.0,), (3.0,))
    position = [3, 0, 4, 1, 2]
    places = {position[reader] for reader in tensor.readers}
    at = 9 if home == HOST else position[home]
    rectangles = _find_rectangles(tensor, position, 1, 5)
    for start in range(5):
        for stop in range(start + 1, 6):
            inside = set(range(start, stop))
            expected = 0.0
            if at in inside:
                expected += 3.0 if is_output or places - inside else 0.0
            elif places & inside:
                expected += 2.0
            found = sum(
                sign * seconds
                for (low, high), least, sign, seconds in rectangles
                if low <= start < high and stop >= least
            )
            assert found == expected


@pytest.mark.parametrize(
    ("step", "seconds", "aligned"),
    [
        (1.0, [], 1.0),
        (1.0, [3.5], 3.5 / 4),
        (1.0, [3.0], 1.0),
        (1.0, [2.9], 1.0),  # of fewer than three steps
        (1.0, [3.5, 1.0, 1.1, 1.2, 1.3], 1.0),  # the shortest of equal counts
        (1.0, [3.5, 3.5, 9.0, 8.0, 7.0, 6.5, 5.0, 4.0, 3.0, 2.0], 3.5 / 4),  # a fifth
        (1.0, [3.5, 3.5, 9.0, 8.0, 7.0, 6.5, 5.0, 4.0, 3.0, 2.0, 1.0], 1.0),
    ],
)
def test_a_step_fits_the_commonest_tensor(step: float, seconds: list[float], aligned: float) -> None:
    assert _align_step(step, seconds) == pytest.approx(aligned)


@pytest.mark.parametrize("sweeps", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_after_the_last_sweep_no_unit_is_undecided(sweeps: int, seed: int) -> None:
    problem = random_problem(seed, 9, frozenset({"two devices"}))
    labels = _Sweeper(problem, FasterOpsTransfer(sweeps=sweeps)).run()
    assert min(labels) >= 0
    assert all(np.isfinite(problem.costs[unit, label]) for unit, label in enumerate(labels))


@pytest.mark.parametrize(("devices", "host"), [(1, inf), (2, 2.0)])
def test_what_must_leave_the_host_may_be_on_another_accelerator(devices: int, host: float) -> None:
    problem = Problem.build(
        seconds=[[2.0] + [1.0] * devices],
        producer=[0],
        consumers=[[]],
        is_output=[True],
        to_device=np.ones((1, devices)),
        to_host=np.ones((1, devices)),
        launch=[0.0] * devices,
        must=[True],
    )
    side = np.full(1, UNDECIDED, np.int64)
    assert HostDeviceCuts(problem, 1, side).seconds.tolist() == [[host, 1.0]]


def test_other_seconds_are_checked_as_those_of_a_new_problem() -> None:
    problem = replace(chain([1.0, 2.0], [3.0, 4.0]), must=np.array([False, True]))
    refused = np.array([[1.0, 3.0], [2.0, inf]])
    with pytest.raises(ValueError, match=r"^unit 1 must be on an accelerator, and none takes it$"):
        problem.replace_seconds(refused)
    with pytest.raises(ValueError, match=r"^seconds are float64 of shape \(1, 2\)$"):
        problem.replace_seconds(refused[:1])
    with pytest.raises(ValueError, match=r"^seconds\[0, 1\] is -1.0"):
        problem.replace_seconds(np.array([[1.0, -1.0], [2.0, 2.0]]))
    assert problem.allowed.tolist() == [[True, True], [False, True]]
    other = problem.replace_seconds(np.array([[1.0, inf], [2.0, 2.0]]))
    assert other.allowed.tolist() == [[True, False], [False, True]]
    assert other.costs.tolist() == [[1.0, inf], [inf, 2.0]]
    assert problem.seconds[0, 1] == 3.0


amounts = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.integers(0, 8), st.just(inf))), min_size=1, max_size=6
)


@given(amounts, st.integers(1, 12), st.integers(1, 3))
def test_divided_groups_have_the_profit_of_the_best_division(
    each: list[tuple[int, float]], most: int, count: int
) -> None:
    """By the dual: some price of a second, that of one of the groups, leaves the least."""
    profit = np.array([p for p, _ in each], np.int64)
    costs = np.array([float(c) for _, c in each])
    devices = CoverDevices([*range(1, 1 + count)], costs)
    loads = np.arange(0.0, most + 1)
    able = [(p, Fraction(int(c))) for p, c in each if c <= most and p > 0]
    prices = {Fraction(0), *(Fraction(p) / c for p, c in able if c)}
    found = devices.divide_groups(profit, loads, float(most))
    for load, value in zip(loads.tolist(), found.tolist(), strict=True):
        least = min(
            price * Fraction(load) + sum(max(Fraction(0), p - price * c) for p, c in able)
            for price in prices
        )
        assert value == pytest.approx(float(least))
    assert devices.search_seconds == devices.proof_seconds == 0
    bounds = devices.bound_profits(profit, 0.5, 2 * most, float(most))
    again = devices.divide_groups(profit, np.arange(1, 2 * most + 1) * 0.5, float(most))
    np.testing.assert_allclose(bounds, count * again)


@given(st.lists(st.one_of(st.floats(0, 1e300), st.just(inf), st.just(nan)), max_size=6))
def test_profits_are_as_large_as_a_table_takes(profit: list[float]) -> None:
    found = _scale(np.array(profit))
    finite = [each for each in profit if np.isfinite(each)]
    assert found.dtype == np.int64
    assert found.sum() <= 2**28 - 1
    assert [each > 0 for each in found.tolist()] <= [np.isfinite(each) for each in profit]
    if finite and max(finite) > 0:
        assert found.sum() >= 2**28 - 1 - len(profit)
        total = sum(Fraction(each) for each in finite)
        for each, share in zip(profit, found.tolist(), strict=True):
            exact = Fraction(each) / total * (2**28 - 1) if np.isfinite(each) else 0
            assert abs(share - exact) <= 1 + exact * Fraction(1, 2**40)
    else:
        assert not found.any()
