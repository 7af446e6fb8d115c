"""tree-dp: exact where the graph is a forest, and never better than possible."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_dags import hub, limited, random_problem, reordered
from helpers.placement_oracle import COSTS, chain, problems, slow_optimum, thorough
from hypothesis import given
from hypothesis import strategies as st

from byoc.placement import Placement, Problem, find_violation
from byoc.placement.strategies import Exhaustive, TreeDP


def without_launch(placement: Placement) -> float:
    return placement.cost.execution + placement.cost.transfer


@st.composite
def forests(draw: st.DrawFn) -> Problem:
    """Units joined in both directions: each reads, or is read by, at most one of those before it."""
    units, devices = draw(st.integers(1, 7)), draw(st.integers(1, 2))
    consumers: dict[tuple[int, int], list[int]] = {}
    for unit in range(1, units):
        earlier = draw(st.integers(-1, unit - 1))
        if earlier >= 0:  # one of up to two tensors that it makes
            consumers.setdefault((earlier, draw(st.integers(0, 1))), []).append(unit)
    keys = sorted(consumers)
    outputs = draw(st.lists(st.integers(0, units - 1), max_size=2))
    inputs = draw(st.lists(st.integers(0, units - 1), max_size=2, unique=True))
    tensors = len(keys) + len(outputs) + len(inputs)
    mirrored = draw(st.booleans())
    reading = [consumers[key] for key in keys] + [[] for _ in outputs] + [[unit] for unit in inputs]
    making = [key[0] for key in keys] + outputs + [-1 for _ in inputs]
    if mirrored:  # many-to-one: what was read by many now reads from many
        pairs = [(made, unit) for made, units_ in zip(making, reading, strict=True) for unit in units_]
        joins = [(units - 1 - unit, units - 1 - made) for made, unit in pairs if made >= 0]
        making = [made for made, _ in joins] + outputs + [-1 for _ in inputs]
        reading = [[unit] for _, unit in joins] + [[] for _ in outputs] + [[unit] for unit in inputs]
        tensors = len(making)
    costs = st.lists(COSTS, min_size=devices, max_size=devices)
    ways = st.lists(costs, min_size=tensors, max_size=tensors)
    seconds = [[draw(COSTS), *draw(st.lists(COSTS | st.just(inf), min_size=devices, max_size=devices))]
               for _ in range(units)]  # fmt: skip
    return Problem.build(
        seconds=seconds,
        producer=making,
        consumers=reading,
        is_output=[not units_ or draw(st.booleans()) for units_ in reading],
        to_device=np.reshape(draw(ways), (tensors, devices)),
        to_host=np.reshape(draw(ways), (tensors, devices)),
        launch=[0.0] * devices,
    )


@thorough
@given(forests())
def test_forests_are_solved_exactly(problem: Problem) -> None:
    placement = TreeDP().solve(problem)
    best = slow_optimum(problem)
    assert without_launch(placement) == pytest.approx(best, rel=1e-12, abs=1e-18)
    assert placement.bound is not None
    assert best * (1 - 1e-12) <= placement.bound <= best
    assert placement.notes == ()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("seed", range(30))
def test_random_trees_are_solved_exactly(seed: int, devices: int) -> None:
    problem = random_problem(seed, 12 // (1 + devices // 2), devices, tree=True)
    placement = TreeDP().solve(problem)
    assert without_launch(placement) == pytest.approx(slow_optimum(problem), rel=1e-12)
    assert placement.bound == pytest.approx(without_launch(placement), rel=1e-12)


@thorough
@given(problems(most_units=6, devices=st.integers(0, 2)))
def test_on_any_graph_nothing_is_better_than_the_optimum(problem: Problem) -> None:
    placement = TreeDP().solve(problem)
    best = slow_optimum(problem)
    assert find_violation(problem, placement) == ""
    assert without_launch(placement) >= best * (1 - 1e-12)
    assert placement.bound is None or placement.bound <= best


def test_a_diamond_is_not_far_off() -> None:
    """Of 60 random graphs that are no trees, nine in ten are optimal and none is above by a fifth."""
    ratios = []
    for seed in range(60):
        problem = random_problem(seed, 9, 1)
        placement = TreeDP().solve(problem)
        ratios.append(without_launch(placement) / slow_optimum(problem))
    assert max(ratios) < 1.2
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 54


@pytest.mark.parametrize("launch", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(20))
def test_launches_are_exact_on_a_chain(seed: int, launch: float) -> None:
    rng = np.random.default_rng(seed)
    device = np.where(rng.random(9) < 0.2, inf, rng.uniform(0, 4, 9))
    problem = chain(rng.uniform(0, 6, 9), device, down=1.0, up=0.5, launch=launch)
    placement = TreeDP().solve(problem)
    assert placement.cost.total == pytest.approx(Exhaustive().solve(problem).cost.total, rel=1e-12)
    assert placement.bound is not None
    assert placement.bound <= placement.cost.total


def test_launches_are_not_ignored() -> None:
    """Three units that each gain 1, between units that only the host runs; a launch costs 5."""
    problem = chain([2.0] * 5, [1.0, inf, 1.0, inf, 1.0], launch=5.0)
    assert TreeDP().solve(problem).labels.tolist() == [0] * 5
    assert TreeDP().solve(replace(problem, launch=np.zeros(1))).labels.tolist() == [1, 0, 1, 0, 1]


def test_more_accelerators_than_all_sets_are_tried_for() -> None:
    """Seven accelerators, a unit that each of them alone runs fast, and a hub that costs little."""
    devices = readers = 7
    problem = hub(devices, readers)
    placement = TreeDP().solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.bound is None  # nothing is proven where not all was tried
    assert placement.cost.total < 1 + 100 * readers
    pair = TreeDP().solve(chain_between(devices))
    assert pair.labels.tolist() == [7, 7, 3]
    assert pair.bound == pytest.approx(pair.cost.total, rel=1e-12)


def chain_between(devices: int) -> Problem:
    """Three units in a row that are fast on accelerators 7, 7 and 3."""
    seconds = np.full((3, 1 + devices), 50.0)
    seconds[[0, 1, 2], [7, 7, 3]] = 1.0
    return Problem.build(
        seconds=seconds,
        producer=[-1, 0, 1, 2],
        consumers=[[0], [1], [2], []],
        is_output=[False, False, False, True],
        to_device=np.ones((4, devices)),
        to_host=np.ones((4, devices)),
        launch=[0.0] * devices,
    )


@pytest.mark.parametrize("seed", range(40))
def test_labels_of_a_tree_do_not_depend_on_the_order_of_units(seed: int) -> None:
    problem = random_problem(seed, 12, 1 + seed % 3, tree=True)
    other, place = reordered(problem, seed)
    assert TreeDP().solve(other).labels[place].tolist() == TreeDP().solve(problem).labels.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_hard_limits_are_kept(seed: int) -> None:
    problem = replace(limited(random_problem(seed, 12, 1 + seed % 3), seed), must=np.zeros(12, bool))
    placement = TreeDP().solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.bound is None or placement.bound <= placement.cost.total


def test_units_that_must() -> None:
    problem = replace(chain([1.0] * 3, [2.0] * 3, down=0.5, up=0.5), must=np.array([True, False, True]))
    # 2 + 2 + 2 + 1 beats two trips: 2 + 1 + 2 + 2.
    assert TreeDP().solve(problem).labels.tolist() in ([1, 1, 1], [1, 0, 1])
    dear = replace(problem, to_device=np.full((4, 1), 2.0))
    assert TreeDP().solve(dear).labels.tolist() == [1, 1, 1]


def test_a_long_chain_takes_no_recursion() -> None:
    units = 5000
    problem = chain([2.0] * units, [1.0] * units, down=3.0, up=3.0)
    placement = TreeDP().solve(problem)
    assert placement.labels.tolist() == [1] * units
    assert placement.cost.total == units + 6


def test_nothing_to_place() -> None:
    placement = TreeDP().solve(chain([], []))
    assert placement.labels.tolist() == []
    assert placement.bound == 0
