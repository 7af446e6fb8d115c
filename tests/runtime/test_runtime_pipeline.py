"""Several inputs in flight: devices at work at once, each on one input, and outputs in order."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import CHAIN, cut, ramp
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.runtime import Session, Stage, StageProgram, Trace, load

WAIT = 60  # seconds, after which a test that hangs fails


def make_session(*stages: tuple[str, Callable[[Any], Any]]) -> Session:
    """Return a session of stages in a chain, each a device and a function of the value before it."""
    chain = [
        Stage(f"{i} on {device}", (f"v{i}",), _wrap(run, f"v{i + 1}"), {}, (f"v{i + 1}",), device)
        for i, (device, run) in enumerate(stages)
    ]
    return Session(("v0",), {}, StageProgram(chain, {}, (f"v{len(stages)}",), {}))


def _wrap(run: Callable[[Any], Any], name: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return lambda values: {name: run(next(iter(values.values())))}


def test_devices_work_on_two_inputs_at_the_same_time() -> None:
    """The host's work on input 1 waits for the region of input 0, which waits for the host's work."""
    both = threading.Barrier(2)

    def host(value: int) -> int:
        if value == 1:
            both.wait(WAIT)
        return value

    def region(value: int) -> int:
        if value == 0:
            both.wait(WAIT)
        return value + 10

    session = make_session(("host", host), ("npu", region))
    outputs = list(session.run_pipeline([{"v0": i} for i in range(4)], in_flight=2))
    assert outputs == [{"v2": 10}, {"v2": 11}, {"v2": 12}, {"v2": 13}]


def test_no_more_are_taken_than_are_in_flight() -> None:
    taken: list[int] = []

    def inputs() -> Iterator[dict[str, int]]:
        for i in range(6):
            taken.append(i)
            yield {"v0": i}

    pipeline = make_session(("host", lambda value: value)).run_pipeline(inputs(), in_flight=2)
    assert taken == []
    assert next(pipeline) == {"v1": 0}
    assert taken == [0, 1]
    assert next(pipeline) == {"v1": 1}
    assert taken == [0, 1, 2]
    assert [outputs["v1"] for outputs in pipeline] == [2, 3, 4, 5]


def test_the_error_of_an_input_comes_in_its_place() -> None:
    def divide(value: int) -> float:
        if value == 2:
            raise InputError("two is too much")
        return value / 2

    session = make_session(("host", lambda value: value), ("npu", divide))
    pipeline = session.run_pipeline([{"v0": i} for i in range(5)], in_flight=4)
    assert [next(pipeline)["v2"], next(pipeline)["v2"]] == [0, 0.5]
    with pytest.raises(InputError, match=r"^1 on npu: two is too much$"):
        next(pipeline)
    assert next(pipeline, None) is None


@pytest.mark.parametrize("device", ["host", "npu"])
def test_a_device_without_a_thread_is_an_error_and_no_call_waits_for_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread, begin: Any = threading.Thread.start) -> None:
        if thread.name == f"byoc {device}":
            raise RuntimeError("can't start new thread")
        begin(thread)

    before = threading.active_count()
    session = make_session(("host", lambda value: value), ("npu", lambda value: value))
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
        list(session.run_pipeline([{"v0": i} for i in range(3)], in_flight=3))
    assert threading.active_count() == before


def test_a_device_whose_thread_begins_as_the_program_is_interrupted_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C is heard before the thread is known to have begun: it raised a KeyError of its own."""

    def start(thread: threading.Thread, begin: Any = threading.Thread.start) -> None:
        if not thread.name.startswith("byoc "):
            return begin(thread)
        target = thread._target
        thread._target = lambda *given: (go_on.wait(), target(*given))
        begin(thread)
        begun.append(thread)
        raise KeyboardInterrupt

    begun: list[Any] = []
    go_on = threading.Event()
    raised: list[Any] = []
    session = make_session(("host", lambda value: value), ("npu", lambda value: value))
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with pytest.raises(KeyboardInterrupt):
        list(session.run_pipeline([{"v0": i} for i in range(3)], in_flight=3))
    go_on.set()
    for thread in begun:
        thread.join(60)
    assert len(begun) == 1
    assert not raised


def test_a_wrong_input_and_no_input_in_flight() -> None:
    session = make_session(("host", lambda value: value))
    with pytest.raises(InputError, match=r"^no input 'x'; the model's inputs: v0$"):
        next(session.run_pipeline([{"x": 1}]))
    with pytest.raises(InputError, match=r"^0 inputs in flight: it takes at least 1$"):
        session.run_pipeline([], in_flight=0)


def test_a_pipeline_that_is_given_up_ends_its_threads() -> None:
    before = threading.active_count()
    pipeline = make_session(("host", lambda value: value)).run_pipeline([{"v0": 1}] * 9, in_flight=3)
    next(pipeline)
    pipeline.close()  # type: ignore[attr-defined]  # an iterator of this kind is a generator
    assert threading.active_count() == before


def test_what_is_begun_when_it_is_given_up_ends_and_nothing_else_begins() -> None:
    """The second stage of input 1 goes on when all others wait; then the pipeline is given up."""
    inside, go_on = threading.Event(), threading.Event()
    ran: list[tuple[str, int]] = []

    def host(value: int) -> int:
        ran.append(("host", value))
        return value

    def region(value: int) -> int:
        ran.append(("npu", value))
        if value == 1:
            inside.set()
            assert go_on.wait(WAIT)
        return value

    session = make_session(("host", host), ("npu", region), ("host", host))
    trace = Trace()
    pipeline = session.run_pipeline([{"v0": i} for i in range(9)], in_flight=4, trace=trace)
    assert next(pipeline) == {"v3": 0}
    assert inside.wait(WAIT)
    closing = threading.Thread(target=pipeline.close)  # type: ignore[attr-defined]  # as above
    closing.start()
    while closing.is_alive() and not go_on.is_set():
        threading.Event().wait(0.05)
        go_on.set()
    closing.join(WAIT)
    assert [value for device, value in ran if device == "npu"] == [0, 1]
    assert [each.name for each in trace.events].count("2 on host") == 1


def test_each_device_has_one_thread_whatever_is_in_flight() -> None:
    threads: dict[str, set[str]] = {"host": set(), "npu": set(), "dsp": set()}

    def note(device: str) -> Callable[[int], int]:
        def run(value: int) -> int:
            threads[device].add(threading.current_thread().name)
            return value

        return run

    session = make_session(*((device, note(device)) for device in (*threads, "host")))
    assert len(list(session.run_pipeline([{"v0": i} for i in range(20)], in_flight=6))) == 20
    assert threads == {device: {f"byoc {device}"} for device in threads}


def test_no_stage_is_profiled_beside_others() -> None:
    session = make_session(("host", lambda value: value), ("npu", lambda value: value))
    trace = Trace(profiles=True)
    assert len(list(session.run_pipeline([{"v0": 1}] * 3, 2, trace))) == 3
    assert (len(trace.events), trace.profiled) == (6, {})


@given(
    st.lists(st.sampled_from(["host", "npu", "dsp"]), min_size=1, max_size=6),
    st.integers(0, 9),
    st.integers(1, 5),
)
def test_each_device_runs_one_stage_at_a_time(devices: list[str], inputs: int, in_flight: int) -> None:
    inside = dict.fromkeys(devices, 0)
    most = dict.fromkeys(devices, 0)
    guard = threading.Lock()

    def work_on(device: str) -> Callable[[int], int]:
        def work(value: int) -> int:
            with guard:
                inside[device] += 1
                most[device] = max(most[device], inside[device])
            threading.Event().wait(0.0001)
            with guard:
                inside[device] -= 1
            return 3 * value + 1

        return work

    session = make_session(*((device, work_on(device)) for device in devices))
    given = [{"v0": i} for i in range(inputs)]
    trace = Trace()
    assert list(session.run_pipeline(given, in_flight, trace)) == [session(each) for each in given]
    assert max(most.values()) == (1 if inputs else 0)
    assert len(trace.events) == inputs * len(devices)


def test_a_bundle_gives_the_same_bits(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    session = load(tmp_path / "b")
    name = session.inputs[0]
    shape = [each if isinstance(each, int) else 1 for each in session.types[name].shape or ()]
    inputs = [{name: ramp(*shape) * (i + 1)} for i in range(7)]
    found = list(session.run_pipeline(inputs, 3))
    for each_input, outputs in zip(inputs, found, strict=True):
        expected = session(each_input)
        assert outputs.keys() == expected.keys()
        assert all(np.array_equal(outputs[each], expected[each]) for each in expected)
