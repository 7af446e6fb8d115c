"""What each search finds by itself, and what it spends: the same numbers on every machine.

A strategy calls several searches, and what one misses another may find. Here each is asked alone, on
problems that differ in what they have: limits, launches, transfers that occupy something, equal
accelerators, units that few of them take. Read the difference before `pytest --regenerate`: no bound may
rise above a value, and what is found and spent may become less.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from helpers.placement_random import FEATURES, alike, random_problem
from large_problems import layered_problem
from placement_searches import (
    Cooling,
    CoverSearch,
    LagrangianRelaxation,
    LoadAnnealer,
    PairSearch,
    SearchState,
    SpentBudgetError,
    UnitGroups,
    bound_by_paths,
    build_incumbent,
    choose_fusions,
    coarsen,
    find_least_makespan,
    form_regions,
    improve_state,
    iterate_chain_splits,
    least_load,
    split_chain,
)

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement import (
    ListScheduler,
    Occupancy,
    Perturbation,
    Placement,
    Problem,
    Robust,
    Sensitivity,
    Strategy,
    _perturbation,
    perturb_costs,
)
from byoc.placement.strategies import AllSupported, FasterOps, FasterOpsTransfer, TreeDP, _baselines

Golden = Callable[[str, str], None]
SETS = {
    "plain": frozenset[str](),
    "two": frozenset({"two devices", "launch"}),
    "tight": frozenset({"three devices", "capacity", "region count"}),
    "fused": frozenset({"two devices", "fusions", "connected"}),
    "sized": frozenset({"two devices", "must", "region size", "launch"}),
    "all": frozenset(FEATURES),
}


def write(numbers: Iterable[float]) -> str:
    """Return numbers with as many digits as every order of their sums has."""
    return " ".join(f"{float(number):.6g}" for number in numbers)


def digest(numbers: Iterable[object]) -> str:
    """Return what tells whether labels are others."""
    return sha256(" ".join(map(str, numbers)).encode()).hexdigest()[:8]


def occupying(problem: Problem, seed: int) -> Problem:
    """The same with transfers that occupy something, which differs by device, and a host of cores."""
    kinds = list(Occupancy)
    occupies = tuple(kinds[(seed + device) % len(kinds)] for device in range(problem.devices))
    return replace(problem, occupies=occupies, cores=1 + seed % 3)


# By which the problems have nearly as many units as they may.
SEEDS = (0, 2, 3, 7)


def make_problems(most_units: int = 14, seeds: int = 3) -> Iterator[tuple[str, Problem]]:
    for name, features in SETS.items():
        for seed in SEEDS[:seeds]:
            problem = random_problem(seed, most_units, features)
            yield f"{name} {seed}", occupying(problem, seed)
            if seed == SEEDS[0] and problem.devices > 1 and not problem.must.any():
                yield f"{name} {seed} alike", alike(replace(problem, fusions=()))
    yield "layers", layered_problem(7, 20, 2)
    yield "layers alike", alike(layered_problem(8, 12, 3))


def draw_labels(groups: UnitGroups, seed: int) -> list[int]:
    """Return labels that the devices take, but for what fits into their memory."""
    rng = np.random.default_rng(seed)
    allowed = np.isfinite(groups.costs)
    return [int(rng.choice(np.flatnonzero(row))) for row in allowed]


def test_chains_are_split(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems():
        groups = UnitGroups.from_problem(problem)
        for seconds in (1e-6, 1.0):
            for order in (range(groups.count), range(groups.count)[::-1]):
                budget = SearchBudget(seconds)
                found = split_chain(groups, order, problem.occupies, problem.cores, budget)
                rows.append(f"{name}, {seconds:g}: {budget.left:.6g} {found}")
        budget = SearchBudget(1.0)
        splits = [each.tolist() for each in iterate_chain_splits(problem, budget)]
        rows.append(f"    {budget.left:.6g} {len(splits)} {digest(splits)}")
    golden("placement/each-chain-split.txt", "\n".join(rows) + "\n")


def test_groups_are_put_together(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(24):
        groups = UnitGroups.from_problem(problem)
        mean = float(groups.costs.min(axis=1).sum()) / max(groups.devices, 1)
        for share in (0.05, 0.2, 0.5, 2.0):
            rows.append(f"{name}, {share}: {coarsen(groups, share * mean)}")
    golden("placement/each-coarsening.txt", "\n".join(rows) + "\n")


def test_labels_are_annealed(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems():
        groups = UnitGroups.from_problem(problem)
        annealer = LoadAnnealer(problem.occupies, problem.cores)
        for cooling in (Cooling(1.0, 0.01, 300), Cooling(0.1, 0.002, 150)):
            budget = SearchBudget(4e-4)
            peak, labels = annealer.improve(groups, [0] * groups.count, cooling, 3, budget)
            rows.append(f"{name}, {cooling.hot}: {peak:.6g} {budget.left:.6g} {digest(labels)}")
    golden("placement/each-annealing.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("seconds", [0.02, 1.0])
def test_pairs_are_split(seconds: float, golden: Golden) -> None:
    rows = []
    for name, problem in make_problems():
        groups = UnitGroups.from_problem(problem)
        for seed in range(2):
            budget = SearchBudget(seconds)
            found = PairSearch(problem, groups).improve(draw_labels(groups, seed), budget)
            rows.append(f"{name}, {seed}: {budget.left:.6g} {found}")
    golden(f"placement/each-pair-{seconds:g}.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("seconds", [0.03, 0.3])
def test_covers_are_proven(seconds: float, golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(9, 1):
        groups = UnitGroups.from_problem(problem)
        annealer = LoadAnnealer(problem.occupies, problem.cores)
        start = draw_labels(groups, 1)
        known, labels = annealer.improve(groups, start, Cooling(1.0, 0.01, 200), 0, SearchBudget())
        setup, budget = SearchBudget(0.2), SearchBudget(seconds)
        search = CoverSearch(problem, groups, least_load(problem), setup)
        for most, given in ((1.2 * known, [start]), (known, [labels])):
            search.search(most, given, budget.limit(0.6 * budget.left))
            rows.append(f"{name}: {most:.6g} {search.bound:.6g}, {setup.left:.4g} {budget.left:.4g}")
    golden(f"placement/each-cover-{seconds:g}.txt", "\n".join(rows) + "\n")


def test_paths_are_cut(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems():
        for seconds in (2e-3, 1.0):
            budget = SearchBudget(seconds)
            found = bound_by_paths(problem, budget)
            orders = [order.tolist() for order in found.orders]
            rows.append(f"{name}: {found.bound:.6g} {budget.left:.6g} {digest(orders)}")
    golden("placement/each-path.txt", "\n".join(rows) + "\n")


def test_relaxations_are_solved(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(12, 2):
        for prices in (None, np.full(problem.devices, 0.1)):
            relaxation = LagrangianRelaxation(problem, byte_prices=prices, budget=SearchBudget(0.2))
            least = float(problem.costs[:, 0].sum())
            most = least if np.isfinite(least) else 1e3
            labels = [each.tolist() for each in relaxation.iterate_labels(12, lambda most=most: most)]
            rows.append(
                f"{name}: {relaxation.bound:.6g} {relaxation.value:.6g} {len(labels)} {digest(labels)}"
            )
    golden("placement/each-relaxation.txt", "\n".join(rows) + "\n")


def test_states_are_improved(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(12, 2):
        scheduler = ListScheduler(problem)
        start = build_incumbent(problem, np.zeros(problem.units, np.int64))
        if start is None:
            rows.append(f"{name}: none")
            continue
        state = SearchState.from_labels(scheduler, start.labels.tolist(), start.regions.tolist())
        for most in (3, 30, 300):
            found, tried = improve_state(problem, scheduler, state, most)
            rows.append(f"{name}, {most}: {found.seconds:.6g} {tried} {found.labels} {found.regions}")
    golden("placement/each-state.txt", "\n".join(rows) + "\n")


def test_regions_are_formed_and_fusions_chosen(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(24, 4):
        for seed in range(3):
            groups = UnitGroups.from_problem(problem)
            labels = groups.spread(draw_labels(groups, seed))
            regions = form_regions(problem, labels)
            fusions = choose_fusions(problem, labels, regions)
            rows.append(f"{name}, {seed}: {digest(regions.tolist())} {regions.max()} {fusions}")
    golden("placement/each-region.txt", "\n".join(rows) + "\n")


def test_changed_costs_are_solved(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(10, 2):
        start = build_incumbent(problem, np.zeros(problem.units, np.int64))
        if start is None or problem.fusions:  # which save what their members took before
            continue
        asked = Sensitivity(problem, start, 9)
        for unit in range(0, problem.units, 3):
            for factor in (0.1, 0.5):
                seconds = factor * problem.seconds[[unit], 0]
                device = 1 + unit % problem.devices
                gain = asked.bound_gain([unit], device, seconds)
                found = asked.solve_changed([unit], device, seconds)
                rows.append(
                    f"{name}, {unit} x {factor}: {gain:.6g} {found.cost.total:.6g} {asked.steps} "
                    f"{digest(found.labels.tolist())}"
                )
    golden("placement/each-sensitivity.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("robust", [None, Robust.mean, Robust.worst])
def test_perturbed_costs_are_solved(
    robust: Robust | None, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    solve = _perturbation.solve_exactly

    def count(problem: Problem, best: Placement, *more: Any) -> Placement | None:
        asked.append(problem.units)
        return solve(problem, best, *more)

    monkeypatch.setattr(_perturbation, "solve_exactly", count)
    rows = []
    for name, problem in make_problems(6, 1):
        start = build_incumbent(problem, np.zeros(problem.units, np.int64))
        if start is None or name.startswith("layers"):
            continue
        names = [f"u{number}" for number in range(problem.units)]
        kinds = ["ab"[number % 2] for number in range(problem.units)]
        asked.clear()
        perturbation = Perturbation(0.4, samples=4, seed=1)
        found = perturb_costs(problem, start, names, kinds, perturbation, robust)
        regrets = [
            number
            for regret in (found.nominal, found.chosen)
            for number in (regret.mean, regret.worst, regret.best)
        ]
        rows.append(
            f"{name}: {write(regrets)}, proven {found.proven} of {found.candidates}, programs "
            f"{len(asked)}, moved {write(found.moved)} to {found.elsewhere.tolist()}"
        )
    golden(f"placement/each-perturbation-{robust}.txt", "\n".join(rows) + "\n")


def test_cheap_strategies(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    decide = _baselines._Sweeper._decision

    def count(sweeper: Any, unit: int, first: bool, last: bool) -> int:
        asked.append(unit)
        return decide(sweeper, unit, first, last)

    monkeypatch.setattr(_baselines._Sweeper, "_decision", count)
    rows = []
    strategies: list[Strategy] = [AllSupported(), FasterOps(), TreeDP()]
    strategies += [FasterOpsTransfer(sweeps=sweeps) for sweeps in (1, 2, 5, 9)]
    for name, problem in make_problems(20):
        rows.append(f"{name}:")
        for strategy in strategies:
            asked.clear()
            try:
                found = strategy.solve(problem)
            except InputError as error:
                rows.append(f"    {strategy.name}: {error}")
                continue
            labels = "".join(map(str, found.labels.tolist()))
            rows.append(f"    {strategy.name}: {found.cost.total:.6g} {labels}, asked {len(asked)}")
    golden("placement/each-cheap-strategy.txt", "\n".join(rows) + "\n")


@pytest.mark.parametrize("free", [0, 1, 2])
def test_groups_that_take_no_time_are_put_together(free: int) -> None:
    """Which of a pair it is, or both, is of no matter: the dearest tensor makes the first pair."""
    problem = random_problem(2, 6, frozenset({"two devices"}))
    seconds = problem.seconds.copy()
    seconds[[0, 1, 2][:free], 0] = 0.0
    groups = UnitGroups.from_problem(replace(problem, seconds=seconds))
    found = coarsen(groups, 1e9)
    assert len(found) == groups.count
    assert max(map(found.count, found)) <= 2
    backwards = UnitGroups.from_problem(replace(problem, seconds=seconds[:, [0, 2, 1]]))
    assert len(coarsen(backwards, 1e9)) == groups.count


def test_every_placement_of_a_few_units_is_tried(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems(4, 2):
        if name.startswith("layers"):
            continue
        scheduler = ListScheduler(problem)
        start = build_incumbent(problem, np.zeros(problem.units, np.int64))
        if start is None:
            continue
        state = SearchState.from_labels(scheduler, start.labels.tolist(), start.regions.tolist())
        for seconds in (0.02, 1e3):
            budget = SearchBudget(seconds)
            try:
                found, proven = find_least_makespan(problem, scheduler, state, budget)
            except SpentBudgetError:
                rows.append(f"{name}, {seconds}: spent")
                continue
            rows.append(
                f"{name}, {seconds}: {found.seconds:.6g} {proven} {found.labels} {found.regions} "
                f"spent {seconds - budget.left:.6f}"
            )
    golden("placement/each-least-makespan.txt", "\n".join(rows) + "\n")
