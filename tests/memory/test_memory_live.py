from hypothesis import given, settings
from hypothesis import strategies as st
from problems import chain, orders, peak, problems

from byoc.memory.arena import ArenaProblem, ArenaStep, find_live_ranges


def test_a_chain_holds_two_buffers_at_a_time() -> None:
    lives = find_live_ranges(chain(10, 20, 30, 40), (0, 1, 2))

    assert lives.bytes_at == (30, 50, 70)
    assert lives.peak == 70
    assert lives.first == (-1, 0, 1, 2)
    assert lives.last == (0, 1, 2, 2)


def test_what_is_written_over_an_operand_adds_nothing() -> None:
    lives = find_live_ranges(chain(10, 10, 10, over=True), (0, 1))

    assert lives.overwrites == (None, 0, 1)
    assert lives.bytes_at == (10, 10)


def test_an_operand_that_is_read_again_or_is_an_output_is_not_written_over() -> None:
    steps = (ArenaStep("a", (0,), (1,), (0,)), ArenaStep("b", (0, 1), (2,), (0, 1)))
    problem = ArenaProblem(("x", "y", "z"), (8, 8, 8), steps, frozenset({0}), frozenset({1, 2}))

    lives = find_live_ranges(problem, (0, 1))

    assert lives.overwrites == (None, None, 0)
    assert lives.bytes_at == (16, 16)


def test_of_two_dying_operands_the_last_can_be_asked_for() -> None:
    steps = (ArenaStep("add", (0, 1), (2,), (0, 1)),)
    problem = ArenaProblem(("x", "y", "z"), (8, 8, 8), steps, frozenset({0, 1}), frozenset({2}))

    assert find_live_ranges(problem, (0,)).overwrites[2] == 0
    assert find_live_ranges(problem, (0,), last_operand=True).overwrites[2] == 1


def test_scratch_counts_while_its_step_runs_alone() -> None:
    steps = (ArenaStep("a", (0,), (1,), scratch=100), ArenaStep("b", (1,), (2,)))
    problem = ArenaProblem(("x", "y", "z"), (1, 2, 3), steps, frozenset({0}), frozenset({2}))

    assert find_live_ranges(problem, (0, 1)).bytes_at == (103, 5)


def test_what_nobody_reads_is_there_where_it_is_made() -> None:
    steps = (ArenaStep("a", (0,), (1, 2)), ArenaStep("b", (1,), (3,)))
    problem = ArenaProblem(("x", "y", "dead", "z"), (1, 2, 50, 3), steps, frozenset({0}), frozenset({3}))

    assert find_live_ranges(problem, (0, 1)).bytes_at == (53, 5)


def test_all_inputs_are_there_before_the_first_step() -> None:
    problem = ArenaProblem(
        ("x", "y", "z"), (8, 100, 1), (ArenaStep("a", (0,), (2,)),), frozenset({0, 1})
    )

    assert find_live_ranges(problem, (0,)).peak == 108


@settings(deadline=None)
@given(problems(6), st.booleans())
def test_the_peak_is_what_the_definition_says(problem: ArenaProblem, last_operand: bool) -> None:
    for order in orders(problem):
        assert find_live_ranges(problem, order, last_operand).peak == peak(problem, order)
