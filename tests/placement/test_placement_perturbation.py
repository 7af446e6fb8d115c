"""Placements at perturbed costs, against searches of every placement."""

import numpy as np
import pytest
from helpers.placement_dags import reordered
from helpers.placement_random import random_problem
from helpers.support import sample_cases
from placement_searches import CostSamples

from byoc.errors import InputError
from byoc.placement import (
    Perturbation,
    Placement,
    Problem,
    Robust,
    evaluate,
    find_violation,
    perturb_costs,
)
from byoc.placement.strategies import Exhaustive, Makespan

NOISE = Perturbation(0.5, 12, 3)
CASES = [
    (seed, features)
    for seed in range(24)
    for features in (
        frozenset[str](),
        frozenset({"launch"}),
        frozenset({"launch", "fusions", "must"}),
        frozenset({"launch", "two devices", "capacity"}),
        frozenset({"launch", "connected", "region size"}),
        frozenset({"launch", "region count", "fusions"}),
    )
]


def make_case(seed: int, features: frozenset[str]) -> tuple[Problem, Placement, list[str], list[str]]:
    problem = random_problem(seed, 7, features)
    try:
        placement = Exhaustive().solve(problem)
    except InputError:
        pytest.skip("no placement keeps the limits")
    names = [f"unit{number}" for number in range(problem.units)]
    return problem, placement, names, [f"kind{number % 3}" for number in range(problem.units)]


@pytest.mark.parametrize(("seed", "features"), sample_cases(CASES, every=7))
def test_regrets_are_those_of_every_placement(seed: int, features: frozenset[str]) -> None:
    problem, placement, names, kinds = make_case(seed, features)
    found = perturb_costs(problem, placement, names, kinds, NOISE)
    samples = CostSamples.draw(problem, kinds, NOISE)
    optima = np.array(
        [Exhaustive().solve(samples.make_problem(n)).cost.total for n in range(samples.count)]
    )
    ratios = samples.evaluate(placement) / optima
    assert found.placement is placement
    assert found.nominal == found.chosen
    # What is found is never better than the optimum; where all are proven it is the optimum.
    assert found.nominal.worst <= ratios.max() * (1 + 1e-9)
    assert found.nominal.mean <= ratios.mean() * (1 + 1e-9)
    if found.proven == samples.count:
        assert found.nominal.worst == pytest.approx(ratios.max(), rel=1e-5)
        assert found.nominal.mean == pytest.approx(ratios.mean(), rel=1e-5)


def test_most_samples_are_proven() -> None:
    proven = 0
    for seed in range(10):
        problem, placement, names, kinds = make_case(seed, frozenset({"launch"}))
        proven += perturb_costs(problem, placement, names, kinds, NOISE).proven
    assert proven >= 0.95 * 10 * NOISE.samples


@pytest.mark.parametrize(("seed", "features"), sample_cases(CASES, every=6))
def test_a_sample_is_a_problem_and_costs_what_it_says(seed: int, features: frozenset[str]) -> None:
    problem, placement, _, kinds = make_case(seed, features)
    samples = CostSamples.draw(problem, kinds, NOISE)
    costs = samples.evaluate(placement)
    for number in range(samples.count):
        sampled = samples.make_problem(number)
        slow = evaluate(sampled, placement.labels, placement.regions, placement.fusions).total
        assert costs[number] == pytest.approx(slow, rel=1e-9, abs=1e-12)
        same = Placement.from_labels(
            sampled, placement.labels, regions=placement.regions, fusions=placement.fusions
        )
        assert not find_violation(sampled, same)


def test_factors_are_lognormal_and_shared_by_kind() -> None:
    problem = random_problem(1, 7, frozenset({"launch", "two devices"}))
    noise = Perturbation(0.5, 4000, 1)
    samples = CostSamples.draw(problem, ["a", "a", *"bcdefgh"[: problem.units - 2]], noise)
    logs = np.log(samples.units)
    assert logs.mean() == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.03)
    pairs = np.corrcoef(logs[:, :3, 1].T)
    assert pairs[0, 1] == pytest.approx(0.5, abs=0.06)  # of one kind
    assert pairs[0, 2] == pytest.approx(0, abs=0.06)
    assert np.corrcoef(logs[:, 0, 0], logs[:, 0, 1])[0, 1] == pytest.approx(0, abs=0.06)
    assert np.log(samples.links).std() == pytest.approx(0.5, rel=0.05)
    assert np.log(samples.launches).std() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("robust", list(Robust))
@pytest.mark.parametrize(("seed", "features"), sample_cases(CASES, every=11))
def test_a_robust_placement_keeps_limits_and_regrets_less(
    seed: int, features: frozenset[str], robust: Robust
) -> None:
    problem, placement, names, kinds = make_case(seed, features)
    found = perturb_costs(problem, placement, names, kinds, NOISE, robust)
    assert not find_violation(problem, found.placement)
    own = evaluate(problem, found.placement.labels, found.placement.regions, found.placement.fusions)
    assert found.placement.cost.total == pytest.approx(own.total, rel=1e-12)
    if robust is Robust.mean:
        assert found.chosen.mean <= found.nominal.mean * (1 + 1e-9)
    else:
        assert found.chosen.worst <= found.nominal.worst * (1 + 1e-9)
    assert found.placement.bound == pytest.approx(placement.bound, rel=1e-12)  # of the same costs


def make_fork(host: float = 10.0, device: float = 9.9) -> Problem:
    """Return two units that do not meet, each nearly as fast on the host as on the accelerator."""
    return Problem.build(
        seconds=[[host, device], [host, device]],
        producer=[0, 1],
        consumers=[[], []],
        is_output=[True, True],
        to_device=np.zeros((2, 1)),
        to_host=np.zeros((2, 1)),
        launch=[0.0],
    )


def test_units_that_are_in_doubt_move_in_half_of_the_samples() -> None:
    problem = make_fork()
    placement = Exhaustive().solve(problem)
    found = perturb_costs(problem, placement, ["a", "b"], ["x", "y"], Perturbation(0.5, 400))
    assert placement.labels.tolist() == [1, 1]
    assert found.moved == pytest.approx([0.5, 0.5], abs=0.08)
    assert found.elsewhere.tolist() == [0, 0]
    assert found.proven == 400
    # The best of two lognormal times of deviation 0.5 each, against either: seen over many samples.
    assert found.nominal.mean == pytest.approx(1.36, abs=0.1)
    alike = perturb_costs(problem, placement, ["a", "b"], ["x", "x"], Perturbation(0.5, 400))
    assert alike.nominal.mean > 1


def test_small_errors_change_nothing() -> None:
    problem = make_fork(device=5.0)
    placement = Exhaustive().solve(problem)
    found = perturb_costs(problem, placement, ["a", "b"], ["x", "x"], Perturbation(0.01))
    assert (found.nominal.mean, found.nominal.worst, found.nominal.best) == (1, 1, 1)
    assert found.moved.tolist() == [0, 0]
    assert found.candidates == 1


def test_the_order_of_units_does_not_matter() -> None:
    for seed in range(6):
        problem, placement, names, kinds = make_case(seed, frozenset({"launch", "two devices"}))
        other, place = reordered(problem, seed)
        order = np.argsort(place)
        same = Placement.from_labels(other, placement.labels[order])
        one = perturb_costs(problem, placement, names, kinds, NOISE, Robust.mean)
        shuffled = [names[unit] for unit in order], [kinds[unit] for unit in order]
        two = perturb_costs(other, same, *shuffled, NOISE, Robust.mean)
        assert two.nominal.mean == pytest.approx(one.nominal.mean, rel=1e-9)
        assert two.chosen.mean == pytest.approx(one.chosen.mean, rel=1e-9)
        assert two.moved.tolist() == one.moved[order].tolist()


def test_what_cannot_be_perturbed_is_a_sentence() -> None:
    for wrong in ((0.0, 3, 0), (float("nan"), 3, 0), (6.0, 3, 0)):
        with pytest.raises(InputError, match=r"^perturb .*: not a number above 0, and at most 5$"):
            Perturbation(*wrong)
    with pytest.raises(InputError, match="at least one sample"):
        Perturbation(0.5, 0)
    problem = make_fork()
    with pytest.raises(
        InputError, match=r"^perturb: at most 10000000 samples fit in memory for 2 units"
    ):
        CostSamples.draw(problem, ["a", "b"], Perturbation(0.5, 10**8))
    overlapping = Makespan().solve(problem)
    with pytest.raises(InputError, match=r"^perturb: made for costs that add up, not for a makespan$"):
        perturb_costs(problem, overlapping, ["a", "b"], ["a", "b"], NOISE)


def test_a_graph_without_accelerators_regrets_nothing() -> None:
    host = Problem.build(
        seconds=[[1.0], [2.0]],
        producer=[0],
        consumers=[[1]],
        is_output=[True],
        to_device=np.zeros((1, 0)),
        to_host=np.zeros((1, 0)),
        launch=[],
    )
    placement = Placement.from_labels(host, np.zeros(2, np.int64))
    found = perturb_costs(host, placement, ["a", "b"], ["a", "b"], NOISE, Robust.worst)
    assert (found.nominal.worst, found.proven) == (1, NOISE.samples)
