"""Sessions bound to arrays: what is read and written where the caller has it, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut, ramp
from helpers.support import parse

import byoc
from byoc.errors import InputError
from byoc.runtime import Session

TWO = """two (float[N, 4] x, float[4] w) => (float[N, 4] y, float[N, 4] z, float[4] w2) {
  a = Sigmoid(x)
  b = Add(a, w)
  y = Relu(b)
  z = Neg(y)
  w2 = Abs(w)
}
"""
X, W = ramp(2, 4), ramp(4) + np.float32(0.25)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("binding") / "b"
    cut(parse(TWO), path)
    loaded = byoc.load(path)
    assert isinstance(loaded, Session)
    return loaded


def make_buffers() -> dict[str, Any]:
    return {name: np.full((2, 4), 7, np.float32) for name in ("y", "z")}


def test_outputs_are_written_to_their_arrays_in_every_run(session: Session) -> None:
    buffers = make_buffers()
    bound = byoc.bind_tensors(session, outputs=buffers)
    for x in (X, X * 2, X - 1):
        found = bound({"x": x, "w": W})
        wanted = session({"x": x, "w": W})
        assert list(found) == list(wanted)
        for name, buffer in buffers.items():
            assert found[name] is buffer
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def test_of_an_outputs_array_the_shape_is_known_when_it_is_written(session: Session) -> None:
    """Its dtype is known before: extents may be open, and what a model states of them may be wrong."""
    for shape in ((3,), (4, 1), ()):
        bound = byoc.bind_tensors(session, outputs={"w2": np.zeros(shape, np.float32)})
        with pytest.raises(InputError, match="w2"):
            bound({"x": X, "w": W})
    with pytest.raises(InputError, match=r"^output 'w2' is float64"):
        byoc.bind_tensors(session, outputs={"w2": np.zeros(4)})
    with pytest.raises(InputError, match=r"^input 'w' is float32\[3\], the model takes float32\[4\]$"):
        byoc.bind_tensors(session, {"w": W[:3].copy()})


def test_what_an_inputs_array_holds_is_read(session: Session) -> None:
    x, buffers = X.copy(), make_buffers()
    bound = byoc.bind_tensors(session, {"x": x, "w": W.copy()}, buffers)
    assert bound.inputs == ()
    bound()
    x += 1
    bound()
    np.testing.assert_array_equal(buffers["z"], session({"x": X + 1, "w": W})["z"])


def test_some_inputs_are_bound_and_others_given(session: Session) -> None:
    bound = byoc.bind_tensors(session, {"w": W.copy()})
    assert (bound.inputs, bound.outputs) == (("x",), ("y", "z", "w2"))
    np.testing.assert_array_equal(bound({"x": X})["y"], session({"x": X, "w": W})["y"])
    with pytest.raises(InputError, match="no input 'w'; the model's inputs: x"):
        bound({"x": X, "w": W})


def test_a_stage_that_cannot_be_bound_has_its_outputs_copied(session: Session) -> None:
    stages = [replace(stage, bind=None) for stage in session.stages]
    unbindable = replace(session, program=replace(session.program, stages=stages))
    buffers = make_buffers()
    bound = byoc.bind_tensors(unbindable, outputs=buffers)
    found = bound({"x": X, "w": W})
    for name, buffer in buffers.items():
        assert found[name] is buffer
        np.testing.assert_array_equal(buffer, session({"x": X, "w": W})[name])
    with pytest.raises(InputError, match=r"output 'y' is \[3, 4\], its array \[2, 4\]"):
        bound({"x": ramp(3, 4), "w": W})


def test_a_bound_stage_refuses_another_shape_than_its_arrays(session: Session) -> None:
    bound = byoc.bind_tensors(session, outputs=make_buffers())
    with pytest.raises(InputError) as caught:
        bound({"x": ramp(3, 4), "w": W})
    assert "{3,4}" in str(caught.value)


BUFFER = np.zeros((2, 4), np.float32)
FROZEN = np.zeros((2, 4), np.float32)
FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({"v": BUFFER}, {}, "no input 'v'"),
        ({}, {"a": BUFFER}, "no output 'a'"),
        ({"x": np.zeros((2, 5), np.float32)}, {}, "input 'x' is float32[2, 5], the model takes"),
        ({}, {"y": BUFFER.astype(np.float64)}, "output 'y' is float64[2, 4], the model takes float32"),
        ({}, {"y": np.zeros((4, 2), np.float32).T}, "output 'y': only a contiguous array of numpy"),
        ({}, {"y": FROZEN}, "output 'y': its array cannot be written to"),
        ({}, {"y": BUFFER, "z": BUFFER}, "the arrays of output 'y' and output 'z' overlap"),
        ({"x": BUFFER}, {"z": BUFFER}, "the arrays of input 'x' and output 'z' overlap"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    session: Session, inputs: Any, outputs: Any, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        byoc.bind_tensors(session, inputs, outputs)
    assert str(caught.value).startswith(sentence)


def test_an_output_that_no_stage_makes_is_refused(tmp_path: Path) -> None:
    cut(parse("m (float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }"), tmp_path / "b")
    with pytest.raises(InputError, match="output 'x' cannot be bound: no stage makes it"):
        byoc.bind_tensors(byoc.load(tmp_path / "b"), outputs={"x": np.zeros(2, np.float32)})


class Tensor:
    """A tensor of another library, in the memory of this machine or elsewhere."""

    def __init__(self, array: Any, problem: str = "") -> None:
        self.array, self.problem = array, problem

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.problem:
            raise BufferError(self.problem)
        return self.array.__dlpack__(**options)


def test_tensors_of_other_libraries_are_read_by_dlpack(session: Session) -> None:
    found = session({"x": Tensor(X), "w": W})
    np.testing.assert_array_equal(found["y"], session({"x": X, "w": W})["y"])
    with pytest.raises(InputError, match="input 'x' cannot be read as an array: it is on a GPU"):
        session({"x": Tensor(X, "it is on a GPU"), "w": W})


class Unfinished:
    """A tensor of another library that does not say where it lies."""

    def __dlpack__(self) -> Any:
        raise NotImplementedError


def test_whatever_a_tensor_of_another_library_raises_is_one_sentence(session: Session) -> None:
    with pytest.raises(InputError, match=r"input 'x' cannot be read as an array: "):
        session({"x": Unfinished(), "w": W})


def test_arrays_are_bound_to_one_variant(tmp_path: Path) -> None:
    variants: Any = {"two": {"N": 2}, "three": {"N": 3}}
    cut(parse(TWO), tmp_path / "b", variants=variants)
    loaded = byoc.load(tmp_path / "b")
    with pytest.raises(InputError) as caught:
        byoc.bind_tensors(loaded, outputs=make_buffers())
    assert str(caught.value) == "arrays are bound to one variant, load it by name: two, three"
    buffers = make_buffers()
    found = byoc.bind_tensors(byoc.load(tmp_path / "b", variant="two"), outputs=buffers)
    np.testing.assert_array_equal(found({"x": X, "w": W})["w2"], np.abs(W))
    np.testing.assert_array_equal(buffers["z"], -buffers["y"])
    assert repr(found) == "BoundSession(inputs=['x', 'w'], outputs=['y', 'z', 'w2'])"
    assert repr(loaded) == (
        "VariantSession(['two', 'three'], inputs=['x', 'w'], outputs=['y', 'z', 'w2'])"
    )


def test_text_cannot_be_bound(tmp_path: Path) -> None:
    cut(
        parse(
            "m (string[2] t, float[2] x) => (string[2] u, float[2] y) { u = Identity(t) y = Relu(x) }"
        ),
        tmp_path / "b",
    )
    session = byoc.load(tmp_path / "b")
    with pytest.raises(InputError, match=r"^input 't' cannot be bound: it is no tensor of numbers"):
        byoc.bind_tensors(session, {"t": np.array(["a", "b"], object)})


def test_a_session_of_no_bundle_holds_nothing_between_its_stages(session: Session) -> None:
    buffers = make_buffers()
    found = byoc.bind_tensors(replace(session, bundle=None), outputs=buffers)({"x": X, "w": W})
    for name, value in session({"x": X, "w": W}).items():
        np.testing.assert_array_equal(found[name], value)
    assert found["y"] is buffers["y"]
