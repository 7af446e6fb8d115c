"""The trace: what each run of a stage noted, and the fields that the format asks for."""

import json
import sys
import threading
from mmap import PAGESIZE, mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.cutting import CHAIN, cut, ramp
from helpers.support import parse

from byoc.errors import InputError
from byoc.runtime import (
    OPERATOR_CATEGORY,
    Session,
    Stage,
    StageProfile,
    StageProgram,
    Trace,
    TraceEvent,
    load,
)


def open_session(stages: list[Stage], *outputs: str) -> Session:
    """Return a session that runs stages on its input x, which may be a sequence."""
    return Session(("x",), {}, StageProgram(stages, {}, outputs, {}))


def check(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold a trace to the rules of the format, and return its complete events.

    From "Trace Event Format": the JSON object format has `traceEvents`; every event has a phase, a
    process and a thread; a complete event (X) has a name, categories, a time stamp and a duration in
    microseconds; metadata (M) gives a name in `args.name`. Events of one track nest.
    """
    assert document["displayTimeUnit"] in ("ms", "ns")
    complete = []
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        complete.append(event)
    named = {e["tid"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    for track in {event["tid"] for event in complete}:
        assert track in named
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in complete if e["tid"] == track]
        for i, (start, end) in enumerate(spans):
            slack = 1e-3  # a nanosecond, lost when seconds become microseconds
            for begins, ends in spans[i + 1 :]:
                assert begins >= end - slack or (begins >= start and ends <= end + slack)
    return complete


def test_the_document_by_hand() -> None:
    events = [
        TraceEvent("b", "acme", 71, 5.5, 0.25, 8, 16),
        TraceEvent("a", "host", 70, 5.0, 0.5, 4, 8),
    ]
    trace = Trace(events)
    document = trace.to_json()
    assert trace.seconds == 0.75
    assert [event["name"] for event in check(document)] == ["a", "b"]
    assert document["traceEvents"][-1] == {
        "name": "b",
        "cat": "acme",
        "ph": "X",
        "ts": 5e5,
        "dur": 2.5e5,
        "pid": 1,
        "tid": 1,
        "args": {"device": "acme", "bytes in": 8, "bytes out": 16},
    }
    assert trace.to_text() == json.dumps(document, indent=1) + "\n"
    assert check(Trace().to_json()) == []
    assert Trace().seconds == 0
    assert len({Trace(), Trace()}) == 2  # they are told apart, whatever they hold


def test_a_bundle_notes_each_stage_with_its_bytes(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    session, trace = load(tmp_path / "b"), Trace()
    given = session.run({"x": ramp(1, 4)}, trace)
    events = check(trace.to_json())
    names = ["dla_0", "host segment 0", "dla_1"]
    assert [(e["name"], e["cat"]) for e in events] == list(
        zip(names, ["dla", "host", "dla"], strict=True)
    )
    assert all(e["args"]["bytes in"] == e["args"]["bytes out"] == 16 for e in events)
    assert np.array_equal(given["y"], session({"x": ramp(1, 4)})["y"])
    assert len(trace.events) == 3  # what ran without it is not in it


def test_stages_in_bodies_are_noted_inside_their_node(tmp_path: Path) -> None:
    model = parse("""g (float[1, 4] x, int64 m) => (float[1, 4] y) {
        y = Loop (m, , x) <body = b (int64 i, bool go, float[1, 4] c) => (bool on, float[1, 4] d) {
            on = Identity (go)
            e = Relu (c)
            d = Add (e, e)
        }>
    }""")
    cut(model, tmp_path / "b")
    session, trace = load(tmp_path / "b"), Trace()
    given = session.run({"x": ramp(1, 4), "m": np.array(3)}, trace)
    np.testing.assert_array_equal(given["y"], np.maximum(ramp(1, 4), 0) * 8)
    events = check(trace.to_json())
    assert [e["name"] for e in events if e["cat"] == "dla"] == ["dla_0"] * 3
    assert len(session.stages) == 1
    assert events[0]["name"] == session.stages[0].name
    assert session.boundary_tensors == ()


def test_threads_have_tracks_of_their_own() -> None:
    both = threading.Barrier(2)

    def meet(values: Any) -> Any:
        both.wait(60)
        return {"a": values["x"]}

    def meet_too(values: Any) -> Any:
        return {"b": meet(values)["a"]}

    stages = [Stage("one", ("x",), meet, {}, ("a",)), Stage("two", ("x",), meet_too, {}, ("b",))]
    trace = Trace()
    open_session(stages, "a", "b").run({"x": [np.zeros(2), np.zeros(1)]}, trace)
    events = check(trace.to_json())
    assert {e["tid"] for e in events} == {0, 1}
    assert [e["args"]["bytes in"] for e in events] == [24, 24]


def test_a_trace_ends_with_its_run(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    session, trace = load(tmp_path / "b"), Trace()
    with pytest.raises(InputError):
        session.run({"x": ramp(1, 5)}, trace)
    session({"x": ramp(1, 4)})
    assert trace.events == []


def test_a_trace_has_what_runs_inside_its_call_unless_that_has_its_own() -> None:
    own = Trace()
    inner = open_session([Stage("inner", ("x",), lambda values: {"y": values["x"]}, {}, ("y",))], "y")
    body = [Stage("body", ("x",), lambda values: {"a": values["x"]}, {}, ("a",))]

    def call(values: Any) -> Any:
        inner.run(values, own)
        return {"a": StageProgram(body, {}, ("a",), {})(values)[0]}

    stages = [
        Stage("first", ("x",), call, {}, ("a",)),
        Stage("last", ("a",), lambda values: {"z": values["a"]}, {}, ("z",)),
    ]
    trace = Trace()
    session = open_session(stages, "z")
    session.run({"x": ramp(1, 4)}, trace)
    session({"x": ramp(1, 4)})
    assert sorted(event.name for event in trace.events) == ["body", "first", "last"]
    assert [event.name for event in own.events] == ["inner", "inner"]


@pytest.mark.parametrize("inner_first", [False, True])
def test_of_events_that_start_together_the_longer_one_comes_first(inner_first: bool) -> None:
    """As viewers nest them: an If before what runs in its branch, whichever is recorded first."""
    trace = Trace()
    outer, inner = (SimpleNamespace(name=name, device="host") for name in ("If", "branch"))
    both = [(outer, 0.0, 3.0), (inner, 0.0, 1.0)]
    for stage, start, end in both[::-1] if inner_first else both:
        trace.add_event(stage, start, end, {}, {})
    trace.add_event(inner, 1.0, 2.0, {}, {})
    found = [each for each in trace.to_json()["traceEvents"] if each["ph"] == "X"]
    assert [(each["name"], each["ts"], each["dur"]) for each in found] == [
        ("If", 0, 3e6),
        ("branch", 0, 1e6),
        ("branch", 1e6, 1e6),
    ]


def test_a_profiled_run_says_what_stages_have_inside(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    session, trace, profiling = load(tmp_path / "b"), Trace(), Trace(profiles=True)
    assert isinstance(session, Session)
    session.run({"x": ramp(1, 4)}, trace)
    session.run({"x": ramp(1, 4)}, profiling)
    assert not trace.profiled
    found = trace.with_profiles(profiling)
    inside = {name: each for (_, name), each in found.profiled.items()}
    assert list(inside) == [stage.name for stage in session.stages]
    assert not any(each.problem for each in inside.values())
    nodes = [node for each in inside.values() for one in each.operators for node in one.nodes]
    model = parse(CHAIN)
    assert set(nodes) <= {name for node in model.graph.node for name in (node.name, *node.output)}
    assert len(set(nodes)) == len(model.graph.node)
    assert all(each.held_bytes == 32 for each in inside.values())  # what it reads, and what it makes
    if sys.platform == "linux":
        assert found.peak_bytes == max(each.peak_bytes for each in inside.values())
    events = check(found.to_json())
    operators = [each for each in events if each["cat"] == OPERATOR_CATEGORY]
    for each in operators:
        (stage,) = [event for event in events if event["name"] == each["args"]["stage"]]
        assert stage["ts"] <= each["ts"]
        assert each["ts"] + each["dur"] <= stage["ts"] + stage["dur"] + 1e-3
    assert [event for event in events if event["cat"] != OPERATOR_CATEGORY] == [
        {**event, "args": {**event["args"], **memory(inside[event["name"]])}}
        for event in check(trace.to_json())
    ]


def memory(inside: StageProfile) -> dict[str, int]:
    peak = {"peak bytes": inside.peak_bytes} if inside.peak_bytes else {}
    return {"bytes held": inside.held_bytes, **peak}


def test_a_stage_whose_operators_cannot_be_profiled_says_why() -> None:
    def fail(_: Any) -> Any:
        raise InputError("no counters here")

    stages = [
        Stage("a", ("x",), lambda values: {"y": values["x"]}, {}, ("y",), profile=fail),
        Stage("b", ("y",), lambda values: {"z": np.zeros(1 << 18)}, {}, ("z",)),
    ]
    trace = Trace(profiles=True)
    open_session(stages, "z").run({"x": ramp(1, 4)}, trace)
    first, second = trace.profiled.values()
    assert (first.problem, first.operators) == ("no counters here", ())
    assert (second.problem, second.held_bytes) == ("", 16 + (8 << 18))
    if second.peak_bytes:
        assert second.peak_bytes >= 8 << 18


def test_the_largest_memory_of_a_body_counts_for_its_node() -> None:
    """A Loop's stage has those of its body inside, which begin the count anew."""

    def fill_pages(values: Any) -> Any:
        """Touch 64 MiB that go back to the system at the end, which an allocator may keep."""
        with mmap(-1, 8 << 23) as pages:
            pages[::PAGESIZE] = bytes(len(pages[::PAGESIZE]))
        return {"z": values["y"]}

    def run_body(values: Any) -> Any:
        large = Stage("large", ("y",), fill_pages, {}, ("z",))
        small = Stage("small", ("z",), lambda each: {"o": each["z"]}, {}, ("o",))
        return {"o": StageProgram([large, small], {}, ("o",), {})({"y": values["x"]})[0]}

    trace = Trace(profiles=True)
    open_session([Stage("outer", ("x",), run_body, {}, ("o",))], "o").run({"x": ramp(1, 4)}, trace)
    inside = {name: each.peak_bytes for (_, name), each in trace.profiled.items()}
    if inside["outer"]:
        assert inside["outer"] >= inside["large"] > inside["small"] + (6 << 23)
