"""Concat in place: what asks for a row, and what cannot be within one."""

from checkers.arena_check import check
from helpers.support import prepared

from byoc.memory.arena import plan_buffers
from byoc.memory.reading import CONVENTIONS, MemoryModel, read_memory_model

# x, made into a by Exp, could be written over; in the row of the Concat both are needed.
NET = """g (float[2, 4] x) => (float[2, 4] b, float[6, 4] y) {
    a = Exp(x)
    s = Softmax(a)
    y = Concat <axis = 0> (x, s, a)
    b = Identity(a)
}"""


def _read(text: str) -> MemoryModel:
    return read_memory_model(prepared(text).index, CONVENTIONS["D"])


def test_a_concat_that_nobody_reads_asks_for_no_row() -> None:
    model = _read(NET.replace(", float[6, 4] y", ""))
    made = plan_buffers(model.problem)

    assert (model.problem.links, made.size, made.is_minimal) == ((), 64, True)
    assert "y" not in model.buffers_of
    assert check(made) == []


def test_within_a_row_nothing_is_written_over_its_neighbour() -> None:
    model = _read(NET)
    made = plan_buffers(model.problem)

    assert [len(row) for row in model.problem.links] == [3]
    assert [step.may_overwrite for step in model.problem.steps] == [(), ()]
    assert (made.size, made.is_minimal) == (96, True)
    assert check(made) == []


def test_from_a_row_something_may_be_written_over_what_is_in_none() -> None:
    model = _read("""g (float[2, 4] x) => (float[4, 4] y) {
        a = Exp(x)
        b = Softmax(a)
        y = Concat <axis = 0> (a, b)
    }""")

    assert [len(row) for row in model.problem.links] == [2]
    assert model.problem.steps[0].may_overwrite == (0,)
