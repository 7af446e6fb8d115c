"""The replay of two levels of memory refuses what a planner could get wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from checkers.scratchpad_check import check, objections
from memory_levels_random import random_schedule

from byoc.errors import InputError
from byoc.memory.scratchpad import (
    Access,
    AccessSchedule,
    LoadAction,
    RunAction,
    ScheduledStep,
    ScratchpadPlan,
    StoreAction,
    plan_scratchpad,
)


@pytest.fixture(scope="module")
def plan() -> ScratchpadPlan:
    """A plan with all kinds of actions."""
    found = plan_scratchpad(random_schedule(3, turns=12, largest=12), size=40)
    kinds = {type(action) for action in found.actions}
    assert kinds == {LoadAction, RunAction, StoreAction}
    assert found.streamed
    check(found)
    return found


def without(plan: ScratchpadPlan, kind: type[LoadAction | RunAction | StoreAction]) -> ScratchpadPlan:
    number = next(n for n, action in enumerate(plan.actions) if isinstance(action, kind))
    return replace(plan, actions=plan.actions[:number] + plan.actions[number + 1 :])


def moved_by(plan: ScratchpadPlan, kind: type[LoadAction | StoreAction], by: int) -> ScratchpadPlan:
    actions = list(plan.actions)
    number, action = next((n, a) for n, a in enumerate(actions) if isinstance(a, kind))
    assert isinstance(action, LoadAction | StoreAction)
    actions[number] = replace(action, address=action.address + by)
    return replace(plan, actions=tuple(actions))


def with_staging(plan: ScratchpadPlan, more: int) -> ScratchpadPlan:
    return replace(
        plan,
        actions=tuple(
            replace(a, staging=a.staging + more) if isinstance(a, RunAction) else a for a in plan.actions
        ),
    )


def staging_elsewhere(plan: ScratchpadPlan) -> ScratchpadPlan:
    """Staging lies where a resident operand of the turn does."""
    actions = list(plan.actions)
    for number, action in enumerate(actions):
        if isinstance(action, RunAction) and action.staging:
            read = [
                place
                for access, place in zip(
                    plan.schedule.turns[action.turn].accesses, action.addresses, strict=True
                )
                if place is not None and not access.writes
            ]
            if read:
                actions[number] = replace(action, area=read[0])
                return replace(plan, actions=tuple(actions))
    raise AssertionError("no turn has staging and a resident operand")


def backwards(plan: ScratchpadPlan) -> ScratchpadPlan:
    runs = [n for n, action in enumerate(plan.actions) if isinstance(action, RunAction)]
    actions = list(plan.actions)
    actions[runs[0]], actions[runs[1]] = actions[runs[1]], actions[runs[0]]
    return replace(plan, actions=tuple(actions))


def homes_at_zero(plan: ScratchpadPlan) -> ScratchpadPlan:
    return replace(plan, homes=tuple(None if home is None else 0 for home in plan.homes))


def homeless(plan: ScratchpadPlan) -> ScratchpadPlan:
    return replace(plan, homes=(None,) * len(plan.homes))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda p: without(p, LoadAction), "does not hold it"),
        (lambda p: without(p, StoreAction), "does not hold it|bytes are stored"),
        (lambda p: without(p, RunAction), "it is the turn of"),
        (backwards, "it is the turn of 0"),
        (lambda p: moved_by(p, LoadAction, -1), "does not hold it"),
        (lambda p: moved_by(p, LoadAction, 1000), "outside the scratchpad"),
        (lambda p: moved_by(p, StoreAction, 1), "does not hold it|outside the scratchpad"),
        (lambda p: with_staging(p, 1), "the turn needs"),
        (staging_elsewhere, "staging and b[0-9]+ overlap in the scratchpad"),
        (homes_at_zero, "overlap in the arena|does not hold it"),
        (homeless, "has no home in system memory"),
        (lambda p: replace(p, arena=p.arena - 1), "outside the arena"),
        (lambda p: replace(p, size=p.size // 2), "outside the scratchpad"),
        (lambda p: replace(p, loaded=p.loaded - 1), "bytes are loaded"),
        (lambda p: replace(p, stored=p.stored + 1), "bytes are stored"),
        (lambda p: replace(p, streamed=0), "bytes are streamed"),
        (lambda p: replace(p, bound=p.moved + 1), "the bound of"),
        (lambda p: replace(p, actions=p.actions[:-3]), "turns are executed|does not hold it"),
    ],
)
def test_planted_errors_are_refused(
    plan: ScratchpadPlan, spoil: Callable[[ScratchpadPlan], ScratchpadPlan], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        check(spoil(plan))


def test_each_load_store_and_address_is_needed(plan: ScratchpadPlan) -> None:
    for number, action in enumerate(plan.actions):
        left = replace(plan, actions=plan.actions[:number] + plan.actions[number + 1 :])
        assert objections(left), action


def test_two_residents_of_a_turn_cannot_overlap(plan: ScratchpadPlan) -> None:
    refused = 0
    for number, action in enumerate(plan.actions):
        places = (
            [place for place in action.addresses if place is not None]
            if isinstance(action, RunAction)
            else []
        )
        if isinstance(action, RunAction) and len(set(places)) > 1:
            same = tuple(None if place is None else places[0] for place in action.addresses)
            changed = replace(action, addresses=same)
            actions = (*plan.actions[:number], changed, *plan.actions[number + 1 :])
            assert any(
                "does not hold it" in o or "overlap" in o
                for o in objections(replace(plan, actions=actions))
            )
            refused += 1
    assert refused


def test_what_is_pinned_cannot_be_streamed() -> None:
    schedule = random_schedule(3, turns=12, largest=12)
    plan = plan_scratchpad(schedule, size=40)
    pinned = tuple(
        replace(turn, accesses=tuple(replace(a, pinned=True) for a in turn.accesses))
        for turn in schedule.turns
    )

    with pytest.raises(InputError, match="is streamed, and has to be resident"):
        check(replace(plan, schedule=replace(schedule, turns=pinned)))


def test_what_is_in_both_memories_can_be_read_in_either() -> None:
    """A plan changed to another one that moves as many bytes is no wrong plan."""
    turns = (
        ScheduledStep("make", (Access(0, writes=True),)),
        ScheduledStep("glance", (Access(0, streamed=0),)),
        ScheduledStep("use", (Access(0, streamed=24),)),
    )
    plan = plan_scratchpad(AccessSchedule(("a",), (8,), turns, outputs=frozenset({0})), size=8)
    stored = next(n for n, action in enumerate(plan.actions) if isinstance(action, StoreAction))
    glance = next(n for n, a in enumerate(plan.actions) if isinstance(a, RunAction) and a.turn == 1)
    actions = list(plan.actions)
    actions[glance] = RunAction(1, (None,), 0)

    assert stored < glance
    check(plan)
    check(replace(plan, actions=tuple(actions)))
    with pytest.raises(InputError, match="does not hold it"):
        check(replace(plan, actions=tuple(a for n, a in enumerate(actions) if n != stored)))
