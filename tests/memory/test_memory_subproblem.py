"""Some steps of a problem on their own, compared by names with what they are in the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import problems

from byoc.memory.arena import ArenaProblem, ArenaStep, plan_buffers


def name_step(problem: ArenaProblem, step: ArenaStep) -> tuple[object, ...]:
    reads, makes, over = (
        [problem.names[b] for b in each] for each in (step.reads, step.writes, step.may_overwrite)
    )
    return step.name, reads, makes, over, step.scratch, [problem.steps[i].name for i in step.after]


@given(problems(9), st.data())
def test_steps_keep_what_they_read_and_make(problem: ArenaProblem, data: st.DataObject) -> None:
    count = len(problem.steps)
    chosen = data.draw(st.lists(st.integers(0, max(count - 1, 0)), unique=True, max_size=count))
    part = problem.subproblem(chosen)

    inside = {problem.steps[number].name for number in chosen}
    expected = []
    for number in sorted(chosen):
        *same, after = name_step(problem, problem.steps[number])
        assert isinstance(after, list)
        expected.append((*same, [name for name in after if name in inside]))
    assert [name_step(part, step) for step in part.steps] == expected
    touched = {b for number in chosen for b in problem.steps[number].reads}
    made = {b for number in chosen for b in problem.steps[number].writes}
    assert dict(zip(part.names, part.sizes, strict=True)) == {
        problem.names[b]: problem.sizes[b] for b in touched | made
    }
    others = {b for i, step in enumerate(problem.steps) if i not in chosen for b in step.reads}
    assert {part.names[b] for b in part.inputs} == {problem.names[b] for b in touched - made}
    assert {part.names[b] for b in part.outputs} == {
        problem.names[b] for b in made & (others | problem.outputs)
    }
    assert part.alignment == problem.alignment
    assert plan_buffers(part).size >= plan_buffers(part).bound


def test_links_are_kept_where_neighbours_are() -> None:
    steps = (
        *(ArenaStep(name, (), (buffer,)) for buffer, name in enumerate("abcde")),
        ArenaStep("f", (0, 1, 3, 4), (5,)),
        ArenaStep("g", (0, 1, 2, 3, 4), (6,), after=(5,)),
    )
    sizes = (1, 2, 3, 4, 5, 6, 7)
    links = ((0, 1, 2, 3, 4), (5, 6))
    problem = ArenaProblem(tuple("tuvwxyz"), sizes, steps, frozenset(), frozenset({6}), links)

    def named(*chosen: int) -> list[str]:
        part = problem.subproblem(chosen)
        return ["".join(part.names[b] for b in row) for row in part.links]

    assert named(*range(7)) == ["tuvwx", "yz"]
    assert named(5) == ["tu", "wx"]
    assert named(5, 2) == ["tuvwx"]
    assert named(6, 5) == ["tuvwx", "yz"]
    assert named(0, 2, 4) == []
    assert named(0, 1, 3) == ["tu"]
    assert named() == []
    assert problem.subproblem((6,)).steps[0].after == ()
    assert problem.subproblem((6, 5)).steps[1].after == (0,)


@pytest.mark.parametrize(("between", "size"), [(1, 16), (0, 24)])
def test_bytes_are_free_between_two_that_lie_there(between: int, size: int) -> None:
    """`y` and `z` both lie behind `x`, and `w` is alive in the steps between them, if there are any."""
    steps = [
        ArenaStep("make", (), (0, 1)),
        ArenaStep("use", (1,)),
        *([ArenaStep("once", (), (3,), after=(1,))] if between else []),
        ArenaStep("again", (), (2,) if between else (2, 3), after=(1 + between,)),
        ArenaStep("end", (0, 2)),
    ]
    links = ((0, 1), (0, 2))
    problem = ArenaProblem(tuple("xyzw"), (8, 8, 8, 8), tuple(steps), links=links)
    assert plan_buffers(problem).size == size
