"""Stages that wait for one another and stages that do not, when values are freed, and failures."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.runtime import Session, Stage, StageProgram

WAIT = 60  # seconds, after which a test that hangs fails


def stage(name: str, reads: Sequence[str], makes: str, run: Callable[..., Any], turn: str = "") -> Stage:
    """Return a stage that makes one value of some, called with them in order."""

    def call(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {makes: run(*(values[each] for each in reads))}

    return Stage(name, tuple(reads), call, {}, (makes,), exclusive_group=turn)


def run(program: StageProgram, values: Mapping[str, Any], kept: Sequence[str] = ()) -> dict[str, Any]:
    """Run a program with threads to run stages at once on."""
    with ThreadPoolExecutor(3) as pool:
        return program.run(values, kept, lambda: pool)


def step_through(
    program: StageProgram, values: Mapping[str, Any], kept: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a program as the threads of a pipeline do: step by step."""
    steps = program.list_steps(values, kept)
    while True:
        try:
            assert next(steps) == "host"
        except StopIteration as end:
            return dict(end.value)


def plus(number: int) -> Callable[[int], int]:
    return lambda value: value + number


def test_a_chain_has_nothing_to_run_at_once() -> None:
    stages = [stage("one", ["x"], "a", plus(1)), stage("two", ["a"], "y", plus(2))]
    program = StageProgram(stages, {}, ("y",), {})
    assert (program.dependencies.waits, program.dependencies.followers) == ([0, 1], [[1], []])
    assert not program.dependencies.at_once
    assert program.run({"x": 1}, pool=lambda: pytest.fail("a pool was asked for")) == {"y": 4}


def test_where_no_thread_starts_the_callers_runs_all() -> None:
    """As where Python ends: a pool that was shut down takes nothing, and the run waited for ever."""
    stages = [stage("one", ["x"], "a", plus(1)), stage("two", ["x"], "b", plus(2))]
    stages.append(stage("both", ["a", "b"], "y", lambda a, b: a * b))
    program = StageProgram(stages, {}, ("y",), {})
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    assert program.run({"x": 1}, pool=lambda: pool) == {"y": 6}


def test_branches_run_at_the_same_time() -> None:
    """Each waits for the other: one after the other neither would ever end."""
    both = threading.Barrier(2)

    def meet(value: int) -> int:
        both.wait(WAIT)
        return value + 1

    stages = [
        stage("one", ["x"], "a", meet),
        stage("two", ["x"], "b", meet),
        stage("join", ["a", "b"], "y", lambda a, b: 10 * a + b),
    ]
    program = StageProgram(stages, {}, ("y",), {})
    assert program.dependencies.at_once
    assert run(program, {"x": 1}) == {"y": 22}


def test_what_a_helper_made_ready_runs_while_the_first_branch_is_still_running() -> None:
    later = threading.Event()

    def long(value: int) -> int:
        assert later.wait(WAIT)
        return value

    def tell(value: int) -> int:
        later.set()
        return value + 5

    stages = [
        stage("long", ["x"], "a", long),
        stage("short", ["x"], "b", plus(1)),
        stage("after short", ["b"], "c", tell),
        stage("join", ["a", "c"], "y", lambda a, c: 10 * a + c),
    ]
    assert run(StageProgram(stages, {}, ("y",), {}), {"x": 1}) == {"y": 17}


def test_four_stages_of_one_call_run_at_a_time() -> None:
    """Each of the first four waits for the others; then six may run, and four do."""
    all_four = threading.Barrier(4)
    guard = threading.Lock()
    inside = most = 0

    def meet(value: int) -> int:
        all_four.wait(WAIT)
        return value

    def count(value: int) -> int:
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.02)
        with guard:
            inside -= 1
        return value

    met = [stage(f"m{i}", ["x"], f"t{i}", meet) for i in range(4)]
    join = stage("join", ["t0", "t1", "t2", "t3"], "j", lambda *values: sum(values))
    counted = [stage(f"c{i}", ["j"], f"u{i}", count) for i in range(6)]
    outputs = tuple(f"u{i}" for i in range(6))
    session = Session(("x",), {}, StageProgram([*met, join, *counted], {}, outputs, {}))
    assert session({"x": 2}) == dict.fromkeys(outputs, 8)
    assert most == 4


def test_calls_at_once_share_three_threads_beside_their_own() -> None:
    names = set()

    def note(value: int) -> int:
        names.add(threading.current_thread().name)
        threading.Event().wait(0.005)
        return value

    stages = [stage(f"s{i}", ["x"], f"t{i}", note) for i in range(6)]
    session = Session(("x",), {}, StageProgram(stages, {}, tuple(f"t{i}" for i in range(6)), {}))
    with ThreadPoolExecutor(4, thread_name_prefix="caller") as pool:
        list(pool.map(lambda number: session({"x": number}), range(8)))
    assert 1 <= sum(name.startswith("byoc") for name in names) <= 3


def test_those_of_one_turn_run_one_at_a_time() -> None:
    busy = threading.Lock()
    found = []

    def alone(value: int) -> int:
        found.append(busy.acquire(blocking=False))
        threading.Event().wait(0.01)
        busy.release()
        return value

    stages = [stage(f"s{i}", ["x"], f"t{i}", alone, turn="acme") for i in range(6)]
    program = StageProgram(stages, {}, tuple(f"t{i}" for i in range(6)), {})
    assert run(program, {"x": 3}) == {f"t{i}": 3 for i in range(6)}
    assert found == [True] * 6


def test_an_error_names_its_stage_and_nothing_begins_after_it() -> None:
    ran = []

    def fail(value: int) -> int:
        raise InputError("no such row")

    stages = [
        stage("one", ["x"], "a", plus(1)),
        stage("two", ["a"], "b", fail),
        stage("three", ["b"], "c", ran.append),
        stage("four", ["a"], "d", ran.append),
    ]
    with pytest.raises(InputError, match=r"^two: no such row$"):
        StageProgram(stages, {}, ("c", "d"), {}).run({"x": 1})
    assert ran == []


def test_of_two_errors_the_earlier_stage_is_named() -> None:
    both = threading.Barrier(2)
    second = threading.Event()

    def first_to_begin(value: int) -> int:
        both.wait(WAIT)
        assert second.wait(WAIT)
        raise InputError("first")

    def first_to_fail(value: int) -> int:
        both.wait(WAIT)
        second.set()
        raise InputError("second")

    stages = [stage("one", ["x"], "a", first_to_begin), stage("two", ["x"], "b", first_to_fail)]
    for _ in range(20):
        both.reset()
        second.clear()
        with pytest.raises(InputError, match=r"^one: first$"):
            run(StageProgram(stages, {}, ("a", "b"), {}), {"x": 1})


def test_what_is_no_error_of_the_input_comes_as_it_is() -> None:
    def fail(value: int) -> int:
        raise ZeroDivisionError(value)

    stages = [stage("one", ["x"], "a", plus(1)), stage("two", ["x"], "b", fail)]
    with pytest.raises(ZeroDivisionError):
        run(StageProgram(stages, {}, ("a", "b"), {}), {"x": 1})


def test_nothing_begins_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's thread waits for the second stage, which a helper runs, and is interrupted."""

    class Interrupted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr("byoc.runtime._stage_program.Condition", Interrupted)
    begun, interrupted = threading.Event(), threading.Event()
    ran: list[int] = []

    def first(value: int) -> int:
        assert begun.wait(WAIT)
        return value

    def second(value: int) -> int:
        begun.set()
        assert interrupted.wait(WAIT)
        return value

    stages = [
        stage("first", ["x"], "a", first),
        stage("second", ["x"], "b", second),
        stage("after it", ["b"], "c", ran.append),
    ]
    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(KeyboardInterrupt):
            StageProgram(stages, {}, ("a", "c"), {}).run({"x": 1}, pool=lambda: pool)
        interrupted.set()
    assert ran == []


@pytest.mark.parametrize(("kept", "left"), [((), False), (("a",), True)])
@pytest.mark.parametrize("how", ["in order", "devices", "threads"])
def test_a_value_is_freed_after_its_last_reader(how: str, kept: Sequence[str], left: bool) -> None:
    seen: list[Any] = []
    alive: list[bool] = []

    def make(x: Any) -> Any:
        made = x + 1
        seen.append(weakref.ref(made))
        return made

    def look(value: Any) -> Any:
        alive.append(seen[0]() is not None)
        return value * 2

    stages = [
        stage("make", ["x"], "a", make),
        stage("first reader", ["a"], "b", look),
        stage("last reader", ["a", "b"], "c", lambda a, b: a + look(b)),
        stage("another", ["c"], "y", look),
    ]
    if how == "threads":  # with one that waits for none of them
        stages.append(stage("beside", ["x"], "z", plus(1)))
    program = StageProgram(stages, {}, ("y",), {})
    assert program.dependencies.at_once is (how == "threads")
    if how == "threads":
        given = run(program, {"x": np.ones(4)}, kept)
    elif how == "devices":
        given = step_through(program, {"x": np.ones(4)}, kept)
    else:
        given = program.run({"x": np.ones(4)}, kept)
    assert given["y"].tolist() == [20.0] * 4
    assert alive == [True, True, left]
    assert sorted(given) == [*kept, "y"]


class Notes:
    """A pool of threads that notes what it is to run, and runs none of it until it is asked to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.calls.append(lambda: call(*arguments, **options))


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_no_more_threads_are_asked_for_than_can_run_something(count: int) -> None:
    """Four at a time in all: the caller's own, and three beside."""
    pool, asked, ran = Notes(), list[int](), list[int]()

    def note(number: int) -> Callable[[int], int]:
        def call(value: int) -> int:
            ran.append(number)
            asked.append(len(pool.calls))
            return value + number

        return call

    stages = [stage(f"s{number}", ["x"], f"y{number}", note(number)) for number in range(count)]
    names = tuple(f"y{number}" for number in range(count))
    program = StageProgram(stages, {}, names, {})
    found = program.run({"x": 1}, pool=lambda: pool)
    assert found == {f"y{number}": 1 + number for number in range(count)}
    assert ran == list(range(count))
    assert asked == [min(number, 3, count - 1) for number in range(1, 1 + count)]
    for call in pool.calls:  # that come too late find nothing to do
        call()
    assert len(ran) == count


def test_a_thread_that_is_done_may_be_asked_for_again() -> None:
    """Twice in a row there is something beside, and each time the helper of before has ended."""
    pool, asked = Notes(), list[int]()

    def help_out(value: int) -> int:
        asked.append(len(pool.calls))
        for call in pool.calls:
            call()
        pool.calls.clear()
        return value

    stages, last = list[Stage](), "x"
    for number in range(6):
        stages += [stage(f"a{number}", [last], f"a{number}", help_out)]
        stages += [stage(f"b{number}", [last], f"b{number}", plus(1))]
        last = f"a{number}"
    program = StageProgram(stages, {}, (last,), {})
    assert program.run({"x": 1}, pool=lambda: pool) == {last: 1}
    assert asked == [1] * 6


@pytest.mark.parametrize("how", ["in order", "devices"])
def test_what_nobody_reads_is_not_kept(how: str) -> None:
    seen: list[Any] = []

    def two(values: Mapping[str, Any]) -> Mapping[str, Any]:
        unread = np.ones(3)
        seen.append(weakref.ref(unread))
        return {"a": values["x"] + 1, "unread": unread}

    def gone(value: int) -> int:
        return value if seen[0]() is None else -1

    stages = [Stage("one", ("x",), two, {}, ("a", "unread")), stage("two", ["a"], "y", gone)]
    program = StageProgram(stages, {}, ("y",), {})
    run_all = program.run if how == "in order" else partial(step_through, program)
    assert run_all({"x": 1}) == {"y": 2}


def test_an_output_may_stand_twice_and_be_stored_or_given() -> None:
    stages = [stage("one", ["x"], "a", plus(1))]
    program = StageProgram(stages, {"k": 7}, ("a", "k", "a", "x"), {})
    assert program({"x": 1}) == [2, 7, 2, 1]
    assert program({"x": 1}) == [2, 7, 2, 1]


@st.composite
def _programs(draw: st.DrawFn) -> tuple[list[list[int]], list[str]]:
    """What each stage reads, x being -1, and whose turn it is."""
    count = draw(st.integers(1, 12))
    reads = [draw(st.lists(st.integers(-1, i - 1), min_size=1, max_size=3)) for i in range(count)]
    turns = [draw(st.sampled_from(["", "", "acme", "other"])) for _ in range(count)]
    return reads, turns


@given(_programs(), st.integers(-9, 9))
def test_at_once_or_not_every_stage_runs_once_and_the_numbers_are_the_same(
    case: tuple[list[list[int]], list[str]], x: int
) -> None:
    reads, turns = case
    expected = [0] * len(reads)
    for i, sources in enumerate(reads):
        expected[i] = i + sum(3 * (x if j < 0 else expected[j]) for j in sources)
    ran: list[int] = []

    def made(i: int) -> Callable[..., int]:
        def compute(*values: int) -> int:
            ran.append(i)
            return i + sum(3 * value for value in values)

        return compute

    stages = [
        stage(f"s{i}", [f"t{j}" for j in sources], f"t{i}", made(i), turns[i])
        for i, sources in enumerate(reads)
    ]
    outputs = tuple(f"t{i}" for i in range(len(reads)))
    program = StageProgram(stages, {}, outputs, {})
    assert program({"t-1": x}) == expected
    assert ran == list(range(len(reads)))
    last = outputs[-1:]
    for wanted in (outputs, last):
        ran.clear()
        found = run(StageProgram(stages, {}, wanted, {}), {"t-1": x})
        assert found == {name: expected[int(name[1:])] for name in wanted}
        assert sorted(ran) == list(range(len(reads)))
