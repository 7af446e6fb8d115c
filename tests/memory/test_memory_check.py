from dataclasses import replace

import pytest
from checkers.arena_check import check
from checkers.bound_check import _Around, refuted
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import branches, chain, fewest_bytes_at, least_peak, linked, problems, random_problem

from byoc.memory.arena import METHODS, ArenaPlan, ArenaProblem, ArenaStep, plan_buffers


def moved(right: ArenaPlan, buffer: int, by: int) -> ArenaPlan:
    offsets = list(right.offsets)
    offsets[buffer] += by
    return replace(right, offsets=tuple(offsets), size=right.size + abs(by))


@settings(deadline=None, max_examples=examples(40))
@given(problems(8), st.sampled_from(METHODS))
def test_every_plan_is_accepted(problem: ArenaProblem, method: str) -> None:
    assert check(plan_buffers(problem, method)) == []


@settings(deadline=None, max_examples=examples(40))
@given(problems(7), st.integers(0, 99), st.sampled_from(METHODS))
def test_every_plan_with_links_is_accepted(problem: ArenaProblem, seed: int, method: str) -> None:
    assert check(plan_buffers(linked(problem, seed), method)) == []


@settings(deadline=None, max_examples=examples(40))
@given(problems(8))
def test_a_bound_too_high_by_one_is_refused(problem: ArenaProblem) -> None:
    right = plan_buffers(problem)

    assert check(replace(right, bound=right.bound + 1, size=right.size + 1))


@settings(deadline=None, max_examples=examples(60))
@given(problems(6))
def test_the_fewest_bytes_at_a_step_are_those_of_all_that_may_have_run(problem: ArenaProblem) -> None:
    for step in range(len(problem.steps)):
        assert _Around(problem, step).fewest() == fewest_bytes_at(problem, step)


@settings(deadline=None, max_examples=examples(60))
@given(problems(5))
def test_a_search_finds_an_order_below_a_bound_where_there_is_one(problem: ArenaProblem) -> None:
    plan, least = replace(plan_buffers(problem), proof="search"), least_peak(problem)

    assert refuted(replace(plan, bound=least)).reasons == []
    sentence = f"there is an order that needs less than the bound of {least + 1}"
    assert refuted(replace(plan, bound=least + 1)).reasons == [sentence]


def branching(*steps: ArenaStep, sizes: tuple[int, ...], outputs: tuple[int, ...] = ()) -> ArenaProblem:
    names = tuple(f"b{number}" for number in range(len(sizes)))
    return ArenaProblem(names, sizes, steps, frozenset({0}), frozenset(outputs))


@pytest.mark.parametrize(
    ("problem", "step", "fewest"),
    [
        # Step 1 would turn the input's 9 bytes into 1, but step 0, before it, makes 20 that stay.
        (
            branching(
                *(ArenaStep("s0", (), (1, 2)), ArenaStep("s1", (0, 1), (3,)), ArenaStep("s2", (), (4,))),
                *(ArenaStep("s3", (2, 3, 4), (5,)),),
                sizes=(9, 1, 20, 1, 3, 0),
            ),
            *(2, 9 + 3),
        ),
        # It waits for step 0 through step 1, whose 1 byte is what is left of 9.
        (
            branching(
                *(ArenaStep("s0", (0,), (1,)), ArenaStep("s1", (1,), (2,)), ArenaStep("s2", (2,), (3,))),
                sizes=(9, 5, 1, 3),
                outputs=(3,),
            ),
            *(2, 1 + 3),
        ),
        # Only the last operand may be written over: the first is an output, the second is read later.
        (
            branching(
                *(ArenaStep("s0", (0,), (1, 2, 3)), ArenaStep("s1", (1, 2, 3), (4,), (1, 2, 3))),
                *(ArenaStep("s2", (4,), (5,)), ArenaStep("s3", (2, 5), (6,))),
                sizes=(2, 8, 8, 8, 8, 1, 1),
                outputs=(1, 6),
            ),
            *(1, 3 * 8),
        ),
        # To write over its operand it waits for another reader, which makes 4 bytes of 0: still fewer.
        (
            branching(
                *(ArenaStep("s0", (0,), (1,), (0,)), ArenaStep("s1", (0,), (2,))),
                sizes=(7, 7, 4),
                outputs=(1, 2),
            ),
            *(0, 7 + 4),
        ),
    ],
)
def test_bytes_at_a_step(problem: ArenaProblem, step: int, fewest: int) -> None:
    assert _Around(problem, step).fewest() == fewest_bytes_at(problem, step) == fewest


def test_scratch_lies_beside_what_is_written_over_an_operand() -> None:
    steps = (ArenaStep("a", (0,), (1,), (0,), scratch=4),)
    problem = ArenaProblem(("x", "y"), (4, 4), steps, frozenset({0}), frozenset({1}))
    right = replace(plan_buffers(problem), offsets=(0, 0), overwrites=(None, 0), scratch=(4,), size=8)

    assert check(right) == []
    assert check(replace(right, scratch=(3,))) == [
        "x and scratch of a overlap while both are needed",
        "y and scratch of a overlap while both are needed",
    ]


def test_a_buffer_of_no_bytes_overlaps_nothing() -> None:
    right = plan_buffers(chain(4, 0, 4))

    for offset in range(9):
        assert check(replace(right, offsets=(0, offset, 4), size=8)) == []


def test_two_that_overlap_for_long_are_named_once() -> None:
    right = plan_buffers(chain(4, 4, 4))
    steps = tuple(replace(step, reads=(0, *step.reads)) for step in right.problem.steps)
    problem = replace(right.problem, steps=steps)

    wrong = replace(plan_buffers(problem), offsets=(0, 4, 2), size=12)

    assert check(wrong) == [
        "b0 and b2 overlap while both are needed",
        "b2 and b1 overlap while both are needed",
    ]
    assert check(replace(wrong, offsets=(0, 2, 8))) == ["b0 and b1 overlap while both are needed"]


def test_a_bound_of_a_search_that_is_too_high_is_refused() -> None:
    right = next(
        p for seed in range(99) if (p := plan_buffers(random_problem(seed, 9))).proof == "search"
    )

    assert check(right) == []
    wrong = replace(right, bound=right.bound + 1, size=right.size + 1)
    assert check(wrong) == [f"there is an order that needs less than the bound of {wrong.bound}"]


def test_a_search_that_takes_too_long_is_said_not_to_be_checked() -> None:
    right = replace(plan_buffers(branches(16)), proof="search")

    assert not refuted(right, most_states=5).is_checked
    assert refuted(plan_buffers(branches(16)), most_states=5).is_checked


def test_a_search_runs_steps_that_leave_no_more_at_once() -> None:
    """Each of 12 steps turns a byte into another: 12 sets are seen before the last one, not 78."""
    steps = tuple(ArenaStep(f"s{at}", (at,), (12 + at,)) for at in range(12))
    names = tuple(f"b{at}" for at in range(24))
    ends = frozenset(range(12)), frozenset(range(12, 24))
    plan = replace(plan_buffers(ArenaProblem(names, (1,) * 24, steps, *ends)), proof="search")

    assert refuted(replace(plan, bound=14), most_states=12).reasons
    assert not refuted(replace(plan, bound=14), most_states=11).is_checked


def test_inputs_are_there_before_the_first_step_read_or_not() -> None:
    steps = (ArenaStep("s", (1,), (2,)),)
    problem = ArenaProblem(("x", "y", "z"), (9, 1, 1), steps, frozenset({0, 1}), frozenset({2}))
    plan = replace(plan_buffers(problem), proof="search")

    assert [bool(refuted(replace(plan, bound=bound)).reasons) for bound in (9, 10, 11)] == [0, 0, 1]


@pytest.mark.parametrize("sizes", [(10, 20), (10,)])
def test_a_bound_is_exactly_what_its_proof_says(sizes: tuple[int, ...]) -> None:
    right = plan_buffers(chain(*sizes))
    assert right.proof == ("cut" if len(sizes) > 1 else "total")
    for by, wrong in ((-1, 1), (0, 0), (1, 1)):
        assert len(refuted(replace(right, bound=right.bound + by)).reasons) == wrong


def test_buffers_that_overlap_by_a_byte_are_refused() -> None:
    right = plan_buffers(chain(10, 20))
    low = min(right.offsets)

    wrong = moved(right, right.offsets.index(low), +1)

    assert any("overlap while both are needed" in reason for reason in check(wrong))


def test_scratch_over_a_buffer_is_refused() -> None:
    steps = (ArenaStep("a", (0,), (1,), scratch=4),)
    right = plan_buffers(ArenaProblem(("x", "y"), (4, 4), steps, frozenset({0}), frozenset({1})))

    wrong = replace(right, scratch=(right.offsets[0] + 3,), size=right.size + 3)

    assert check(right) == []
    assert any("scratch of a" in reason and "overlap" in reason for reason in check(wrong))


def test_a_take_over_of_what_is_read_later_is_refused() -> None:
    steps = (ArenaStep("a", (0,), (1,), (0,)), ArenaStep("b", (0, 1), (2,)))
    right = plan_buffers(ArenaProblem(("x", "y", "z"), (8, 8, 8), steps, frozenset({0}), frozenset({2})))
    offsets = (right.offsets[0], right.offsets[0], right.offsets[2])

    wrong = replace(right, overwrites=(None, 0, None), offsets=offsets)

    assert "y over x: that is still needed later" in check(wrong)


def test_a_take_over_that_no_step_allows_is_refused() -> None:
    right = plan_buffers(chain(8, 8))

    wrong = replace(right, overwrites=(None, 0), offsets=(0, 0))

    assert "b1 over b0: the step does not allow it" in check(wrong)


def test_an_order_in_which_a_step_reads_what_is_not_made_is_refused() -> None:
    right = plan_buffers(chain(1, 2, 3))

    assert check(replace(right, order=(1, 0))) == ["s1 reads b1 before it is made"]
    assert check(replace(right, order=(0, 0))) == ["the order does not hold each step once"]


def test_a_step_before_one_that_it_has_to_wait_for_is_refused() -> None:
    steps = (ArenaStep("a", (), (0,)), ArenaStep("b", (), (1,), after=(0,)))
    right = plan_buffers(ArenaProblem(("x", "y"), (1, 1), steps))

    assert check(replace(right, order=(1, 0))) == ["b runs before a"]


def test_a_broken_link_is_refused() -> None:
    right = plan_buffers(replace(chain(8, 8, 8), links=((0, 1),)))

    assert check(right) == []
    assert "b1 does not lie right behind b0" in check(moved(right, 1, 8))


def test_an_offset_that_is_not_aligned_is_refused() -> None:
    right = plan_buffers(replace(chain(16, 32), alignment=16))

    assert any("no multiple of 16" in reason for reason in check(moved(right, 1, 1)))


def test_what_lies_outside_of_the_arena_is_refused() -> None:
    right = plan_buffers(chain(10, 20))

    reasons = check(replace(right, size=29))

    assert any("outside of the arena" in reason for reason in reasons)
    assert "the arena has 29 bytes, less than the bound of 30" in reasons


@pytest.mark.parametrize("change", [{"proof": "hope"}, {"witness": None}, {"proof": "total"}])
def test_a_proof_that_is_none_is_refused(change: dict[str, str | None]) -> None:
    right = plan_buffers(chain(10, 20))

    assert right.proof == "cut"
    assert len(check(replace(right, **change))) == 1  # type: ignore[arg-type]
