"""Sessions are called by name, by the array of the only input, and as sessions of onnxruntime are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.cutting import cut, ramp
from helpers.support import VANILLA, parse

import byoc
from byoc.errors import InputError

ONE = """one (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {
  a = Relu(x)
  y = Sigmoid(a)
  z = Neg(y)
}
"""
TWO = """two (float[1, 4] x, int64[N, 2] i) => (float[1, 4] y, int64[N, 2] j) {
  a = Relu(x)
  y = Sigmoid(a)
  j = Abs(i)
}
"""
STATE = """state (float[1, 4] x, float[1, 4] past) => (float[1, 4] y, float[1, 4] present) {
  present = Add(x, past)
  y = Relu(present)
}
"""
X = ramp(1, 4)
BOTH: dict[str, Any] = {"x": X, "i": np.array([[-1, 2]])}


def _load_plain(folder: Path) -> Any:
    cut(parse(ONE), folder / "b", dims={"N": 1})
    return byoc.load(folder / "b")


def _load_variants(folder: Path) -> Any:
    cut(parse(ONE), folder / "b", variants={"small": {"N": 1}, "large": {"N": 2}})
    return byoc.load(folder / "b")


def _load_bound(folder: Path) -> Any:
    session = _load_plain(folder)
    return byoc.bind_tensors(session, outputs={"z": np.empty((1, 4), np.float32)})


def _load_stateful(folder: Path) -> Any:
    cut(parse(STATE), folder / "b")
    return byoc.open_stateful(byoc.load(folder / "b"), {"past": "present"})


@pytest.fixture(params=[_load_plain, _load_variants, _load_bound, _load_stateful])
def load_one(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A session of each kind, of one input `x`."""
    make: Callable[[Path], Any] = request.param
    return make(tmp_path)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("two") / "b"
    cut(parse(TWO), path)
    return byoc.load(path)


def test_every_kind_of_session_takes_both_forms(load_one: Any) -> None:
    session = load_one
    named = {name: np.array(value) for name, value in session({"x": X}).items()}
    assert list(named) == list(session.outputs)
    for call in (
        lambda: session(X),
        lambda: session.run(X),
        lambda: session.run({"x": X}),
        lambda: dict(zip(named, session.run(None, {"x": X}), strict=True)),
        lambda: dict(zip(named, session.run([*named], {"x": X}), strict=True)),
        lambda: dict(zip(named, session.run(input_feed={"x": X}), strict=True)),
        lambda: {**named, "y": session.run(output_names=["y"], input_feed={"x": X})[0]},
    ):
        if isinstance(session, byoc.StatefulSession):
            session.reset()
        found = call()
        assert list(found) == list(named)
        for name, value in named.items():
            np.testing.assert_array_equal(found[name], value)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert [each.name for each in session.get_outputs()] == list(session.outputs)


def test_inputs_and_outputs_are_told_as_onnxruntime_tells_them(two: Any) -> None:
    theirs = ort.InferenceSession(parse(TWO).SerializeToString(), providers=["CPUExecutionProvider"])
    for own, other in (
        *zip(two.get_inputs(), theirs.get_inputs(), strict=True),
        *zip(two.get_outputs(), theirs.get_outputs(), strict=True),
    ):
        assert (own.name, own.type, own.shape) == (other.name, other.type, other.shape)
    given, expected = two.run(["j", "y"], BOTH), theirs.run(["j", "y"], BOTH)
    for mine, other in zip(given, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "bool", "string", "uint64"])
def test_types_are_written_as_onnxruntime_writes_them(dtype: str, tmp_path: Path) -> None:
    model = parse(f"m ({dtype}[3] x) => ({dtype}[3] y) {{ y = Identity(x) }}")
    cut(model, tmp_path / "b")
    session = byoc.load(tmp_path / "b")
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [each.type for each in session.get_inputs()] == [theirs.get_inputs()[0].type]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda s: s(X),
            "an array without a name is for a model of one input; give {'x': ..., 'i': ...}",
        ),
        (lambda s: s.run(["yy"], BOTH), "no output 'yy' (did you mean y?); the outputs: y, j"),
        (lambda s: s.run("y", BOTH), "outputs are a list of names, or None for all: run(None, inputs)"),
        (lambda s: s.run(None), "inputs are arrays by name, not nothing; give {'x': ..., 'i': ...}"),
        (lambda s: s.run(["y"]), "inputs are arrays by name, not a list"),
        (lambda s: s([X, X]), "inputs are arrays by name, not a list"),
        (lambda s: s.run(None, {"x": X}), "missing input 'i'; the model's inputs: x, i"),
    ],
)
def test_another_form_is_one_sentence(call: Callable[[Any], Any], sentence: str, two: Any) -> None:
    with pytest.raises(InputError) as raised:
        call(two)
    assert str(raised.value).startswith(sentence)


def test_a_tensor_of_another_library_is_the_only_input(tmp_path: Path) -> None:
    session = _load_plain(tmp_path)

    class Tensor:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return X.__dlpack_device__()

    np.testing.assert_array_equal(session(Tensor())["y"], session({"x": X})["y"])


def test_an_application_of_onnxruntime_runs_unchanged(tmp_path: Path) -> None:
    """The loop that its documentation shows, with another session."""
    model = parse(ONE)
    cut(model, tmp_path / "b", dims={"N": 1})
    onnx.save(model, tmp_path / "m.onnx")
    results = []
    for session in (
        ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]),
        byoc.load(tmp_path / "b"),
    ):
        name = session.get_inputs()[0].name
        wanted = [each.name for each in session.get_outputs()]
        results.append(session.run(wanted, {name: X}))
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"x": X}, ""),
        ({"x": np.asfortranarray(ramp(3, 4)).T[:1, :3]}, "x"),  # another shape
        ({"x": np.broadcast_to(np.float32(2), (1, 4))}, ""),  # not contiguous
        ({"x": X.astype(">f4")}, ""),  # another order of bytes
        ({"x": X.astype(np.float64)}, "float64"),
        ({"x": X.tolist()}, "x"),
        ({}, "x"),
        ({"z": X}, "z"),
        ({"x": X, "more": X}, "more"),
    ],
)
def test_a_bundle_on_the_host_alone_looks_at_inputs_as_any(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    model = parse(ONE.replace("float[N, 4]", "float[1, 4]"))
    byoc.partition(model, VANILLA, output=tmp_path / "host", strategy="host-only")
    byoc.partition(model, VANILLA, output=tmp_path / "cut", strategy="all-supported")
    results = []
    for name in ("host", "cut"):
        session = byoc.load(tmp_path / name)
        try:
            results.append({key: value.tolist() for key, value in session(changed).items()})
        except InputError as error:
            assert told, error
            assert told in str(error)
            results.append(str(error))
    assert results[0] == results[1]
    assert isinstance(results[0], str) == bool(told)


def test_a_trace_and_a_bundle_on_the_host_alone(tmp_path: Path) -> None:
    model = parse(ONE.replace("float[N, 4]", "float[1, 4]"))
    byoc.partition(model, VANILLA, output=tmp_path / "b", strategy="host-only")
    session = byoc.load(tmp_path / "b")
    plain = session({"x": X})
    assert list(plain) == ["y", "z"]
    trace = byoc.Trace()
    assert session.run({"x": X}, trace)["z"].tolist() == plain["z"].tolist()
    assert [event.name for event in trace.events] == [stage.name for stage in session.stages]
