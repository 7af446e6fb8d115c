import sys
from dataclasses import replace
from itertools import permutations

import pytest
from arena_searches import OrderResult, find_best_order
from helpers.support import examples
from hypothesis import given, settings
from problems import branches, chain, least_peak, problems, total_bytes

from byoc.errors import InputError
from byoc.memory.arena import METHODS, ArenaProblem, ArenaStep, plan_buffers, plan_by_methods
from byoc.numerics import SearchBudget


@settings(deadline=None, max_examples=examples(40))
@given(problems())
def test_the_bound_is_the_least_peak_and_the_same_for_all_methods(problem: ArenaProblem) -> None:
    plans = [plan_buffers(problem, method) for method in METHODS]

    assert {each.bound for each in plans} == {least_peak(problem)}
    assert all(each.size >= each.bound for each in plans)
    assert plans[0].size == total_bytes(problem)
    assert plans[-1].size == min(each.size for each in plans)


@pytest.mark.parametrize("count", [8, 16, 24, 32, 40, 64])
def test_many_unequal_branches_lie_in_the_smallest_arena(count: int) -> None:
    found = plan_buffers(branches(count))

    assert found.is_minimal
    assert found.proof == "cut"


def test_the_same_problem_gives_the_same_plan() -> None:
    problem = branches(16)

    for method in METHODS[:-1]:
        assert plan_buffers(problem, method) == plan_buffers(replace(problem), method)
    one, other = plan_buffers(problem), plan_buffers(replace(problem))
    assert (one.order, one.size, one.bound) == (other.order, other.size, other.bound)


def test_without_time_there_is_a_plan_and_a_bound() -> None:
    found = plan_buffers(branches(32), time_limit=0.0)

    assert found.bound <= found.size < total_bytes(branches(32))


def test_what_ran_out_of_time_is_searched_again() -> None:
    problem = branches(8)

    assert not plan_buffers(problem, time_limit=0.0).is_minimal
    assert plan_buffers(problem).is_minimal


def test_several_methods_have_one_search_of_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = branches(16)
    alone = {method: plan_buffers(problem, method) for method in METHODS}
    searched: list[ArenaProblem] = []

    def counted(asked: ArenaProblem, *, limit: SearchBudget) -> OrderResult:
        searched.append(asked)
        return find_best_order(asked, limit=limit)

    monkeypatch.setattr(sys.modules[plan_by_methods.__module__], find_best_order.__name__, counted)
    together = plan_by_methods(problem, METHODS)

    assert searched == [problem]
    assert {m: (p.order, p.size, p.bound) for m, p in together.items()} == {
        m: (p.order, p.size, p.bound) for m, p in alone.items()
    }


def test_an_empty_problem_is_its_inputs() -> None:
    inputs = frozenset({0, 1})

    found = plan_buffers(ArenaProblem(("x", "y"), (3, 4), (), inputs, inputs))

    assert (found.size, found.bound, found.proof) == (7, 7, "total")


def test_concat_in_place_costs_nothing_where_its_operands_can_lie_side_by_side() -> None:
    steps = (
        ArenaStep("a", (0,), (1,)),
        ArenaStep("b", (0,), (2,)),
        ArenaStep("concat", (1, 2), ()),
        ArenaStep("c", (1, 2), (3,)),
    )
    names = ("x", "left", "right", "y")
    outputs = frozenset({3})
    for row in permutations((1, 2)):
        problem = ArenaProblem(names, (8, 16, 24, 4), steps, frozenset({0}), outputs, (row,))

        found = plan_buffers(problem)

        assert found.is_minimal
        assert found.offsets[row[1]] == found.offsets[row[0]] + problem.sizes[row[0]]


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"method is named 'exakt' \(did you mean exact\?\): there are no-"
    ):
        plan_buffers(chain(1, 2), "exakt")


def test_a_problem_that_is_none_is_refused() -> None:
    over = ArenaProblem(("x", "y"), (1, 2), (ArenaStep("a", (0,), (1,), (0,)),), frozenset({0}))
    scratch = ArenaProblem(("x",), (8,), (ArenaStep("a", (), (0,), scratch=1),), alignment=8)
    crossed = replace(chain(1, 2), links=((0, 1), (1, 0)))

    waiting = ArenaProblem(("x",), (1,), (ArenaStep("a", (0,), ()), ArenaStep("b", (), (0,))))

    for wrong, says in (
        (waiting, "a stands in front of a step that it waits for"),
        (replace(chain(1, 2), alignment=4), "b0 has 1 bytes"),
        (scratch, "a has scratch"),
        (over, "a cannot be written over"),
        (crossed, "contradicts another one"),
    ):
        with pytest.raises(ValueError, match=says):
            plan_buffers(wrong)
