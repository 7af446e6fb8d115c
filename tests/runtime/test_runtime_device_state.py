"""State that stays on a device between calls: the same numbers, and nothing of it crosses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import ramp
from helpers.support import parse

import byoc
from byoc.errors import InputError
from byoc.runtime import Session, StatefulSession

# Two cells that are the same but for names, so that they are compiled once; Sinh stays on the host.
CELLS = """
cells (float[2, 3] a, float[2, 3] b, float[2, 3] x) =>
  (float[2, 3] y, float[2, 3] w, float[2, 3] a_next, float[2, 3] b_next) {
  s = Add (a, x)
  a_next = Relu (s)
  y = Sigmoid (a_next)
  h = Sinh (y)
  t = Add (b, h)
  b_next = Relu (t)
  w = Sigmoid (b_next)
}
"""
PAIRS = {"a": "a_next", "b": "b_next"}
STEPS = [ramp(2, 3) * step - 1 for step in range(4)]


def run_cells(state: dict[str, np.ndarray], x: np.ndarray) -> dict[str, np.ndarray]:
    """Update a state as CELLS does, and return the outputs that are not state."""
    state["a"] = np.maximum(state["a"] + x, 0)
    y = 1 / (1 + np.exp(-state["a"]))
    state["b"] = np.maximum(state["b"] + np.sinh(y), 0)
    return {"y": y, "w": 1 / (1 + np.exp(-state["b"]))}


def write(text: str, path: Path, **options: Any) -> Any:
    byoc.partition(parse(text), "dla", output=path, strategy="all-supported", verify=False, **options)
    return byoc.load(path)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Session:
    found: Session = write(CELLS, tmp_path_factory.mktemp("state") / "b")
    assert found.bundle is not None
    assert len(found.bundle.identical_regions) == 1
    return found


def without_devices(session: Session) -> Session:
    """Return a session whose stages keep nothing on their devices."""
    stages = [replace(stage, allocate=None) for stage in session.stages]
    return replace(session, program=replace(session.program, stages=stages))


def test_a_device_keeps_the_state_of_each_sequence(cells: Session) -> None:
    one, other = (byoc.open_stateful(cells, PAIRS) for _ in range(2))
    assert one.on_device == {"a", "b"}
    assert byoc.open_stateful(without_devices(cells), PAIRS).on_device == set()
    zeros = np.zeros((2, 3), np.float32)
    begun = ramp(2, 3) + 1
    for _ in range(2):
        states = [{"a": begun, "b": zeros}, {"a": zeros, "b": zeros}]
        one.reset({"a": begun})
        other.reset()
        assert list(one.state) == ["a"]
        for step in STEPS:
            for session, state in zip((one, other), states, strict=True):
                found, expected = session({"x": step}), run_cells(state, step)
                assert list(found) == ["y", "w"]
                for name, value in expected.items():
                    np.testing.assert_allclose(found[name], value, rtol=1e-6)
                for name, value in session.state.items():
                    np.testing.assert_allclose(value, state[name], rtol=1e-6)


def test_variants_hand_on_what_their_devices_keep(tmp_path: Path) -> None:
    text = CELLS.replace("x) =>", "x, float[N] z) =>").replace("b_next) {", "b_next, float[N] v) {")
    text = text.replace("w = Sigmoid (b_next)", "w = Sigmoid (b_next) v = Sinh (z)")
    variants = {name: {"N": size} for name, size in (("one", 1), ("two", 2))}
    loaded = write(text, tmp_path / "b", variants=variants)
    session, apart = byoc.open_stateful(loaded, PAIRS), byoc.open_stateful(loaded, PAIRS)
    zeros = np.zeros((2, 3), np.float32)
    state = {"a": zeros, "b": zeros}
    assert session.on_device == set()
    for size, step in zip((1, 1, 2, 1), STEPS, strict=True):
        trace = byoc.Trace()
        found = session.run({"x": step, "z": np.full(size, 0.5, np.float32)}, trace)
        expected = run_cells(state, step)
        assert {event.variant for event in trace.events} == {("one", "two")[size - 1]}
        np.testing.assert_allclose(found["v"], np.sinh(np.full(size, 0.5)), rtol=1e-6)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
        assert session.on_device == {"a", "b"}
        assert session.in_place == set()
        for name, value in session.state.items():
            np.testing.assert_allclose(value, state[name], rtol=1e-6)
    apart.reset({"a": state["a"], "b": state["b"]})  # which is sent to its device
    found = apart({"x": STEPS[3], "z": np.zeros(2, np.float32)})
    for name, value in run_cells(state, STEPS[3]).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
    session.reset()
    again = session({"x": STEPS[2], "z": np.zeros(1, np.float32)})
    fresh = run_cells({"a": zeros, "b": zeros}, STEPS[2])
    for name, value in fresh.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6)


def test_nothing_of_it_crosses(cells: Session) -> None:
    def cross(session: Session) -> set[tuple[int, int]]:
        trace = byoc.Trace()
        stateful = byoc.open_stateful(session, PAIRS)
        for step in STEPS:
            stateful.run({"x": step}, trace)
        return {(e.bytes_read, e.bytes_made) for e in trace.events if e.device != "host"}

    assert cross(cells) == {(24, 24)}  # six floats: the input and the output that are no state
    assert cross(without_devices(cells)) == {(48, 48)}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (("Sinh (y)", "Sinh (y)"), {"a", "b"}),
        (("Sinh (y)", "Sinh (a)"), {"b"}),  # the host reads a, too
        (("float[2, 3] b,", "float[N, 3] b,"), {"a"}),  # of any extent
    ],
    ids=["as it is", "read twice", "open"],
)
def test_what_a_device_can_keep(change: tuple[str, str], kept: set[str], tmp_path: Path) -> None:
    loaded = write(CELLS.replace(*change), tmp_path / "b", codegen="reference", keep_open=True)
    stages = [replace(stage, allocate=lambda pairs: Held(), bind=None) for stage in loaded.stages]
    session = replace(loaded, program=replace(loaded.program, stages=stages))

    assert byoc.open_stateful(session, PAIRS).on_device == kept


class Held:
    """A state of which nothing is asked."""

    reset = step = read = None  # type: ignore[assignment]


def test_a_device_that_fails_is_named(cells: Session) -> None:
    def fail(pairs: Any) -> Any:
        raise ZeroDivisionError("no room")

    region = next(stage for stage in cells.stages if stage.device != "host")
    run: Any = region.run
    broken = replace(run, run=Broken(run.run, fail))
    stages = [replace(s, allocate=broken.allocate) if s is region else s for s in cells.stages]
    session = replace(cells, program=replace(cells.program, stages=stages))
    with pytest.raises(InputError, match=r"^codegen dla: allocating failed with ZeroDivisionError"):
        byoc.open_stateful(session, PAIRS)


class Broken:
    """An executor whose `allocate` fails."""

    def __init__(self, run: Any, allocate: Callable[[Any], Any]) -> None:
        self.run, self.allocate = run, allocate

    def __call__(self, inputs: Any) -> Any:
        return self.run(inputs)


def test_a_decoder_on_dla_says_the_same_tokens(tmp_path: Path) -> None:
    """Its cache of one length stays in the machine's memory."""
    byoc.partition(
        "zoo:decoder_int4_decode",
        "dla",
        output=tmp_path / "b",
        strategy="all-supported",
        verify=False,
    )
    loaded = byoc.load(tmp_path / "b")
    assert isinstance(loaded, Session)
    kept, handed = byoc.open_stateful(loaded), byoc.open_stateful(without_devices(loaded))
    assert kept.on_device == set(kept.pairs)
    assert handed.on_device == set()

    def decode(session: StatefulSession) -> list[int]:
        tokens, length = [5], loaded.types["attention_mask"].shape
        assert length is not None
        for _ in range(4):
            mask = (np.arange(length[1]) < len(tokens)).astype(np.int64)[None]
            found = session({"input_ids": np.array([tokens[-1:]]), "attention_mask": mask})
            tokens.append(int(found["logits"][0, -1].argmax()))
        return tokens

    assert decode(kept) == decode(handed)
    for name, value in kept.state.items():
        np.testing.assert_array_equal(value, handed.state[name])
