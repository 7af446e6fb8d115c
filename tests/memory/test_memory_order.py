import random
from itertools import pairwise

import pytest
from arena_searches import find_best_order, split_segments, vary_order
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import branches, chain, least_peak, peak, problems, random_problem

from byoc.memory.arena import ArenaProblem, find_live_ranges


@settings(deadline=None)
@given(problems())
def test_no_order_has_a_lower_peak(problem: ArenaProblem) -> None:
    ordered = find_best_order(problem)

    assert ordered.peak == peak(problem, ordered.order) == least_peak(problem) == ordered.bound


def by_sets(problem: ArenaProblem) -> int:
    """The least peak, over all sets of steps that can have run."""
    before = [sum(1 << other for other in each) for each in problem.predecessors]
    readers = [sum(1 << reader for reader in each) for each in problem.readers]

    def live_at(ran: int) -> set[int]:
        made = {b for b, m in enumerate(problem.maker) if m < 0 or ran >> m & 1}
        return {b for b in made if b in problem.outputs or readers[b] & ~ran}

    level = {0: sum(problem.sizes[b] for b in problem.inputs)}
    for _ in problem.steps:
        reached: dict[int, int] = {}
        for ran, so_far in level.items():
            for number, step in enumerate(problem.steps):
                if ran >> number & 1 or before[number] & ~ran:
                    continue
                after = ran | 1 << number
                dying = bool(step.writes) and bool(set(step.may_overwrite) - live_at(after))
                there = [*live_at(ran), *step.writes[dying:]]
                most = max(so_far, step.scratch + sum(problem.sizes[b] for b in there))
                reached[after] = min(most, reached.get(after, most))
        level = reached
    return min(level.values())


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 13), st.integers(1, 8))
def test_no_order_of_more_steps_has_a_lower_peak(seed: int, steps: int, near: int) -> None:
    problem = random_problem(seed, steps, near=near)

    ordered = find_best_order(problem)

    assert ordered.peak == ordered.bound == by_sets(problem)


@pytest.mark.parametrize("count", [8, 16, 64])
def test_many_unequal_branches_are_ordered_best(count: int) -> None:
    problem = branches(count)

    ordered = find_best_order(problem)

    assert ordered.peak == ordered.bound < find_live_ranges(problem, range(len(problem.steps))).peak


def test_a_thousand_steps_in_a_row_are_a_thousand_segments() -> None:
    problem = chain(*(random.Random(0).randint(1, 9) for _ in range(1001)))

    assert [s.count for s in split_segments(problem)] == [1] * 1000
    assert find_best_order(problem).order == tuple(range(1000))


@settings(deadline=None)
@given(problems(9))
def test_segments_hold_each_step_once_and_join_without_a_seam(problem: ArenaProblem) -> None:
    found = list(split_segments(problem))

    assert sum(s.count for s in found) == len(problem.steps)
    for left, right in pairwise(found):
        assert (left.start + left.count, left.bytes_after) == (right.start, right.bytes_before)


@settings(deadline=None)
@given(problems(10), st.integers(0, 3))
def test_a_limit_of_states_leaves_a_right_order_and_a_bound_below_it(
    problem: ArenaProblem, most_states: int
) -> None:
    ordered = find_best_order(problem, most_states=most_states)

    assert ordered.bound <= find_best_order(problem).peak <= ordered.peak == peak(problem, ordered.order)


@settings(deadline=None)
@given(problems(9), st.integers(0, 5))
def test_a_varied_order_is_one_with_no_higher_peak(problem: ArenaProblem, seed: int) -> None:
    lives = find_live_ranges(problem, find_best_order(problem).order)

    other = vary_order(lives, seed)

    assert other.peak == lives.peak == peak(problem, other.order)
    place = {step: at for at, step in enumerate(other.order)}
    assert all(place[p] < place[s] for s, ps in enumerate(problem.predecessors) for p in ps)
