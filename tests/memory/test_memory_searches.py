"""What the arena's searches find, also when they may not finish, and what they spend, on every machine.

A search that is cut off shows the order in which it looks; one that finishes hides it behind the
optimum. Work is counted and not measured, so both are exact. They change where a search is changed: read
the difference, which is in sizes and bounds as well, then `pytest --regenerate`.
"""

import random
from collections.abc import Callable, Iterable
from hashlib import sha256

import pytest
from arena_searches import (
    CompoundPart,
    build_compounds,
    find_best_order,
    find_cut_bound,
    find_lowest_offsets,
    find_witness,
    place_quickly,
    vary_order,
)
from problems import branches, linked, random_problem

from byoc.memory.arena import (
    METHODS,
    ArenaPlan,
    ArenaProblem,
    Compound,
    GreedyPacking,
    find_live_ranges,
    pack_under,
    plan_by_methods,
    search_offsets,
)
from byoc.numerics import SearchBudget

# Steps, and how far back they read: more, and one segment has more orders.
SHAPES = ((14, 14), (20, 20), (26, 26), (30, 12), (40, 6))
SEEDS = range(4)
Golden = Callable[[str, str], None]


def digest(numbers: Iterable[object]) -> str:
    """Return what tells whether an order or a row of offsets is another one."""
    return sha256(write(numbers).encode()).hexdigest()[:8]


def write(numbers: Iterable[object]) -> str:
    return " ".join("-" if number is None else str(number) for number in numbers)


def make_problems() -> dict[str, ArenaProblem]:
    found = {
        f"{steps}/{near}/{seed}": random_problem(seed, steps, near=near)
        for steps, near in SHAPES
        for seed in SEEDS
    }
    return found | {f"branches {count}": branches(count) for count in (3, 6, 12)}


def random_packing(seed: int, count: int, most_parts: int) -> GreedyPacking:
    """Compounds of several parts, of which some are empty, in a time that has room for some of them."""
    rng = random.Random(seed)

    def part() -> CompoundPart:
        first = rng.randint(-1, count)
        size = 0 if rng.random() < 0.1 else rng.randint(1, 12)
        return CompoundPart(rng.randint(0, 6), size, first, first + rng.randint(0, count // 3 + 1))

    return GreedyPacking(
        [Compound(tuple(part() for _ in range(rng.randint(1, most_parts)))) for _ in range(count)]
    )


def test_orders_that_are_looked_for_with_few_states(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems().items():
        for states in (1, 4, 30, 300):
            budget = SearchBudget(1000.0)
            found = find_best_order(problem, states, budget)
            rows.append(
                f"{name}, {states} states: {found.peak} bound {found.bound} "
                f"spent {1000 - budget.left:.6f} {digest(found.order)}"
            )
    golden("memory/orders_few_states.txt", "\n".join(rows) + "\n")


def test_orders_that_are_looked_for_in_a_short_time(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems().items():
        for seconds in (0.0, 0.001, 0.01):
            budget = SearchBudget(seconds)
            found = find_best_order(problem, limit=budget)
            rows.append(f"{name}, {seconds} s: {found.peak} bound {found.bound} {digest(found.order)}")
    golden("memory/orders_short_time.txt", "\n".join(rows) + "\n")


def test_orders_that_are_varied(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems().items():
        lives = find_live_ranges(problem, range(len(problem.steps)))
        for seed in range(3):
            found = vary_order(lives, seed)
            assert found.peak <= lives.peak
            rows.append(f"{name}, {seed}: {found.peak} {digest(found.order)}")
    golden("memory/orders_varied.txt", "\n".join(rows) + "\n")


def test_bounds_that_cuts_prove(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems().items():
        lives = find_live_ranges(problem, range(len(problem.steps)))
        whole, step = find_cut_bound(lives)
        for least in (0, whole // 2, whole - 1, whole):
            budget = SearchBudget(1000.0)
            found = find_cut_bound(lives, least, budget)
            assert found == ((whole, step) if least < whole else (whole, None))
            witness = find_witness(lives, least + 1)
            assert (witness is None) == (least + 1 > whole)
            rows.append(f"{name}, above {least}: {write((*found, witness))} {1000 - budget.left:.6f}")
        for seconds in (1e-12, 1e-4, 3e-4):
            rows.append(f"{name}, {seconds}: {write(find_cut_bound(lives, 0, SearchBudget(seconds)))}")
    golden("memory/cut_bounds.txt", "\n".join(rows) + "\n")


def describe(plan: ArenaPlan) -> str:
    details = (plan.order, plan.offsets, plan.scratch, plan.overwrites)
    return f"{plan.size} bound {plan.bound} by {plan.proof} {write([plan.witness])} {digest(details)}"


@pytest.mark.parametrize("seconds", [0.002, 0.02, 0.3])
def test_plans_of_each_method(seconds: float, golden: Golden, spent: list[float]) -> None:
    rows = []
    for name, problem in make_problems().items():
        if seconds > 0.1 and not name.startswith(("14", "branches 3")):
            continue  # what is never proven is tried for long
        for given in (problem, linked(problem, 1)):
            spent.clear()
            plans = plan_by_methods(given, METHODS, seconds)
            rows.append(f"{name}, {write(given.links)}: spent {sum(spent):.6f} in {len(spent)}")
            rows += [f"    {method}: {describe(plan)}" for method, plan in plans.items()]
    golden(f"memory/arena_plans_{seconds:g}.txt", "\n".join(rows) + "\n")


def test_offsets_that_are_looked_for(golden: Golden) -> None:
    rows = []
    for seed in range(12):
        packing = random_packing(seed, 3 + 2 * seed, 1 + seed % 3)
        quick = place_quickly(packing, 0)
        rows.append(f"{seed}: peak {packing.peak}, quickly {packing.height(quick)}: {digest(quick)}")
        for goal in (packing.peak, packing.peak + 3, 0):
            for seconds in (0.001, 0.02):
                budget = SearchBudget(seconds)
                found = search_offsets(packing, goal, budget)
                rows.append(
                    f"    {goal} in {seconds}: {packing.height(found)}, left {budget.left:.6f}, "
                    f"{digest(found)}"
                )
    golden("memory/offsets.txt", "\n".join(rows) + "\n")


def test_offsets_of_a_few_are_the_lowest(golden: Golden) -> None:
    rows = []
    for seed in range(30):
        packing = random_packing(seed, 2 + seed % 3, 2)
        found = find_lowest_offsets(packing)
        rows.append(f"{seed}: {packing.height(found)}: {write(found)}")
    golden("memory/offsets_few.txt", "\n".join(rows) + "\n")


def test_offsets_under_ceilings(golden: Golden) -> None:
    rows = []
    for seed in range(16):
        rng = random.Random(seed)
        count = 4 + 2 * seed
        packing = GreedyPacking(
            [
                Compound.of_block(rng.randint(1, 9), first, first + rng.randint(0, 4))
                for first in (rng.randint(0, count) for _ in range(count))
            ]
        )
        ceilings = [rng.randint(packing.peak // 2, packing.peak + 2) for _ in range(count + 5)]
        losses = [float(rng.randint(1, 5)) for _ in range(count)]
        for given in (None, losses):
            found = pack_under(packing, ceilings, given)
            rows.append(f"{seed} {'weighted' if given else 'alike'}: {write(found)}")
    golden("memory/offsets_under_ceilings.txt", "\n".join(rows) + "\n")


def test_compounds_of_rows_and_overwrites(golden: Golden) -> None:
    rows = []
    for name, problem in make_problems().items():
        for seed in range(3):
            lives = find_live_ranges(linked(problem, seed), range(len(problem.steps)))
            try:
                found = build_compounds(lives)
            except ValueError as error:
                rows.append(f"{name}, {seed}: {error}")
                continue
            sizes = write(each.size for each in found.all)
            rows.append(f"{name}, {seed}: {sizes} {digest([found])}")
    golden("memory/compounds.txt", "\n".join(rows) + "\n")
