"""Tensors between stages that stay in the same arrays from run to run of a bound session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut, ramp
from helpers.support import parse

import byoc
from byoc.runtime import Session
from byoc.runtime._state_binding import find_inner_types, hold_tensors

SUM = """
sum (float[N, M] x, float[N, total] mask, float[N, 2] old) => (float[N, 2] new, float[N, M] y)
  <int64[2] two = {1, 2}, float[1] quarter = {0.25}> {
  a = Relu (x)
  b = Sigmoid (a)
  m = ReduceMean <axes = [1], keepdims = 1> (b)
  c = Add (m, m)
  d = Tile (c, two)
  e = Mul (d, quarter)
  new = Add (e, old)
  f = Sub (b, m)
  y = Relu (f)
}
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("held") / "b"
    cut(parse(SUM), path)
    loaded = byoc.load(path)
    assert isinstance(loaded, Session)
    return loaded


def make_inputs(rows: int, columns: int, total: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, columns), np.float32),
        "mask": np.ones((rows, total), np.float32),
    }


def test_calls_of_any_shapes_give_what_the_plain_session_gives(session: Session) -> None:
    """Extents stay and change from call to call; what a call gave is not written over by later ones."""
    assert len(session.stages) > 3
    stateful = byoc.open_stateful(session, {"old": "new"})
    old = np.zeros((2, 2), np.float32)
    shapes = [(2, 5, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4), (2, 3, 7), (2, 3, 8), (2, 1, 9), (2, 1, 10)]
    given, wanted = [], []
    for number, shape in enumerate(shapes):
        inputs = make_inputs(*shape, seed=number)
        expected = session({**inputs, "old": old})
        old = expected["new"]
        given.append(stateful(inputs)["y"])
        wanted.append(expected["y"])
        np.testing.assert_array_equal(stateful.state["old"], old)
    for mine, theirs in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_held(session: Session) -> None:
    kinds = find_inner_types(session)
    assert {"a", "c", "f", "m"} <= set(kinds)
    assert not {"y", "new", "x", "old"} & set(kinds)
    assert set(hold_tensors(kinds, {}).types) == set()
    rows = set(hold_tensors(kinds, {"N": 2}).types)
    assert {"m", "c"} <= rows
    assert not {"a", "f"} & rows
    assert {"a", "f"} <= set(hold_tensors(kinds, {"N": 2, "M": 8192}).types)
    assert not {"a", "f"} & set(hold_tensors(kinds, {"N": 2, "M": 8193}).types)
    assert not {"a", "f"} & set(hold_tensors(kinds, {"N": 2, "M": 0}).types)


def test_what_a_stage_reads_that_cannot_be_bound_is_not_held(session: Session) -> None:
    reader = next(stage for stage in session.stages if "a" in stage.inputs)
    stages = [replace(s, bind=lambda *_: None) if s is reader else s for s in session.stages]
    other = replace(session, program=replace(session.program, stages=stages))
    assert "a" not in find_inner_types(other)
    assert "a" in find_inner_types(session)


def test_arrays_of_the_caller_and_held_ones(session: Session) -> None:
    x, old = ramp(2, 4), np.ones((2, 2), np.float32)
    bound = byoc.bind_tensors(session, {"x": x, "old": old})
    mask = np.ones((2, 6), np.float32)
    for step in range(3):
        x += step
        expected = session({"x": x, "mask": mask, "old": old})
        for name, value in bound({"mask": mask}).items():
            np.testing.assert_array_equal(value, expected[name])


def test_a_model_that_states_wrong_extents_runs_as_before(tmp_path: Path) -> None:
    text = """
wrong (float[N, 4] x, int64[2] s) => (float[A, B] z) <float[2, 5] b> {
  a = Sigmoid(x)
  b = Reshape(a, s)
  c = Relu(b)
  z = Neg(c)
}
"""
    cut(parse(text), tmp_path / "b", verify=False)
    session = byoc.load(tmp_path / "b")
    bound = byoc.bind_tensors(session, {"x": ramp(4, 4)})
    assert bound({"s": np.array([2, 8])})["z"].shape == (2, 8)
