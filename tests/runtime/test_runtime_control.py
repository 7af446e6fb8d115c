"""Parts of programs in numbers: If, Loop and Scan with functions as bodies, held tensors, calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import cut, ramp
from helpers.support import parse
from onnx import NodeProto, helper

import byoc
from byoc.errors import InputError
from byoc.model import GraphIndex, TensorType, get_stated_types
from byoc.runtime import Session, Stage
from byoc.runtime import _stateful_session as stateful
from byoc.runtime._loading import _check_calls
from byoc.runtime._program_builder import ControlBody, control_runner
from byoc.runtime._state_binding import find_inner_types, hold_tensors

FLOAT = TensorType("float32", (2,))


FLAG = TensorType("bool", ())


def body(
    inputs: Sequence[str], types: Sequence[TensorType | None], run: Callable[..., list[Any]]
) -> ControlBody:
    """Return a body whose function gets the values of its inputs, then all that are in scope."""

    def call(values: Mapping[str, Any]) -> list[Any]:
        return run(*(values[name] for name in inputs), values)

    return ControlBody(inputs, types, call)


def run(node: NodeProto, bodies: Mapping[str, ControlBody], **values: Any) -> dict[str, Any]:
    found = control_runner(node, bodies)({name: np.asarray(value) for name, value in values.items()})
    return {name: np.asarray(value).tolist() for name, value in found.items()}


@pytest.mark.parametrize(("condition", "expected"), [(True, [1.0]), ([False], [2.0])])
def test_an_if_runs_the_branch_of_its_condition(condition: object, expected: list[float]) -> None:
    node = helper.make_node("If", ["c"], ["y"])
    bodies = {
        "then_branch": body([], [FLOAT], lambda values: [values["x"]]),
        "else_branch": body([], [FLOAT], lambda values: [values["x"] + 1]),
    }
    assert run(node, bodies, c=condition, x=[1.0]) == {"y": expected}


def add_trip(trip: Any, condition: Any, state: Any, values: Mapping[str, Any]) -> list[Any]:
    """A body that stops after the value `last`, and scans the state before and the trip after it."""
    more = state + values["step"]
    return [np.array(bool((more < values["last"]).all())), more, state, trip * 10]


LOOP_TYPES = [FLAG, TensorType("int64", ()), TensorType("int64", ()), TensorType("int64", ())]


@pytest.mark.parametrize(
    ("inputs", "given", "expected"),
    [
        (["m", "c", "s"], {"m": 3, "c": True}, {"t": 7, "before": [1, 3, 5], "trips": [0, 10, 20]}),
        (["m", "", "s"], {"m": 2}, {"t": 5, "before": [1, 3], "trips": [0, 10]}),
        (["", "c", "s"], {"c": [True]}, {"t": 9, "before": [1, 3, 5, 7], "trips": [0, 10, 20, 30]}),
        (["m", "c", "s"], {"m": 3, "c": False}, {"t": 1, "before": [], "trips": []}),
        (["m", "c", "s"], {"m": [0], "c": True}, {"t": 1, "before": [], "trips": []}),
        (["m", "c", "s"], {"m": -1, "c": True}, {"t": 1, "before": [], "trips": []}),
    ],
)
def test_a_loop_ends_by_count_or_condition(
    inputs: list[str], given: dict[str, object], expected: dict[str, object]
) -> None:
    node = helper.make_node("Loop", inputs, ["t", "before", "trips"])
    bodies = {"body": body(["i", "c_in", "state"], LOOP_TYPES, add_trip)}
    assert run(node, bodies, **given, s=1, step=2, last=9) == expected


def test_a_loop_of_a_count_alone_carries_nothing() -> None:
    node = helper.make_node("Loop", ["m"], ["squares"])
    bodies = {"body": body(["i", "c"], [FLAG, LOOP_TYPES[1]], lambda i, c, values: [c, i * i])}
    assert run(node, bodies, m=4) == {"squares": [0, 1, 4, 9]}


def test_a_loop_carries_several_values_and_leaves_out_outputs_without_a_name() -> None:
    def swap(trip: Any, condition: Any, one: Any, other: Any, values: Any) -> list[Any]:
        return [np.array(True), other, one + trip, one, other]

    node = helper.make_node("Loop", ["m", "", "a", "b"], ["x", "", "ones", "others"])
    bodies = {"body": body(["i", "c", "p", "q"], [FLAG] + [LOOP_TYPES[1]] * 4, swap)}
    assert run(node, bodies, m=3, a=1, b=5) == {"x": 6, "ones": [1, 5, 1], "others": [5, 1, 6]}


def add_rows(state: Any, one: Any, other: Any, values: Mapping[str, Any]) -> list[Any]:
    return [state + one.sum() + values["bias"], one * 10, other + state]


SCAN_TYPES = [TensorType("float32", ()), TensorType("float32", ("n",)), TensorType("float32", (2,))]


ONE = [[1, 2, 3], [4, 5, 6]]  # scanned along its columns


OTHER = [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"scan_input_axes": [1, 0]},
            {"t": 21, "tens": [[10, 40], [20, 50], [30, 60]], "sums": [[1, 1], [7, 7], [15, 15]]},
        ),
        (
            {"scan_input_axes": [1, 0], "scan_input_directions": [1, 0]},
            {"t": 21, "tens": [[30, 60], [20, 50], [10, 40]], "sums": [[1, 1], [11, 11], [19, 19]]},
        ),
        (
            {"scan_input_axes": [1, 0], "scan_output_directions": [1, 0]},
            {"t": 21, "tens": [[30, 60], [20, 50], [10, 40]], "sums": [[1, 1], [7, 7], [15, 15]]},
        ),
        (
            {"scan_input_axes": [1, 0], "scan_output_axes": [1, 0]},
            {"t": 21, "tens": [[10, 20, 30], [40, 50, 60]], "sums": [[1, 1], [7, 7], [15, 15]]},
        ),
    ],
)
def test_a_scan_goes_along_axes_in_directions(
    attributes: dict[str, list[int]], expected: dict[str, object]
) -> None:
    node = helper.make_node(
        "Scan", ["s", "one", "other"], ["t", "tens", "sums"], num_scan_inputs=2, **attributes
    )
    bodies = {"body": body(["p", "q", "r"], SCAN_TYPES, add_rows)}
    assert run(node, bodies, s=0, one=ONE, other=OTHER, bias=0) == expected


def test_a_scan_goes_along_first_axes_and_captures_values() -> None:
    node = helper.make_node("Scan", ["one"], ["tens"], num_scan_inputs=1)
    bodies = {"body": body(["q"], [FLOAT], lambda row, values: [row * 10 + values["bias"]])}
    assert run(node, bodies, one=OTHER, bias=1) == {"tens": [[11, 11], [21, 21], [31, 31]]}


def test_what_is_scanned_must_be_of_one_length() -> None:
    node = helper.make_node("Scan", ["s", "one", "other"], ["t", "tens", "sums"], num_scan_inputs=2)
    bodies = {"body": body(["p", "q", "r"], SCAN_TYPES, add_rows)}
    with pytest.raises(InputError) as caught:
        run(node, bodies, s=0, one=ONE, other=OTHER, bias=0)
    assert str(caught.value) == "what is scanned differs in length: 2, 3"


def test_a_body_that_never_ran_gives_empty_arrays_of_its_types() -> None:
    node = helper.make_node(
        "Scan",
        ["s", "one", "other"],
        ["t", "tens", "sums"],
        num_scan_inputs=2,
        scan_output_axes=[1, 0],
    )
    bodies = {"body": body(["p", "q", "r"], SCAN_TYPES, add_rows)}
    values = {"s": np.float32(4), "one": np.empty((0, 2)), "other": np.empty((0, 2))}
    found = control_runner(node, bodies)(values)
    assert found["t"] == 4
    assert (found["tens"].shape, found["sums"].shape) == ((0, 0), (0, 2))
    assert {found[name].dtype for name in ("tens", "sums")} == {np.dtype(np.float32)}


@pytest.mark.parametrize("kind", [None, TensorType("float32", None)])
def test_a_body_that_never_ran_must_have_a_type_and_rank(kind: TensorType | None) -> None:
    node = helper.make_node("Loop", ["m"], ["y"])
    bodies = {"body": body(["i", "c"], [FLAG, kind], lambda i, c, values: [c, i])}
    with pytest.raises(InputError) as caught:
        run(node, bodies, m=0)
    assert str(caught.value) == "a body that never ran has an output of unknown type or rank"


def test_an_empty_array_is_stacked_along_a_last_axis() -> None:
    node = helper.make_node("Scan", ["one"], ["tens"], num_scan_inputs=1, scan_output_axes=[-1])
    bodies = {"body": body(["q"], [FLOAT], lambda row, values: [row])}
    found = control_runner(node, bodies)({"one": np.empty((0, 2), np.float32)})
    assert found["tens"].shape == (2, 0)


LOOP = (["i", "c", "state"], LOOP_TYPES, add_trip)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "said"),
    [
        ("Loop", ["m", "c"], ["t"], {}, "body has 3 inputs and 4 outputs, not 2 and 2"),
        ("Loop", ["m", "c", "s"], [*"abcd"], {}, "body has 3 inputs and 4 outputs, not 3 and 5"),
        ("If", ["c"], ["t"], {}, "body has 3 inputs and 4 outputs, not 0 and 1"),
        ("Scan", ["s"], ["t"], {"num_scan_inputs": 1}, "body has 3 inputs and 4 outputs, not 1 and 1"),
        ("Scan", [*"ab", ""], [*"wxyz"], {"num_scan_inputs": 1}, "lacks an input"),
        ("Scan", [*"abc"], [*"wxyz"], {"num_scan_inputs": 2**40}, "is 1099511627776, of 3 inputs"),
        ("Scan", [*"abc"], [*"wxyz"], {}, "num_scan_inputs is 0, of 3 inputs"),
        ("Scan", [*"abc"], ["t"], {"num_scan_inputs": 1}, "num_scan_inputs is 1, of 3 inputs"),
        (
            "Scan",
            [*"abc"],
            [*"wxyz"],
            {"num_scan_inputs": 3, "scan_input_axes": [0]},
            "scan_input_axes has other than 3 elements",
        ),
        (
            "Scan",
            [*"abc"],
            [*"wxyz"],
            {"num_scan_inputs": 3, "scan_output_directions": [0] * 3},
            "scan_output_directions has other than 4 elements",
        ),
    ],
)
def test_a_node_that_does_not_fit_its_body_is_refused(
    op: str, inputs: list[str], outputs: list[str], attributes: dict[str, Any], said: str
) -> None:
    node = helper.make_node(op, inputs, outputs, "odd", **attributes)
    with pytest.raises(InputError) as caught:
        control_runner(node, {"body": body(*LOOP)})
    assert str(caught.value).startswith(f"{op} 'odd'")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"m": [1, 2], "c": True}, "'m' is int64 of 2 elements, not one bool or integer"),
        ({"m": 0.5, "c": True}, "'m' is float64 of 1 elements, not one bool or integer"),
        ({"m": 1, "c": []}, "'c' is float64 of 0 elements, not one bool or integer"),
    ],
)
def test_a_count_or_condition_that_is_none_is_refused(given: dict[str, Any], said: str) -> None:
    node = helper.make_node("Loop", ["m", "c", "s"], ["t", "before", "trips"])
    with pytest.raises(InputError) as caught:
        run(node, {"body": body(*LOOP)}, **given, s=1, step=2, last=9)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("attributes", "shape", "said"),
    [
        ({"scan_input_axes": [2]}, (2, 2), "'one' has 2 dimensions, none of them 2"),
        ({"scan_output_axes": [2]}, (2, 2), "what is stacked has 2 dimensions, none of them 2"),
        ({"scan_output_axes": [-3]}, (0, 2), "what is stacked has 2 dimensions, none of them -3"),
        ({}, (), "'one' has 0 dimensions, none of them 0"),
    ],
)
def test_an_axis_that_is_not_there_is_refused(
    attributes: dict[str, Any], shape: tuple[int, ...], said: str
) -> None:
    node = helper.make_node("Scan", ["one"], ["tens"], num_scan_inputs=1, **attributes)
    bodies = {"body": body(["q"], [FLOAT], lambda row, values: [row])}
    with pytest.raises(InputError) as caught:
        run(node, bodies, one=np.zeros(shape, np.float32))
    assert str(caught.value) == said


def test_trips_of_several_shapes_are_refused() -> None:
    node = helper.make_node("Loop", ["m"], ["y"])
    bodies = {"body": body(["i", "c"], [FLAG, FLOAT], lambda i, c, values: [c, np.zeros(int(i))])}
    with pytest.raises(InputError) as caught:
        run(node, bodies, m=2)
    assert str(caught.value) == "an output of a body has the shapes (0,) and (1,) in two trips"


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


CALLS = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    a = Relu (x)
    b = dla_0 (a, w)
    y = dla_1 (b, a)
}"""


def _bundle(*targets: str) -> Any:
    manifest = SimpleNamespace(targets=dict.fromkeys(targets), model="model.onnx")
    return SimpleNamespace(display_path="b", manifest=manifest)


def _regions(**sizes: tuple[int, int]) -> dict[str, Stage]:
    """Return stages of so many inputs and outputs, by name."""
    return {
        name: Stage(name, ("i",) * inputs, dict, {f"o{i}": onnx.TypeProto() for i in range(outputs)})
        for name, (inputs, outputs) in sizes.items()
    }


def _called(text: str, domain: str) -> list[GraphIndex]:
    model = parse(text)
    for node in model.graph.node:
        node.domain = domain if node.op_type.startswith("dla_") else node.domain
    return list(GraphIndex(model, get_stated_types(model)).walk())


@pytest.mark.parametrize(
    ("domain", "regions", "sentence"),
    [
        ("byoc.dla", _regions(dla_0=(1, 1), dla_1=(2, 1)), ""),
        ("byoc.dla", _regions(dla_0=(1, 1)), "the manifest and the model do not name the same"),
        (
            "byoc.dla",
            _regions(dla_0=(1, 1), dla_1=(2, 1), dla_2=(1, 1)),
            "the manifest and the model do not name the same regions",
        ),
        (
            "byoc.npu",
            _regions(dla_0=(1, 1), dla_1=(2, 1)),
            "the manifest and the model do not name the same regions",
        ),
        (
            "byoc.dla",
            _regions(dla_0=(2, 1), dla_1=(2, 1)),
            "region dla_0 and the model do not have the same inputs",
        ),
        (
            "byoc.dla",
            _regions(dla_0=(1, 1), dla_1=(2, 2)),
            "region dla_1 and the model do not have the same inputs",
        ),
    ],
)
def test_model_and_manifest_agree_on_regions(
    domain: str, regions: dict[str, Stage], sentence: str
) -> None:
    graphs = _called(CALLS, domain)
    if not sentence:
        _check_calls(_bundle("dla", "cpu"), graphs, regions)
        return
    with pytest.raises(InputError, match=f"^b: {sentence}"):
        _check_calls(_bundle("dla", "cpu"), graphs, regions)


def test_a_stage_that_makes_a_state_anew_has_no_maximal_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the executor of a region has no `bind`, which shows when the state is bound."""
    cut("zoo:decoder_int4", tmp_path / "b", verify=False)
    loaded = byoc.load(tmp_path / "b")
    bind = stateful.bind_state
    monkeypatch.setattr(stateful, "bind_state", lambda *a: replace(bind(*a), buffers={}))
    given = {"input_ids": np.array([[3]]), "attention_mask": np.ones((1, 1), np.int64)}
    with pytest.raises(InputError, match=r"^input 'past\S+' cannot have a maximal length: .* in place$"):
        byoc.open_stateful(loaded, max_length=6)(given)
    grown = byoc.open_stateful(loaded)
    assert grown(given)["logits"].shape[:2] == (1, 1)
    assert grown.in_place == frozenset()
