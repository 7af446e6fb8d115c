"""A loaded bundle: what it takes, what it refuses, and that it keeps nothing between calls."""

import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, cut, original, ramp
from helpers.support import parse

from byoc.errors import InputError
from byoc.model import TensorType, check_model
from byoc.onnxrt import find_inexact_kernels
from byoc.runtime import Session, Stage, StageProgram, load

TWO = """two (float[1, 4] x, int64[N, 2] i) => (float[1, 4] y, int64[N, 2] j) {
  a = Relu(x)
  b = Sigmoid(a)
  y = Relu(b)
  j = Abs(i)
}
"""


GOOD: dict[str, Any] = {"x": ramp(1, 4), "i": np.array([[-1, 2], [3, -4]])}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "b"
    cut(parse(TWO), path)
    return path


def test_the_stages_in_order(two: Path) -> None:
    session = load(two)
    assert (session.inputs, session.outputs) == (("x", "i"), ("y", "j"))
    assert [stage.name for stage in session.stages] == [
        "host segment 0",
        "dla_0",
        "host segment 1",
        "dla_1",
    ]


def test_the_numbers(two: Path) -> None:
    given = load(two)(GOOD)
    assert given["j"].tolist() == [[1, 2], [3, 4]]
    positive = np.maximum(ramp(1, 4).astype(np.float64), 0)
    np.testing.assert_allclose(given["y"], 1 / (1 + np.exp(-positive)), rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"x": GOOD["x"]}, "missing input 'i'; the model's inputs: x, i"),
        ({}, "missing input 'x'; the model's inputs: x, i"),
        (GOOD | {"z": ramp(1)}, "no input 'z'; the model's inputs: x, i"),
        (GOOD | {"a": ramp(1, 4)}, "no input 'a'; the model's inputs: x, i"),
        (
            GOOD | {"x": ramp(1, 4).astype(np.float64)},
            "input 'x' is float64[1, 4], the model takes float32[1, 4]",
        ),
        (GOOD | {"x": ramp(1, 5)}, "input 'x' is float32[1, 5], the model takes float32[1, 4]"),
        (GOOD | {"x": ramp(4)}, "input 'x' is float32[4], the model takes float32[1, 4]"),
        (
            GOOD | {"i": np.zeros((3, 3), np.int64)},
            "input 'i' is int64[3, 3], the model takes int64[N, 2]",
        ),
        (
            GOOD | {"i": np.zeros((3, 2), np.int32)},
            "input 'i' is int32[3, 2], the model takes int64[N, 2]",
        ),
        (GOOD | {"x": None}, "input 'x' is object[], the model takes float32[1, 4]"),
        (GOOD | {"x": "an image"}, "input 'x' is <U8[], the model takes float32[1, 4]"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], sentence: str, two: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(two)(inputs)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("inputs", "fits"),
    [
        (GOOD, True),
        ({"i": GOOD["i"], "x": GOOD["x"]}, True),
        (GOOD | {"i": np.zeros((0, 2), np.int64)}, True),
        (GOOD | {"i": np.zeros((0, 3), np.int64)}, False),
        (GOOD | {"x": ramp(1, 5)}, False),
        (GOOD | {"x": ramp(4)}, False),
        (GOOD | {"x": ramp(1, 4).astype(np.float64)}, False),
        (GOOD | {"x": ramp(1, 8)[:, ::2]}, False),  # the right shape, to be copied
        (GOOD | {"x": ramp(1, 4).tolist()}, False),
        (GOOD | {"z": ramp(1)}, False),
        ({"x": GOOD["x"]}, False),
        ({"x": GOOD["x"], "j": GOOD["i"]}, False),
        ({}, False),
    ],
)
def test_what_needs_no_closer_look(inputs: dict[str, Any], fits: bool, two: Path) -> None:
    assert load(two).fits(inputs) is fits  # type: ignore[union-attr]


@pytest.mark.parametrize("order", "<>")
def test_inputs_of_either_byte_order(order: str, two: Path) -> None:
    foreign = {name: value.astype(value.dtype.newbyteorder(order)) for name, value in GOOD.items()}
    session = load(two)
    for name, found in session(foreign).items():
        assert np.array_equal(found, session(GOOD)[name])
        assert found.dtype.isbuiltin == 1


def test_a_symbolic_dimension_takes_any_extent(two: Path) -> None:
    session = load(two)
    for extent in (0, 1, 5):
        rows = -np.ones((extent, 2), np.int64)
        assert session(GOOD | {"i": rows})["j"].tolist() == [[1, 1]] * extent


def test_a_second_call_knows_nothing_of_the_first(two: Path) -> None:
    session = load(two)
    first = session(GOOD)
    kept = {name: value.copy() for name, value in first.items()}
    second = session(GOOD | {"x": -ramp(1, 4)})
    assert not np.array_equal(second["y"], kept["y"])
    assert all(np.array_equal(first[name], kept[name]) for name in kept)
    third = session(GOOD)
    assert all(np.array_equal(third[name], kept[name]) for name in kept)


def test_the_inputs_are_left_alone(two: Path) -> None:
    inputs = {name: value.copy() for name, value in GOOD.items()}
    load(two)(inputs)
    assert list(inputs) == list(GOOD)
    assert all(np.array_equal(inputs[name], GOOD[name]) for name in GOOD)


def test_a_refused_call_does_no_harm(two: Path) -> None:
    session = load(two)
    before = session(GOOD)["y"]
    with pytest.raises(InputError):
        session({})
    assert np.array_equal(session(GOOD)["y"], before)


def test_two_sessions_side_by_side(two: Path, tmp_path: Path) -> None:
    cut(parse(CHAIN.replace("Sigmoid", "Neg")), tmp_path / "b")
    one, other = load(two), load(tmp_path / "b")
    assert other({"x": ramp(1, 4)})["y"].tolist() == [[0, 0, 0, 0]]
    assert one(GOOD)["y"].min() >= 0.5
    assert other({"x": ramp(1, 4)})["y"].tolist() == [[0, 0, 0, 0]]


def test_calls_from_two_threads_do_not_mix(two: Path) -> None:
    session = load(two)

    def call(number: int) -> bool:
        rows = np.full((3, 2), -number, np.int64)
        given = session({"x": ramp(1, 4) * number, "i": rows})
        alone = 1 / (1 + np.exp(-np.maximum(ramp(1, 4) * number, 0).astype(np.float64)))
        return bool((given["j"] == number).all() and np.allclose(given["y"], alone, rtol=1e-6))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(call, range(1, 101)))


def test_tensors_come_in_order_of_rows_and_other_inputs_as_they_are() -> None:
    stage = StageProgram([], {"k": np.arange(3)}, ("x", "s", "k"), {})
    session = Session(("x", "s"), {"x": TensorType("float32", (4, 2))}, stage)
    given = {"x": ramp(2, 4).T, "s": [ramp(2), ramp(3)]}
    found = session(given)
    assert found["x"].flags.c_contiguous
    assert not given["x"].flags.c_contiguous
    assert np.array_equal(found["x"], given["x"])
    assert found["s"] is given["s"]
    found["k"][:] = 7  # a stored output is the caller's own
    assert session(given)["k"].tolist() == [0, 1, 2]


def test_what_is_loaded_is_told_apart_whatever_it_holds() -> None:
    """Values and functions need not be comparable, nor hashable."""
    for make in (
        lambda: Stage("one", (), dict, {}),
        lambda: StageProgram([], {"k": np.arange(3)}, (), {}),
        lambda: Session((), {}, StageProgram([], {}, (), {})),
    ):
        one, other = make(), make()
        assert len({one, other}) == 2
        assert one != other


def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    text = """g (float[1, 4] x, int64[1] at) => (float[1, 4] y) {
        a = Relu(x)
        b = Gather(a, at)
        y = Sigmoid(b)
    }"""
    cut(parse(text), tmp_path / "b")
    with pytest.raises(InputError, match=r"^host segment 0: onnxruntime cannot run the model: .*out of"):
        load(tmp_path / "b")({"x": ramp(1, 4), "at": np.array([9])})


def test_a_sequence_passes_between_host_segments(tmp_path: Path) -> None:
    text = """g (float[1, 6] x) => (float[1, 2] y) {
        parts = SplitToSequence <axis = 1> (x, sizes)
        first = SequenceAt(parts, zero)
        a = Relu(first)
        s = Sigmoid(a)
        third = SequenceAt(parts, two)
        y = Sub(s, third)
    }"""
    model = parse(text)
    for name, value in (("sizes", [2, 2, 2]), ("zero", 0), ("two", 2)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
    result = cut(model, tmp_path / "b")
    assert len(result.plan.regions) == 1
    x = {"x": ramp(1, 6)}
    assert np.array_equal(load(tmp_path / "b")(x)["y"], original(model, x)["y"])


def test_a_sequence_is_an_input_whose_type_is_not_checked(tmp_path: Path) -> None:
    text = """g (seq(float[1, 4]) parts, float[1, 4] x, int64 at) => (float[1, 4] y) {
        a = SequenceAt(parts, at)
        b = Relu(x)
        y = Add(a, b)
    }"""
    cut(parse(text), tmp_path / "b", verify=False)
    session = load(tmp_path / "b")
    assert session.inputs == ("parts", "x", "at")
    assert sorted(session.types) == ["at", "x"]
    found = session({"parts": [ramp(1, 4), 3 * ramp(1, 4)], "x": ramp(1, 4), "at": np.array(1)})
    np.testing.assert_array_equal(found["y"], 3 * ramp(1, 4) + np.maximum(ramp(1, 4), 0))


def test_strings_pass_in_and_out(tmp_path: Path) -> None:
    model = parse(
        "g (string[N] s, float[1, 4] x) => (string[N] t, float[1, 4] y) { t = Identity(s) y = Relu(x) }"
    )
    cut(model, tmp_path / "b", verify=False)
    session = load(tmp_path / "b")
    for text in (np.array(["a", "é"]), np.array(["a", "é"], dtype=object)):
        assert session({"s": text, "x": ramp(1, 4)})["t"].tolist() == ["a", "é"]


def test_the_tensors_at_the_borders_of_regions(two: Path) -> None:
    session = load(two)
    assert session.boundary_tensors == ("x", "a", "b", "y")
    found = session.tensors(GOOD)
    assert list(found) == ["x", "a", "b", "y"]
    positive = np.maximum(ramp(1, 4), 0)
    assert np.array_equal(found["a"], positive)
    np.testing.assert_allclose(found["b"], 1 / (1 + np.exp(-positive.astype(np.float64))), rtol=1e-6)
    assert np.array_equal(found["y"], session(GOOD)["y"])
    chosen = session.tensors(GOOD, ["j", "a", "i"])
    assert list(chosen) == ["j", "a", "i"]
    assert chosen["j"].tolist() == [[1, 2], [3, 4]]


def test_a_tensor_that_does_not_pass_is_said(tmp_path: Path) -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        features = Relu(x)
        inside = Sigmoid(features)
        y = Tanh(inside)
    }"""
    cut(parse(text), tmp_path / "b")
    session = load(tmp_path / "b")
    with pytest.raises(InputError) as caught:
        session.tensors({"x": ramp(1, 4)}, ["feature"])
    assert str(caught.value) == "no tensor 'feature' passes between stages (did you mean features?)"
    with pytest.raises(InputError, match="no tensor 'inside'"):
        session.tensors({"x": ramp(1, 4)}, ["inside"])


def test_inputs_that_are_not_contiguous_are_taken(two: Path) -> None:
    wide = np.arange(8, dtype=np.float32).reshape(1, 8)
    given = load(two)(GOOD | {"x": wide[:, ::2], "i": np.array([[1, 2], [3, 4]]).T})
    assert given["j"].tolist() == [[1, 3], [2, 4]]
    expected = 1 / (1 + np.exp(-np.array([[0.0, 2.0, 4.0, 6.0]])))
    np.testing.assert_allclose(given["y"], expected, rtol=1e-6)


def test_a_stored_output_can_be_written_to(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y, float[2] k) <float[2] k = {1, 2}> { y = Add(x, k) }"
    cut(parse(text), tmp_path / "b")
    session = load(tmp_path / "b")
    session({"x": np.zeros(2, np.float32)})["k"][:] = 9
    assert session({"x": np.zeros(2, np.float32)})["k"].tolist() == [1, 2]


@pytest.mark.parametrize("changed", ["targets", "regions"])
def test_a_bundle_whose_model_and_manifest_disagree_is_not_loaded(
    changed: str, two: Path, tmp_path: Path
) -> None:
    shutil.copytree(two, tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if changed == "targets":
        manifest["targets"] = ["dlb"]
    else:
        manifest["variants"][0]["regions"] = []
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError, match="the manifest and the model do not name the same regions"):
        load(tmp_path / "b")


@pytest.mark.parametrize(
    ("nodes", "late"),
    [
        ("a = Relu (x) y = Relu (a)", ""),
        ("y = Relu (a) a = Relu (x)", "a"),
        ("a = Add (a, x) y = Relu (a)", "a"),
    ],
)
def test_nodes_stand_after_those_whose_results_they_read(nodes: str, late: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ {nodes} }}'
    )
    if not late:
        check_model(model)
        return
    with pytest.raises(
        InputError, match=f"^not valid ONNX: .* be topologically sorted, however input '{late}'"
    ):
        check_model(model)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], ""),
        (["a product"], "(a product)"),
        (["a product", "one", "two"], "(a product and 2 more)"),
        (None, ""),
    ],
)
def test_other_products_than_where_a_bundle_was_made_are_warned_of(
    more: list[str] | None, said: str, two: Path, tmp_path: Path
) -> None:
    shutil.copytree(two, tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    document = json.loads(path.read_text())
    here = list(find_inexact_kernels())
    document["host"].update(inexact=None if more is None else sorted([*here, *more]), machine="a Cray")
    path.write_text(json.dumps(document))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path / "b", trust=True)
    assert len(caught) == bool(said)
    for each in caught:
        assert each.filename == __file__
        assert f"multiplies small integers otherwise {said} than" in str(each.message)
        assert f"was made (a Cray): `byoc verify {tmp_path / 'b'}` says" in str(each.message)


def test_a_sparse_constant_that_is_an_output_is_given_whole(tmp_path: Path) -> None:
    model = parse("g (float[4] x) => (float[4] y, float[4] w) { y = Relu(x) }", ir=10, opset=17)
    values, places = np.float32([3, 5]), np.array([1, 2])
    model.graph.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(
            onnx.numpy_helper.from_array(values, "w"), onnx.numpy_helper.from_array(places), [4]
        )
    )
    cut(model, tmp_path / "b", verify=False)
    found = load(tmp_path / "b")({"x": ramp(4)})
    assert found["w"].tolist() == [0, 3, 5, 0]
    np.testing.assert_array_equal(found["y"], np.maximum(ramp(4), 0))


def test_native_code_of_strangers_is_loaded_where_that_is_said_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Native(vendors.Tables):
        name = "native"
        native = True

    vendors.install(monkeypatch, native=Native)
    cut(parse(CHAIN), tmp_path / "b", codegen="native", verify=False)
    (tmp_path / "b" / "signature.json").unlink()
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")  # this process trusts what it wrote
    for options in ({}, {"trust": False}):
        with pytest.raises(
            InputError, match=r"region dla_0 is native code for codegen native, and not l"
        ):
            load(tmp_path / "b", isolate=False, **options)
    given = {"x": ramp(1, 4)}
    wanted = 1 / (1 + np.exp(-np.maximum(ramp(1, 4), 0)))
    np.testing.assert_allclose(
        load(tmp_path / "b", isolate=False, trust=True)(given)["y"], wanted, rtol=1e-6
    )
