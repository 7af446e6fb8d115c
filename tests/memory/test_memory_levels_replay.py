"""The replay of two levels of memory, on a plan that one can follow by hand: right, and a thing off."""

from dataclasses import replace

import pytest
from checkers.scratchpad_check import _Memory, objections

from byoc.memory.scratchpad import (
    Access,
    AccessSchedule,
    LoadAction,
    RunAction,
    ScheduledStep,
    ScratchpadPlan,
    StoreAction,
)

X, W, A, Y = range(4)
ONE = ScheduledStep("one", (Access(X), Access(W, streamed=6, staging=2), Access(A, writes=True)), 1)
TWO = ScheduledStep("two", (Access(A), Access(Y, writes=True)), may_overwrite=((Y, A),))
THREE = ScheduledStep("three", (Access(X), Access(Y, writes=True)))
SCHEDULE = AccessSchedule(
    ("x", "w", "a", "y"), (4, 2, 4, 4), (ONE, TWO, THREE), frozenset({X, W}), frozenset({Y})
)
LOAD, STORE = LoadAction(X, 0, 0), StoreAction(Y, 4)
RUNS = RunAction(0, (0, None, 4), 3, 8), RunAction(1, (4, 4), 0), RunAction(2, (0, 4), 0)
STREAMED = RunAction(2, (0, None), 0)
PLAN = ScratchpadPlan(
    *(SCHEDULE, 11, (LOAD, *RUNS, STORE), ()),
    homes=(0, 4, None, 6),
    arena=10,
    counts_boundary=True,
    loaded=4,
    stored=4,
    streamed=6,
    bound=14,
    is_exact=True,
    unkept=0,
    unlimited=0,
)
"""x is loaded to byte 0, w streamed, a made at byte 4, y over it; then x and y are used again."""


def actions(*numbers: int, **changed: LoadAction | RunAction | StoreAction) -> ScratchpadPlan:
    """The plan with some of its actions, `a1` in the place of its action 1."""
    return replace(PLAN, actions=tuple(changed.get(f"a{n}", PLAN.actions[n]) for n in numbers))


def turns(*changed: ScheduledStep) -> ScratchpadPlan:
    names = {turn.name: turn for turn in changed}
    steps = tuple(names.get(turn.name, turn) for turn in SCHEDULE.turns)
    return replace(PLAN, schedule=replace(SCHEDULE, turns=steps))


def run(number: int, *addresses: int | None, staging: int = 0, area: int = 0) -> dict[str, RunAction]:
    return {f"a{number + 1}": RunAction(number, addresses, staging, area)}


ALL = (0, 1, 2, 3, 4)
CALLERS = replace(PLAN, homes=(None,) * 4, arena=0, counts_boundary=False)
LOST_X = "action 3, run three: x: byte {} of the scratchpad does not hold it"


@pytest.mark.parametrize(
    ("plan", "sentences"),
    [
        (PLAN, []),
        (CALLERS, []),
        # the bytes of the scratchpad
        (
            replace(PLAN, size=10),
            ["action 1, run one: bytes 8 to 11 are outside the scratchpad of 10"],
        ),
        (
            actions(*ALL, a0=LoadAction(X, -1, 0)),
            [
                "action 0, loadaction x: bytes -1 to 3 are outside the scratchpad of 11",
                "action 1, run one: x: byte 0 of the scratchpad does not hold it",
                LOST_X.format(0),
            ],
        ),
        (
            actions(*ALL, a0=LoadAction(X, 1, 0)),
            [
                "action 1, run one: x: byte 0 of the scratchpad does not hold it",
                LOST_X.format(0),
            ],
        ),
        (
            actions(1, 2, 3, 4),
            [
                "action 0, run one: x: byte 0 of the scratchpad does not hold it",
                "action 2, run three: x: byte 0 of the scratchpad does not hold it",
                "0 bytes are loaded, the plan says 4",
            ],
        ),
        (
            actions(*ALL, a4=StoreAction(Y, 3)),
            ["action 4, storeaction y: byte 3 of the scratchpad does not hold it"],
        ),
        # places of one turn
        (
            actions(*ALL, **run(0, 0, None, 4, staging=3, area=7)),
            ["action 1, run one: staging and a overlap in the scratchpad"],
        ),
        (
            actions(*ALL, **run(0, 0, None, 4, staging=3, area=2)),
            [
                "action 1, run one: staging and x overlap in the scratchpad",
                "action 1, run one: staging and a overlap in the scratchpad",
                "action 1, run one: x: byte 2 of the scratchpad does not hold it",
                LOST_X.format(2),
            ],
        ),
        (
            actions(*ALL, **run(0, 0, None, 3, staging=3, area=8), **run(1, 3, 4)),
            [
                "action 1, run one: x and a overlap in the scratchpad",
                "action 2, run two: a and y overlap in the scratchpad",
                LOST_X.format(3),
            ],
        ),
        (
            turns(replace(TWO, may_overwrite=())),
            ["action 2, run two: a and y overlap in the scratchpad"],
        ),
        (
            actions(*ALL, **run(1, 4, 5)),
            [
                "action 2, run two: a and y overlap in the scratchpad",
                "action 3, run three: y: byte 4 of the scratchpad does not hold it",
            ],
        ),
        (
            actions(*ALL, **run(1, 4, 3)),
            [
                "action 2, run two: a and y overlap in the scratchpad",
                LOST_X.format(3),
                "action 3, run three: y: byte 7 of the scratchpad does not hold it",
            ],
        ),
        # staging, and what may be streamed
        (
            actions(*ALL, **run(0, 0, None, 4, staging=2, area=8)),
            ["action 1, run one: staging is of 2 bytes, and the turn needs 3"],
        ),
        (
            turns(replace(ONE, accesses=tuple(replace(each, pinned=True) for each in ONE.accesses))),
            ["action 1, run one: w is streamed, and has to be resident"],
        ),
        (
            turns(replace(ONE, accesses=tuple(replace(each, streamed=None) for each in ONE.accesses))),
            ["2 bytes are streamed, the plan says 6"],
        ),
        # the order, and what is there by then
        (
            actions(0, 2, 1, 3, 4),
            [
                "action 1, run two: it is the turn of 0",
                "action 1, run two: a has not been written",
                "action 2, run one: it is the turn of 1",
                "action 3, run three: y: byte 4 of the scratchpad does not hold it",
            ],
        ),
        (actions(0, 1, 2, 4), ["2 of 3 turns are executed"]),
        (
            actions(0, 1, 2, 4, 3),
            ["output y: y: byte 6 of the arena does not hold it"],
        ),
        (
            replace(CALLERS, actions=(LOAD, RUNS[0], RUNS[1], STORE, RUNS[2])),
            ["output y: y is not in system memory"],
        ),
        (
            replace(PLAN, actions=(LOAD, RUNS[0], RUNS[1], STORE, STREAMED), streamed=10),
            [],
        ),
        (
            replace(PLAN, actions=(LOAD, RUNS[0], RUNS[1], STREAMED), streamed=10, stored=0),
            ["action 3, run three: y: byte 6 of the arena does not hold it"],
        ),
        (  # what a turn streams out is newer than the copy that stayed
            replace(PLAN, actions=(LOAD, *RUNS[:2], STORE, STREAMED, STORE), streamed=10, stored=8),
            ["action 5, storeaction y: byte 4 of the scratchpad does not hold it"],
        ),
        # homes
        (
            replace(PLAN, arena=9),
            [
                "action 4, storeaction y: y: bytes 6 to 10 are outside the arena of 9",
                "output y: y: bytes 6 to 10 are outside the arena of 9",
            ],
        ),
        (
            replace(PLAN, homes=(0, 4, None, None)),
            [
                "action 4, storeaction y: y has no home in system memory",
                "output y: y is not in system memory",
            ],
        ),
        (
            replace(PLAN, homes=(0, 3, None, 6)),
            ["action 0, loadaction x: x: byte 3 of the arena does not hold it"],
        ),
        (
            replace(CALLERS, actions=(LOAD, RUNS[0], StoreAction(A, 4), *RUNS[1:], STORE), stored=8),
            ["action 2, storeaction a: a has no home in system memory"],
        ),
        (
            replace(
                PLAN,
                actions=(LOAD, RUNS[0], RUNS[1], STORE, RunAction(2, (None, None), 0)),
                streamed=14,
                homes=(0, 4, None, 2),
            ),
            [
                "action 4, run three: x and y overlap in the arena",
                "action 4, run three: x: byte 2 of the arena does not hold it",
            ],
        ),
        # what is counted
        (replace(PLAN, loaded=5), ["4 bytes are loaded, the plan says 5"]),
        (replace(PLAN, stored=5), ["4 bytes are stored, the plan says 5"]),
        (replace(PLAN, streamed=7), ["6 bytes are streamed, the plan says 7"]),
        (replace(PLAN, bound=15), ["the bound of 15 bytes is above the 14 that the plan moves"]),
    ],
)
def test_a_plan_is_replayed_to_the_byte(plan: ScratchpadPlan, sentences: list[str]) -> None:
    assert objections(plan) == sentences


def test_what_is_written_over_may_come_first_or_last_among_the_accesses() -> None:
    backwards = replace(TWO, accesses=TWO.accesses[::-1])
    assert objections(turns(backwards)) == []


def test_what_is_written_over_leaves_nothing_behind() -> None:
    memory = _Memory("pad", 10)
    for begin, size in ((2, 4), (2, 4), (2, 5), (0, 10)):
        assert list(memory.write(begin, size, (begin, size))) == []
        assert memory.spans == [(begin, begin + size, (begin, size))]
    assert list(memory.read(3, 2, (0, 10))) == []
