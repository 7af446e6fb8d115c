"""Two levels of memory: what is kept, what is loaded and stored when, and where it lies."""

from dataclasses import astuple, replace
from typing import Any

import pytest
from checkers.scratchpad_check import check

from byoc.errors import InputError
from byoc.memory.scratchpad import (
    Access,
    AccessSchedule,
    LoadAction,
    RunAction,
    ScheduledStep,
    StoreAction,
    plan_scratchpad,
)


def chain(*sizes: int, staging: int = 0) -> AccessSchedule:
    """Return turns that each read a buffer and make the next, from input to output."""
    turns = tuple(
        ScheduledStep(f"t{n}", (Access(n), Access(n + 1, writes=True)), staging)
        for n in range(len(sizes) - 1)
    )
    names = tuple(f"b{n}" for n in range(len(sizes)))
    return AccessSchedule(names, sizes, turns, frozenset({0}), frozenset({len(sizes) - 1}))


def residual(pinned: bool = False) -> AccessSchedule:
    """A long block whose input is added to its result: b0 -> b1 -> b2 -> b3 -> b4 = b3 + b1."""
    turns = (
        ScheduledStep("stem", (Access(0), Access(1, writes=True))),
        ScheduledStep("up", (Access(1), Access(2, writes=True))),
        ScheduledStep("down", (Access(2, pinned=pinned), Access(3, writes=True, pinned=pinned))),
        ScheduledStep(
            "add", (Access(3), Access(1), Access(4, writes=True)), may_overwrite=((4, 3), (4, 1))
        ),
    )
    names = ("b0", "b1", "b2", "b3", "b4")
    return AccessSchedule(names, (4, 6, 10, 6, 6), turns, frozenset({0}), frozenset({4}))


def test_a_chain_that_fits_moves_its_input_and_its_output() -> None:
    plan = plan_scratchpad(chain(8, 6, 4, 2), size=14)

    assert (plan.moved, plan.bound, plan.unlimited) == (10, 10, 10)
    assert plan.unkept == 8 + 2 * 6 + 2 * 4 + 2
    assert plan.homes[1] is None
    assert plan.homes[2] is None
    check(plan)


def test_nothing_can_be_kept_in_a_scratchpad_that_has_room_for_staging_alone() -> None:
    plan = plan_scratchpad(chain(8, 6, 4, 2, staging=5), size=5)

    assert plan.moved == plan.unkept
    assert plan.residencies == ()
    assert plan.actions == tuple(RunAction(n, (None, None), 5) for n in range(3))
    check(plan)


def test_staging_takes_room_from_what_is_kept() -> None:
    assert plan_scratchpad(chain(8, 6, 4, 2, staging=4), size=14).moved == 10
    assert plan_scratchpad(chain(8, 6, 4, 2, staging=5), size=14).moved == 10 + 2 * 4
    assert plan_scratchpad(chain(8, 6, 4, 2, staging=9), size=14).moved == 10 + 2 * 6


def test_a_shortcut_is_spilled_once_and_streamed_where_it_is_read() -> None:
    plan = plan_scratchpad(residual(), size=16)

    stores = [action for action in plan.actions if isinstance(action, StoreAction)]
    assert plan.moved == plan.bound == 4 + 6 + 6 + 6
    assert [store.buffer for store in stores] == [1]
    assert plan.homes[1] is not None
    check(plan)


def test_all_is_kept_where_the_shortcut_fits_beside() -> None:
    plan = plan_scratchpad(residual(), size=22)

    assert plan.moved == plan.unlimited == 4 + 6
    assert not any(isinstance(action, StoreAction) and action.buffer == 1 for action in plan.actions)
    check(plan)


def test_a_result_is_written_over_an_operand_that_dies_there() -> None:
    schedule = chain(6, 6, 6, 6)
    over = tuple(replace(turn, may_overwrite=((n + 1, n),)) for n, turn in enumerate(schedule.turns))
    plan = plan_scratchpad(replace(schedule, turns=over), size=6)

    assert plan.moved == 12
    assert plan.arena == 6  # the output's home is the input's
    check(plan)
    assert plan_scratchpad(schedule, size=6).moved == 24


def test_a_load_is_early_by_as_much_as_was_asked_for_and_its_place_is_free() -> None:
    pins = (Access(0, pinned=True),)
    idle = tuple(ScheduledStep(f"idle{n}", (Access(1),)) for n in range(3))
    schedule = AccessSchedule(
        ("a", "b"),
        (4, 4),
        (*idle, ScheduledStep("use", pins)),
        inputs=frozenset({0, 1}),
        outputs=frozenset(),
    )

    for prefetch in (0, 1, 2, 9):
        plan = plan_scratchpad(schedule, size=4 + 4, prefetch=prefetch)
        check(plan)
        load = next(n for n, a in enumerate(plan.actions) if isinstance(a, LoadAction) and a.buffer == 0)
        before = sum(isinstance(action, RunAction) for action in plan.actions[:load])
        assert before == max(0, 3 - prefetch)


def test_a_load_waits_for_its_place() -> None:
    turns = (
        ScheduledStep("first", (Access(0, pinned=True),)),
        ScheduledStep("second", (Access(1, pinned=True),)),
    )
    schedule = AccessSchedule(("a", "b"), (4, 6), turns, inputs=frozenset({0, 1}))

    plan = plan_scratchpad(schedule, size=8, prefetch=1)

    assert [type(action) for action in plan.actions] == [LoadAction, RunAction, LoadAction, RunAction]
    assert [type(a) for a in plan_scratchpad(schedule, size=10).actions] == [
        LoadAction,
        LoadAction,
        RunAction,
        RunAction,
    ]
    check(plan)


def test_what_is_streamed_more_than_once_is_rather_loaded() -> None:
    turn = ScheduledStep("t", (Access(0, streamed=24), Access(1, writes=True)))
    schedule = AccessSchedule(("a", "b"), (8, 2), (turn,), frozenset({0}), frozenset({1}))

    assert plan_scratchpad(schedule, size=7).moved == 24 + 2
    plan = plan_scratchpad(schedule, size=8)
    assert (plan.loaded, plan.moved) == (8, 8 + 2)


def test_a_part_that_is_written_to_what_was_dropped_needs_all_of_it_back() -> None:
    turns = (
        ScheduledStep("half", (Access(0, writes=True, pinned=True),)),
        ScheduledStep("between", (Access(1, writes=True, pinned=True),)),
        ScheduledStep("rest", (Access(0, writes=True, pinned=True),)),
    )
    schedule = AccessSchedule(("row", "other"), (8, 8), turns, outputs=frozenset({0}))

    plan = plan_scratchpad(schedule, size=8)

    assert (plan.loaded, plan.stored) == (8, 16)
    assert plan_scratchpad(schedule, size=16).stored == 8
    check(plan)


def test_inputs_and_outputs_that_are_not_counted_have_no_home_in_the_arena() -> None:
    counted = plan_scratchpad(chain(8, 6, 4, 2), size=2)
    plan = plan_scratchpad(chain(8, 6, 4, 2), size=2, counts_boundary=False)

    assert plan.homes[0] is plan.homes[3] is None
    assert plan.moved == counted.moved
    assert plan.arena == 6 + 4
    assert counted.arena == 8 + 6
    check(plan)


def test_staging_lies_low_and_residents_high() -> None:
    plan = plan_scratchpad(chain(8, 6, 4, 2, staging=4), size=40)

    assert max(stay.address for stay in plan.residencies) + 4 >= 36
    assert all(stay.address >= 4 for stay in plan.residencies)
    assert (2, 1, 2, 36) in map(astuple, plan.residencies) or len(plan.residencies) >= 2


def test_a_turn_that_needs_more_than_there_is_is_named() -> None:
    with pytest.raises(InputError, match=r"scratchpad: 7 bytes are too few, t0 \(step 0\) needs 8"):
        plan_scratchpad(chain(8, 6, staging=8), size=7)
    with pytest.raises(InputError, match=r"15 bytes are too few, down \(step 2\) needs 16"):
        plan_scratchpad(residual(pinned=True), size=15)


def _updating() -> ScheduledStep:
    """A turn that writes one buffer over another that it changes in place."""
    return ScheduledStep("t", (Access(0, writes=True), Access(1, writes=True)), may_overwrite=((1, 0),))


def _reading() -> ScheduledStep:
    """A turn that writes a buffer over itself, and writes nothing."""
    return ScheduledStep("t", (Access(0),), may_overwrite=((0, 0),))


def test_what_cannot_be_executed_is_refused() -> None:
    good = chain(8, 6, 4)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"inputs": frozenset()}, "t0: b0 is read before"),
        ({"outputs": frozenset({7})}, "there is no buffer 7"),
        ({"sizes": (8, 6, 0)}, "b2 is of 0 bytes"),
        ({"alignment": 4}, "b1 is of 6 bytes, no positive multiple of 4"),
        ({"names": ("a",)}, "1 names for 3 buffers"),
        ({"turns": good.turns[:1]}, "b2 is an output, and no turn writes it"),
        ({"turns": (ScheduledStep("t", (Access(0), Access(0))),)}, "turn t: a buffer has two accesses"),
        ({"turns": (ScheduledStep("t", (Access(9),)),)}, "turn t: there is no buffer 9"),
        ({"turns": (ScheduledStep("t", (Access(0),), staging=-1),)}, "turn t: staging of -1"),
        (
            {"turns": (ScheduledStep("t", (Access(0, staging=-1),)),)},
            "turn t: b0 has -1 bytes of staging",
        ),
        ({"turns": (ScheduledStep("t", (Access(0),), may_overwrite=((1, 0),)),)}, "turn t: over"),
        ({"sizes": (8, 8, 4), "turns": (_updating(), *good.turns[1:])}, "b1 is to be written, and b0"),
        ({"sizes": (8, 8, 4), "turns": (_reading(), *good.turns)}, "b0 is to be written, and b0"),
    ]
    for change, complaint in wrong:
        with pytest.raises(InputError, match=complaint):
            replace(good, **change)


def test_nothing_to_do_is_a_plan() -> None:
    plan = plan_scratchpad(AccessSchedule((), (), ()), size=0)

    assert (plan.actions, plan.moved, plan.bound) == ((), 0, 0)
    check(plan)
