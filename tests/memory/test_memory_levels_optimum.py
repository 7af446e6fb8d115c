"""Two levels of memory against trying everything that can be resident and kept."""

from random import Random

import pytest
from checkers.scratchpad_check import objections
from helpers.support import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memory_levels_random import exhaustive, random_schedule

from byoc.errors import InputError
from byoc.memory.scratchpad import RunAction, plan_scratchpad


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10_000))
def test_no_choice_moves_fewer_bytes(seed: int) -> None:
    schedule = random_schedule(seed, turns=3)
    size = Random(seed).randint(3, 18)
    assume(sum(len(turn.accesses) for turn in schedule.turns) <= 8)

    fewest = exhaustive(schedule, size)

    if fewest is None:
        with pytest.raises(InputError, match="bytes are too few"):
            plan_scratchpad(schedule, size)
        return
    plan = plan_scratchpad(schedule, size)
    assert plan.is_exact
    assert plan.bound == fewest
    assert plan.moved >= fewest
    assert objections(plan) == []


def test_nearly_always_places_are_found_for_what_moves_the_fewest_bytes() -> None:
    plans = [plan_scratchpad(random_schedule(seed, turns=9), size=20) for seed in range(40)]

    assert sum(plan.moved == plan.bound for plan in plans) >= 38
    assert sum(plan.unlimited < plan.moved < plan.unkept for plan in plans) >= 20
    assert all(objections(plan) == [] for plan in plans)
    assert any(
        isinstance(a, RunAction) and a.area for plan in plans for a in plan.actions
    )  # staging moved


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([10, 20, 40, 80]), st.integers(0, 3), st.booleans())
def test_plans_of_longer_schedules_do_what_they_say(
    seed: int, size: int, prefetch: int, counted: bool
) -> None:
    schedule = random_schedule(seed, turns=14, alignment=4)
    try:
        plan = plan_scratchpad(
            schedule, 4 * size + 3, prefetch=prefetch, counts_boundary=counted, seconds=2.0
        )
    except InputError:
        return

    assert objections(plan) == []
    assert plan.unlimited <= plan.bound <= plan.moved <= plan.unkept
    assert all(stay.address % 4 == 0 for stay in plan.residencies)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10_000))
def test_a_larger_scratchpad_never_has_a_larger_bound(seed: int) -> None:
    schedule = random_schedule(seed, turns=8)
    bounds = [plan_scratchpad(schedule, size).bound for size in (30, 45, 60, 90)]

    assert bounds == sorted(bounds, reverse=True)


def test_a_search_that_is_stopped_says_so_and_its_plan_can_be_executed() -> None:
    schedule = random_schedule(1, turns=60, largest=40)

    plan = plan_scratchpad(schedule, 120, seconds=0.0)

    assert not plan.is_exact
    assert objections(plan) == []
    assert plan.bound <= plan.moved < plan.unkept
