"""Sessions with state: what is kept from call to call, where it lies, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut, ramp
from helpers.support import parse

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


TWO_OPEN = """
g (float[past, more] old, float[1, 1] x) => (float[1, 1] y, float[past, total] new) {
  y = Relu (x)
  new = Concat <axis = 1> (old, old)
}
"""


def test_a_state_grows_along_one_axis(tmp_path: Path, sessions: dict[str, Session]) -> None:
    cut(parse(TWO_OPEN), tmp_path / "b")
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    with pytest.raises(InputError) as caught:
        session({"x": ramp(1, 1)})
    assert str(caught.value) == (
        "input 'old' is float32[past, more]: along which axis it grows cannot be seen"
    )
    shown = byoc.open_stateful(sessions["cache"])
    assert repr(shown) == "StatefulSession(inputs=['x'], outputs=['y'], state=['old'])"
    loaded = sessions["cache"]
    names = [stage.name for stage in loaded.stages]
    assert repr(loaded) == f"Session(inputs=['old', 'x'], outputs=['y', 'new'], stages={names})"


def test_a_state_that_is_given_lies_in_its_buffer(tmp_path: Path) -> None:
    """A decoder of a maximal length: the state may be shorter than that, and not longer."""
    cut("zoo:decoder_int4", tmp_path / "b", verify=False)
    loaded = byoc.load(tmp_path / "b")
    assert isinstance(loaded, Session)
    session = byoc.open_stateful(loaded, max_length=6)
    grown = byoc.open_stateful(loaded)

    def step(session: byoc.runtime.StatefulSession, tokens: list[int], count: int) -> np.ndarray:
        mask = np.ones((1, count + len(tokens)), np.int64)
        return session({"input_ids": np.array([tokens]), "attention_mask": mask})["logits"][0, -1]

    for one in (session, grown):
        step(one, [3, 1, 4], 0)
    state = {name: value.copy() for name, value in grown.state.items()}
    assert {value.shape for value in state.values()} == {(1, 2, 3, 32)}
    assert {value.shape for value in session.state.values()} == {(1, 2, 6, 32)}
    for name, value in session.state.items():
        np.testing.assert_array_equal(value[:, :, :3], state[name])
    wanted = step(grown, [1], 3)
    np.testing.assert_allclose(step(session, [1], 3), wanted, rtol=1e-4, atol=1e-5)
    session.reset(state)
    assert set(session.state) == set(state)
    np.testing.assert_allclose(step(session, [1], 3), wanted, rtol=1e-4, atol=1e-5)
    assert session.in_place == session.pairs.keys()
    name, value = next(iter(state.items()))
    session.reset({name: np.zeros((1, 2, 6, 32), np.float32)})
    with pytest.raises(InputError) as caught:
        session.reset({name: np.zeros((1, 2, 7, 32), np.float32)})
    assert str(caught.value) == f"input '{name}' is 7 long, at most 6 is allowed"
