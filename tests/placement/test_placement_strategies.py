"""The strategies, against search that shares no code with them."""

import math
import random
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_oracle import (
    COSTS,
    OFTEN_REFUSED,
    SlowCost,
    chain,
    every_labels,
    fewest_regions,
    problems,
    readers,
    slow_edges,
    slow_optimum,
    thorough,
)
from helpers.placement_random import random_problem
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.placement import Placement, Problem, Strategy, evaluate, find_violation, limit_time
from byoc.placement.strategies import (
    AllSupported,
    Exact,
    Exhaustive,
    HostOnly,
    LaunchAware,
    Makespan,
    MinCut,
    ProviderOrder,
    Throughput,
)

EVERY: list[Strategy] = [HostOnly(), AllSupported(), MinCut(), Exhaustive()]

# Costs are rounded down to less than 2**-40 of the cut: its 50 arcs or fewer lose less than 5e-11.
EXACT = 5e-11


def without_launch(placement: Placement) -> float:
    return placement.cost.execution + placement.cost.transfer


def test_providers_take_what_they_support_in_their_order() -> None:
    """The first accelerator takes what it supports, however slow; the second what is left."""
    problem = Problem.build(
        seconds=[[1.0, 9.0, 1.0], [1.0, inf, 9.0], [1.0, inf, inf], [1.0, 9.0, 1.0]],
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.zeros((0, 2)),
        to_host=np.zeros((0, 2)),
        launch=np.zeros(2),
        max_nodes=[1, 1],
        size=[1, 1, 1, 2],
    )
    found = ProviderOrder().solve(problem)
    assert found.labels.tolist() == [1, 2, 0, 0]
    assert found.notes == ("costs played no part in the choice",)


def test_a_chain_by_hand() -> None:
    """Host 5 + 10 + 4; device 1 + 2, refused.

    Host only 19; unit 1 alone 5 + 3 + 2 + 1.5 + 4 = 15.5; unit 0 alone 2 + 1 + 2 + 10 + 4 = 19;
    units 0 and 1: 2 + 1 + 2 + 1.5 + 4 = 10.5, and 0.5 for the launch.
    """
    problem = Problem.build(
        seconds=[[5.0, 1.0], [10.0, 2.0], [4.0, inf]],
        producer=[-1, 0, 1, 2],
        consumers=[[0], [1], [2], []],
        is_output=[False, False, False, True],
        to_device=[[2], [3], [1], [1]],
        to_host=[[9.0], [2.0], [1.5], [1.0]],
        launch=[0.5],
    )
    placement = MinCut().solve(problem)
    assert placement.labels.tolist() == [1, 1, 0]
    assert placement.regions.tolist() == [0, 0, -1]
    assert (placement.cost.execution, placement.cost.transfer) == (7, 3.5)
    assert placement.cost.launch == 0.5
    assert placement.bound == pytest.approx(10.5, rel=1e-13)
    assert placement.notes == (
        "launches make 5% of the predicted time, and min-cut chose without regard to them",
    )
    exhaustive = Exhaustive().solve(problem)
    assert exhaustive.labels.tolist() == [1, 1, 0]
    assert exhaustive.bound == pytest.approx(11, rel=1e-13)
    assert exhaustive.notes == ()
    assert AllSupported().solve(problem).cost.total == 11
    assert HostOnly().solve(problem).cost.total == 19


@thorough
@given(problems())
def test_min_cut_is_optimal_and_its_bound_holds(problem: Problem) -> None:
    placement = MinCut().solve(problem)
    best = slow_optimum(problem)
    assert without_launch(placement) == pytest.approx(best, rel=EXACT, abs=0)
    assert placement.bound is not None
    assert best * (1 - EXACT) <= placement.bound <= best
    assert placement.bound <= placement.cost.total


@thorough
@given(problems(costs=st.floats(0, 1), launches=st.just(0.0)))
def test_min_cut_is_optimal_for_costs_of_one_magnitude(problem: Problem) -> None:
    placement = MinCut().solve(problem)
    assert placement.cost.total == pytest.approx(slow_optimum(problem), rel=1e-12, abs=1e-300)
    assert placement.notes == ()


@thorough
@given(problems(most_units=8), st.data())
def test_min_cut_with_tensors_that_cannot_travel(problem: Problem, data: st.DataObject) -> None:
    ways = st.lists(OFTEN_REFUSED, min_size=problem.tensors, max_size=problem.tensors)
    shape = (problem.tensors, 1)
    refusing = replace(
        problem,
        to_device=np.reshape(np.array(data.draw(ways), np.float64), shape),
        to_host=np.reshape(np.array(data.draw(ways), np.float64), shape),
    )
    placement = MinCut().solve(refusing)
    best = slow_optimum(refusing)
    assert without_launch(placement) == pytest.approx(best, rel=EXACT, abs=0)


def relabelled(problem: Problem, seed: int) -> tuple[Problem, list[int]]:
    """Shuffle the tensors, and the units as far as they may; return the new place of each unit."""
    rng = random.Random(seed)
    edges = slow_edges(problem)
    order: list[int] = []
    waiting = set(range(problem.units))
    while waiting:
        free = sorted(v for v in waiting if not any(u in waiting for u, w in edges if w == v))
        order.append(rng.choice(free))
        waiting.remove(order[-1])
    place = [order.index(unit) for unit in range(problem.units)]
    tensors = rng.sample(range(problem.tensors), problem.tensors)
    return (
        Problem.build(
            seconds=problem.seconds[order],
            producer=[place[p] if p >= 0 else -1 for p in problem.producer[tensors].tolist()],
            consumers=[[place[unit] for unit in readers(problem, tensor)] for tensor in tensors],
            is_output=problem.is_output[tensors],
            to_device=problem.to_device[tensors],
            to_host=problem.to_host[tensors],
            launch=problem.launch,
            connected=problem.connected,
        ),
        place,
    )


@thorough
@given(
    problems(costs=st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0])) | problems(costs=COSTS),
    st.integers(0, 2**32),
)
def test_min_cut_does_not_depend_on_the_order_of_units(problem: Problem, seed: int) -> None:
    other, place = relabelled(problem, seed)
    one, two = MinCut().solve(problem), MinCut().solve(other)
    assert two.labels[place].tolist() == one.labels.tolist()
    assert two.cost == one.cost
    assert two.bound == one.bound
    phases = [set(np.flatnonzero(one.regions == r)) for r in set(one.regions.tolist()) - {-1}]
    moved = [set(np.flatnonzero(two.regions[place] == r)) for r in set(two.regions.tolist()) - {-1}]
    assert sorted(map(sorted, moved)) == sorted(map(sorted, phases))


@pytest.mark.parametrize("strategy", [MinCut(), Exhaustive()])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 3.0])
def test_ties_stay_on_the_host(strategy: Strategy, seconds: float) -> None:
    problem = chain([seconds] * 5, [seconds] * 5)
    assert strategy.solve(problem).labels.tolist() == [0] * 5
    # The second unit gains 1, which moving it costs.
    exact = chain([1.0, 2.0, 1.0], [1.0, 1.0, 1.0], down=0.5, up=0.5)
    assert strategy.solve(exact).labels.tolist() == [0, 0, 0]


def test_a_hub_is_paid_for_once() -> None:
    """Ten readers gain 1 each; bringing them the hub costs 8, but 80 if each paid for itself."""
    readers_of_hub = 10
    problem = Problem.build(
        seconds=[[1, inf]] + [[2, 1]] * readers_of_hub,
        producer=[0],
        consumers=[range(1, 1 + readers_of_hub)],
        is_output=[False],
        to_device=[[8]],
        to_host=[[8]],
        launch=[0],
    )
    placement = MinCut().solve(problem)
    assert placement.labels.tolist() == [0] + [1] * readers_of_hub
    assert placement.cost.total == 1 + 10 + 8
    # The same the other way: a hub made on the device, ten readers that only the host can run.
    returning = replace(problem, seconds=np.array([[10, 1]] + [[1, inf]] * readers_of_hub))
    assert MinCut().solve(returning).labels[0] == 1
    assert MinCut().solve(returning).cost.total == 1 + 10 + 8


def test_every_output_of_a_unit_is_a_tensor_of_its_own() -> None:
    """Unit 0 gains 5 on the device and has two outputs of 3 each that the host wants."""
    problem = Problem.build(
        seconds=[[6.0, 1.0], [1.0, inf]],
        producer=[0, 0],
        consumers=[[1], [1]],
        is_output=[False, True],
        to_device=[[0], [0]],
        to_host=[[3], [3]],
        launch=[0],
    )
    assert MinCut().solve(problem).labels.tolist() == [0, 0]
    cheaper = replace(problem, to_host=np.array([[3.0], [1.0]]))
    assert MinCut().solve(cheaper).labels.tolist() == [1, 0]
    assert MinCut().solve(cheaper).cost.total == 1 + 1 + 4


def test_a_tiny_gain_beside_huge_costs() -> None:
    """What is paid wherever a unit runs takes no precision from the choice."""
    problem = chain([1e6, 3e-12, 1e6], [1e6, 1e-12, inf], down=0.5e-12, up=0.5e-12)
    assert MinCut().solve(problem).labels.tolist() == [0, 1, 0]


def test_no_units_and_no_accelerator() -> None:
    empty = chain([], [])
    for strategy in EVERY:
        placement = strategy.solve(empty)
        assert placement.labels.tolist() == []
        assert placement.regions.tolist() == []
        assert placement.cost.total == 0
        assert placement.bound in (None, 0)
    alone = Problem.build(
        seconds=[[1.0], [2.0]],
        producer=[0],
        consumers=[[1]],
        is_output=[False],
        to_device=np.ones((1, 0)),
        to_host=np.ones((1, 0)),
        launch=[],
    )
    for strategy in EVERY:
        assert strategy.solve(alone).labels.tolist() == [0, 0]
        assert strategy.solve(alone).cost.total == 3


def test_nothing_supported() -> None:
    problem = chain([1.0, 2.0], [inf, inf], launch=1.0)
    for strategy in EVERY:
        placement = strategy.solve(problem)
        assert placement.labels.tolist() == [0, 0]
        assert placement.bound in (None, pytest.approx(3, rel=1e-13))


def test_all_supported_takes_the_fastest_accelerator() -> None:
    problem = Problem.build(
        seconds=[[1.0, 9.0, 5.0], [1.0, inf, 7.0], [1.0, inf, inf], [9.0, 4.0, 4.0]],
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 2)),
        to_host=np.ones((0, 2)),
        launch=[1, 1],
    )
    placement = AllSupported().solve(problem)
    assert placement.labels.tolist() == [2, 2, 0, 1]
    assert placement.bound is None
    assert placement.notes


def test_min_cut_refuses_several_accelerators() -> None:
    problem = Problem.build(
        seconds=np.ones((1, 3)),
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 2)),
        to_host=np.ones((0, 2)),
        launch=[0, 0],
    )
    with pytest.raises(InputError, match="min-cut places on one accelerator and the target has 2"):
        MinCut().solve(problem)


def test_exhaustive_refuses_too_many() -> None:
    assert Exhaustive().solve(chain([2.0] * 16, [1.0] * 16)).cost.total == 16
    with pytest.raises(InputError, match=r"17 units and 1 accelerators have 2\^17"):
        Exhaustive().solve(chain([1.0] * 17, [1.0] * 17))


@thorough
@given(problems(most_units=6, launches=st.sampled_from([0.0, 0.1, 1.0, 5.0])))
def test_exhaustive_with_launch_is_optimal(problem: Problem) -> None:
    phases = replace(problem, connected=np.array([False]))
    cost = SlowCost(phases)
    best = min(
        cost(labels) + float(phases.launch[0]) * fewest_regions(phases, list(labels))
        for labels in every_labels(phases)
    )
    placement = Exhaustive().solve(phases)
    assert placement.cost.total == pytest.approx(best, rel=1e-12)
    assert placement.bound is not None
    assert best * (1 - 1e-13) <= placement.bound <= best
    # Connected regions are more or as many.
    connected = Exhaustive().solve(replace(problem, connected=np.array([True])))
    assert connected.cost.total >= best * (1 - 1e-13)


@thorough
@given(problems(most_units=7))
def test_every_strategy_gives_a_lawful_placement(problem: Problem) -> None:
    optimum = Exhaustive().solve(problem).cost.total
    for strategy in EVERY:
        placement = strategy.solve(problem)
        assert placement.labels.shape == placement.regions.shape == (problem.units,)
        assert placement.labels.dtype == placement.regions.dtype == np.int64
        assert np.isfinite(placement.cost.total)
        assert find_violation(problem, placement) == ""
        assert placement.cost.total >= optimum * (1 - 1e-12)
        assert placement.bound is None or placement.bound <= optimum


def test_names_are_those_of_the_entry_points() -> None:
    names = [strategy.name for strategy in EVERY[:4]]
    assert names == ["host-only", "all-supported", "min-cut", "exhaustive"]


@pytest.mark.parametrize("seed", range(12))
def test_a_dearer_boundary_is_crossed_less_and_costs_are_true(seed: int) -> None:
    problem = random_problem(seed, 12, frozenset({"launch"}))
    placements = [LaunchAware(boundary=factor).solve(problem) for factor in (0.1, 1.0, 10.0)]
    costs = [placement.cost for placement in placements]
    cheap, usual, dear = (cost.transfer + cost.launch for cost in costs)
    assert cheap + 1e-9 >= usual >= dear - 1e-9
    assert costs[1].total <= min(cost.total for cost in costs) + 1e-9
    for placement in placements:
        assert placement.cost == evaluate(problem, placement.labels, placement.regions)
        assert placement.bound is not None
        assert placement.bound <= costs[1].total + 1e-9
    assert placements[2].notes[-1] == "chosen as if launches and transfers cost 10 times what they do"


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_boundary_is_a_factor(factor: float) -> None:
    with pytest.raises(ValueError, match="must be a number above 0"):
        LaunchAware(boundary=factor)


@pytest.mark.parametrize("seed", range(12))
def test_a_mixture_has_to_save_the_margin(seed: int) -> None:
    problem = random_problem(seed, 12, frozenset({"launch"}))
    free = LaunchAware().solve(problem)
    singles = [HostOnly().solve(problem).cost.total]
    if np.isfinite(problem.seconds[:, 1]).all():
        singles.append(AllSupported().solve(problem).cost.total)
    for margin in (0.01, 0.3, 0.9):
        placement = LaunchAware(margin=margin).solve(problem)
        worth = free.cost.total < (1 - margin) * min(singles)
        expected = free.cost.total if worth else min(singles)
        assert placement.cost.total == pytest.approx(expected, rel=1e-6)
        assert placement.bound is not None
        assert placement.bound <= placement.cost.total


def test_a_graph_without_units_has_no_mixture() -> None:
    """The body of a Loop may have none; openvino-cpu has a margin."""
    empty = chain([], [])
    assert LaunchAware(margin=0.1).solve(empty).labels.size == 0
    assert LaunchAware(margin=0.1, boundary=2.0).solve(empty).cost.total == 0


@pytest.mark.parametrize("margin", [-0.1, 1.0, math.nan])
def test_a_margin_is_a_share(margin: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to below 1"):
        LaunchAware(margin=margin)


def test_a_time_limit_counts_steps_where_the_strategy_can() -> None:
    """All that search have the field; a strategy without a limit stays as it is."""
    assert limit_time(Throughput(), 2.5) == Throughput(time_limit=2.5)
    assert limit_time(Makespan(), 2.5) == Makespan(time_limit=2.5)
    assert limit_time(Exact(), 2.5) == Exact(time_limit=2.5)
    assert limit_time(LaunchAware(), 2.5) == LaunchAware(time_limit=2.5)
    assert limit_time(LaunchAware(), None) == LaunchAware()
    assert limit_time(MinCut(), 2.5) == MinCut()
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="not a number of seconds above 0"):
            limit_time(Throughput(), wrong)
    problem = chain([4.0, 4.0, 4.0], [1.0, 1.0, 2.0], down=0.5, up=0.25, launch=0.125)
    limited = LaunchAware(time_limit=5.0).solve(problem)
    assert limited.cost.total == LaunchAware().solve(problem).cost.total
