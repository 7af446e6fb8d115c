"""Sessions with state: what is kept from call to call, where it lies, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting import cut, ramp
from support import parse

import byoc
from byoc.errors import InputError
from byoc.onnxrt import bind_session, open_session
from byoc.runtime import Session, VariantSession

CACHE = """
cache (float[N, past, 2] old, float[N, 1, 2] x) => (float[N, 1, 2] y, float[N, total, 2] new)
  <int64[1] axes = {1}> {
  a = Relu (x)
  new = Concat <axis = 1> (old, a)
  y = ReduceSum <keepdims = 1> (new, axes)
}
"""
COUNTER = """
counter (float[2, 3] state, float[2, 3] x) => (float[2, 3] next, float[2, 3] y) {
  sum = Add (state, x)
  next = Relu (sum)
  y = Sigmoid (next)
}
"""
STEPS = [ramp(1, 1, 2) + step for step in range(4)]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    found = {}
    for name, text in (("cache", CACHE), ("counter", COUNTER)):
        path = tmp_path_factory.mktemp("state") / name
        cut(parse(text), path)
        found[name] = byoc.load(path)
    return found


def test_a_cache_grows_and_is_empty_again_after_a_reset(sessions: dict[str, Session]) -> None:
    session = byoc.open_stateful(sessions["cache"])
    assert (session.inputs, session.outputs, session.pairs) == (("x",), ("y",), {"old": "new"})
    for _ in range(2):
        for count, step in enumerate(STEPS, 1):
            found = session({"x": step})
            assert list(found) == ["y"]
            kept = np.maximum(np.concatenate(STEPS[:count], axis=1), 0)
            np.testing.assert_array_equal(session.state["old"], kept)
            np.testing.assert_allclose(found["y"], kept.sum(1, keepdims=True), rtol=1e-6)
        session.reset()
        assert session.state == {}


def test_extents_that_other_inputs_have_are_theirs(sessions: dict[str, Session]) -> None:
    session = byoc.open_stateful(sessions["cache"])
    session({"x": ramp(3, 1, 2)})
    assert session.state["old"].shape == (3, 1, 2)


def test_a_sequence_may_begin_with_a_state(sessions: dict[str, Session]) -> None:
    session = byoc.open_stateful(sessions["cache"])
    begun = ramp(1, 5, 2)
    session.reset({"old": begun})
    begun += 1  # the session has a copy
    session({"x": STEPS[0]})
    expected = np.concatenate([ramp(1, 5, 2), np.maximum(STEPS[0], 0)], axis=1)
    np.testing.assert_array_equal(session.state["old"], expected)


def test_two_sequences_on_one_session(sessions: dict[str, Session]) -> None:
    one, other = (byoc.open_stateful(sessions["counter"], {"state": "next"}) for _ in range(2))
    x = np.ones((2, 3), np.float32)
    for count in range(1, 4):
        for session, step in ((one, x), (other, 2 * x)):
            found = session({"x": step})["y"]
            np.testing.assert_array_equal(session.state["state"], count * step)
            np.testing.assert_allclose(found, 1 / (1 + np.exp(-count * step)), rtol=1e-6)


@pytest.mark.parametrize(
    ("pairs", "length", "sentence"),
    [
        (None, 8, "input 'old' cannot have a maximal length: Concat makes 'new' anew in each call"),
        ({"old": "neww"}, None, "no output 'neww' (did you mean new?)"),
        (None, 0, "a maximal length of 0: it has to be at least 1"),
        ({"old": "new", "x": "new"}, None, "output 'new' is the state of two inputs"),
        ({"odd": "new"}, None, "no input 'odd' (did you mean old?)"),
    ],
)
def test_what_cannot_be_kept(
    pairs: dict[str, str] | None, length: int | None, sentence: str, sessions: dict[str, Session]
) -> None:
    with pytest.raises(InputError) as caught:
        byoc.open_stateful(sessions["cache"], pairs, length)
    assert str(caught.value) == sentence


def test_a_model_without_pairs_needs_their_names(sessions: dict[str, Session]) -> None:
    with pytest.raises(InputError, match=r"^no input takes what an output gave; name the pairs"):
        byoc.open_stateful(sessions["counter"])


def test_variants_share_a_state(tmp_path: Path) -> None:
    """Each call runs the variant that inputs and state fit, the state begins empty again."""
    variants: Any = {f"v{past}": {"N": 1, "past": past} for past in range(3)}
    cut(parse(CACHE), tmp_path / "b", variants=variants)
    loaded = byoc.load(tmp_path / "b")
    assert isinstance(loaded, VariantSession)
    assert str(loaded.types["old"]) == "float32[1, 0|1|2, 2]"
    session = byoc.open_stateful(loaded)
    assert (session.inputs, session.outputs, session.pairs) == (("x",), ("y",), {"old": "new"})
    for _ in range(2):
        for count, step in enumerate(STEPS[:3], 1):
            trace = byoc.Trace()
            found = session.run({"x": step}, trace)
            assert {event.variant for event in trace.events} == {f"v{count - 1}"}
            kept = np.maximum(np.concatenate(STEPS[:count], axis=1), 0)
            np.testing.assert_allclose(found["y"], kept.sum(1, keepdims=True), rtol=1e-6)
        with pytest.raises(InputError, match=r"^no variant takes these inputs: v0 "):
            session({"x": STEPS[3]})
        session.reset()
    with pytest.raises(InputError, match=r"^variants have lengths of their own: leave out max_length"):
        byoc.open_stateful(loaded, max_length=8)


def test_wrong_inputs_and_states(sessions: dict[str, Session]) -> None:
    session = byoc.open_stateful(sessions["cache"])
    with pytest.raises(InputError, match=r"^input 'old' is kept by the session"):
        session({"x": STEPS[0], "old": ramp(1, 1, 2)})
    with pytest.raises(InputError, match=r"^input 'ol' is not state \(did you mean old\?\)"):
        session.reset({"ol": ramp(1, 1, 2)})
    with pytest.raises(InputError, match=r"^input 'old' is float32\[1, 1, 3\], the model takes float"):
        session.reset({"old": ramp(1, 1, 3)})
    with pytest.raises(InputError, match=r"^missing input 'x'"):
        session({})


def test_a_bound_session_writes_where_it_is_told_and_leaves_what_it_gave() -> None:
    model = parse(
        "g (float[N] x, float[N] z) => (float[N] y, float[N] w) { y = Add(x, z) w = Sub(x, z) }"
    )
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    run = bind_session(open_session(model), {"x": x}, {"y": y})
    assert run is not None
    one = run({"x": x, "z": np.ones(3, np.float32)})
    assert one["y"] is y
    np.testing.assert_array_equal(y, [1, 2, 3])
    x += 10
    other = run({"x": x, "z": np.full(3, 2, np.float32)})
    np.testing.assert_array_equal(y, [12, 13, 14])
    np.testing.assert_array_equal(one["w"], [-1, 0, 1])
    np.testing.assert_array_equal(other["w"], [8, 9, 10])
    with pytest.raises(InputError, match=r"^onnxruntime cannot run the model: "):
        run({"x": x, "z": np.zeros(4, np.float32)})


def test_text_is_not_bound(tmp_path: Path) -> None:
    model = parse("g (string[N] x) => (string[N] y) { y = Identity(x) }")
    assert bind_session(open_session(model), {}, {}) is None
