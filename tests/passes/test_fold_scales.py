"""Constant operands behind a linear operator go into its weights; results stay what they were."""

import numpy as np
import onnx
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import FoldScales, clean_model

LINEAR = {
    "Conv": ([4, 3, 2, 2], {}, (1, 3, 5, 5), (4, 1, 1)),
    "ConvTranspose": ([4, 2, 2, 2], {"group": 2}, (1, 4, 3, 3), (1, 4, 1, 1)),
    "Gemm": ([3, 4], {"beta": 0.5, "alpha": 2.0}, (2, 3), (4,)),
}


def make_model(
    linear: str, op: str, constant: NDArray[np.float32], *, first: bool, bias: bool
) -> onnx.ModelProto:
    """Return a linear operator with another one behind it that computes with a constant."""
    shape, attributes, given, _ = LINEAR[linear]
    generator = np.random.default_rng(1)
    stored = {"w": generator.standard_normal(shape).astype(np.float32), "k": constant}
    if bias:
        stored["b"] = generator.standard_normal(4).astype(np.float32)
    nodes = [
        helper.make_node(linear, ["x", "w", *(["b"] if bias else [])], ["c"], "linear", **attributes),
        helper.make_node(op, ["k", "c"] if first else ["c", "k"], ["y"], "affine"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, given)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(proto: onnx.ModelProto) -> NDArray[np.float32]:
    given = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(2).standard_normal(given).astype(np.float32)
    with without_optimizations():
        return np.asarray(run_session(open_session(proto), {"x": x})["y"])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(LINEAR)),
    st.sampled_from(["Mul", "Add", "Sub", "Div"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_results_stay(linear: str, op: str, first: bool, bias: bool, one: bool) -> None:
    shape = () if one else LINEAR[linear][3]
    constant = np.random.default_rng(3).uniform(0.5, 2.0, shape).astype(np.float32)
    model = make_model(linear, op, constant, first=first, bias=bias)
    folded = clean_model(prepare_model(model, "m"), (FoldScales(),)).model.proto
    kept = op == "Div" and first
    assert [node.op_type for node in folded.graph.node] == [linear, *(["Div"] if kept else [])]
    np.testing.assert_allclose(run(folded), run(model), rtol=1e-4, atol=1e-5)


def test_a_view_of_a_stored_vector_is_folded() -> None:
    """So Paddle writes the bias of a convolution."""
    vector = np.arange(4, dtype=np.float32)
    model = make_model("Conv", "Add", vector, first=False, bias=False)
    shape = numpy_helper.from_array(np.array([1, -1, 1, 1]), "shape")
    model.graph.initializer.append(shape)
    view = helper.make_node("Reshape", ["k", "shape"], ["r"], "view")
    model.graph.node.insert(0, view)
    model.graph.node[2].input[1] = "r"
    folded = clean_model(prepare_model(model, "m"), (FoldScales(),)).model.proto
    assert [node.op_type for node in folded.graph.node] == ["Conv"]
    np.testing.assert_allclose(run(folded), run(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (1, 4, 5, 1), (1, 1, 1, 1, 1)])
def test_what_is_not_for_channels_stays(shape: tuple[int, ...]) -> None:
    given = LINEAR["Conv"][2]
    constant = np.ones(shape, np.float32)
    model = make_model(
        "Conv", "Add", constant[..., :4] if shape[-1] == 5 else constant, first=False, bias=True
    )
    assert given == (1, 3, 5, 5)
    prepared = prepare_model(model, "m")
    assert clean_model(prepared, (FoldScales(),)).model is prepared


def test_what_others_read_stays() -> None:
    model = make_model("Conv", "Mul", np.full((), 2, np.float32), first=False, bias=True)
    model.graph.output.append(helper.make_tensor_value_info("c", 1, None))
    prepared = prepare_model(model, "m")
    assert clean_model(prepared, (FoldScales(),)).model is prepared


FORWARD = {
    "Conv": ([6, 2, 2, 2], {"group": 2}),
    "ConvTranspose": ([4, 2, 2, 2], {"group": 2}),
    "Gemm": ([5, 4], {"transB": 1, "beta": 0.5, "alpha": 2.0}),
}


def make_activation_model(
    linear: str, steps: list[tuple[str, NDArray[np.float32], bool]], *, bias: bool, **attributes: object
) -> onnx.ModelProto:
    """Return a HardSwish, operators that compute with constants, and two linear ones that read them."""
    shape, more = FORWARD[linear]
    generator = np.random.default_rng(1)
    outputs = {"Conv": 6, "ConvTranspose": 4, "Gemm": 5}[linear]
    stored = {f"w{i}": generator.standard_normal(shape).astype(np.float32) for i in (0, 1)}
    if bias:
        stored["b"] = generator.standard_normal(outputs).astype(np.float32)
    nodes = [helper.make_node("HardSwish", ["x"], ["t0"], "activation")]
    for number, (op, constant, first) in enumerate(steps):
        stored[f"k{number}"] = constant
        read = [f"t{number}", f"k{number}"]
        nodes.append(helper.make_node(op, read[::-1] if first else read, [f"t{number + 1}"]))
    for i in (0, 1):
        read = [f"t{len(steps)}", f"w{i}", *(["b"] if bias else [])]
        nodes.append(helper.make_node(linear, read, [f"y{i}"], f"linear{i}", **more, **attributes))
    given = (2, 4) if linear == "Gemm" else (1, 4, 4, 4)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, given)],
        [helper.make_tensor_value_info(f"y{i}", 1, None) for i in (0, 1)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fold_all(proto: onnx.ModelProto, *, through_sums: bool = True) -> onnx.ModelProto:
    """Return a model in which everything is folded that can be, and check that it computes the same."""
    model = before = prepare_model(proto, "m")
    while True:
        before, model = model, clean_model(model, (FoldScales(through_sums),)).model
        if model is before:
            break
    given = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    x = 3 * np.random.default_rng(2).standard_normal(given).astype(np.float32)
    with without_optimizations():
        made, wanted = (run_session(open_session(each), {"x": x}) for each in (model.proto, proto))
    for name, value in wanted.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-4)
    return model.proto


def count_operators(proto: onnx.ModelProto) -> dict[str, int]:
    operators = [node.op_type for node in proto.graph.node]
    return {op: operators.count(op) for op in ("Add", "Sub", "Mul", "Div") if op in operators}


_STEP = st.tuples(
    st.sampled_from(["Mul", "Add", "Sub", "Div"]), st.booleans(), st.booleans(), st.integers(1, 99)
)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(sorted(FORWARD)), st.lists(_STEP, max_size=3), st.booleans(), st.booleans())
def test_what_linear_operators_read_goes_into_them(
    linear: str, steps: list[tuple[str, bool, bool, int]], bias: bool, padded: bool
) -> None:
    channels = (4,) if linear == "Gemm" else (4, 1, 1)
    made = []
    for op, one, first, seed in steps:
        value = np.random.default_rng(seed).uniform(0.5, 2.0, () if one else channels)
        made.append((op, value.astype(np.float32), first and op != "Div"))
    pads = {"pads": [1, 0, 1, 0]} if padded and linear != "Gemm" else {}
    folded = fold_all(make_activation_model(linear, made, bias=bias, **pads))
    sums = [op for op, _, _ in made if op in ("Add", "Sub")]
    stays = linear == "ConvTranspose" or pads
    assert sum(count_operators(folded).values()) <= (len(sums) if stays else 0)


def test_a_factor_passes_a_sum_before_a_padded_convolution() -> None:
    steps = [("Mul", np.float32([0.5]), True), ("Add", np.float32([2.0]), False)]
    folded = fold_all(make_activation_model("Conv", steps, bias=True, pads=[1, 1, 1, 1]))
    assert count_operators(folded) == {"Add": 1}
    constant = next(each for each in folded.graph.initializer if each.name.startswith("k1"))
    np.testing.assert_array_equal(numpy_helper.to_array(constant), np.float32([4.0]))
    assert "t2" not in {name for node in folded.graph.node for name in node.output}


def test_tensors_keep_their_values_unless_told() -> None:
    steps = [("Mul", np.float32([0.5]), True), ("Add", np.float32([2.0]), False)]
    model = make_activation_model("Conv", steps, bias=True, pads=[1, 1, 1, 1])
    assert count_operators(fold_all(model, through_sums=False)) == {"Mul": 1, "Add": 1}


@pytest.mark.parametrize("factor", [0.0, 1e-39])
def test_a_summand_that_would_be_infinite_stays(factor: float) -> None:
    steps = [("Mul", np.float32([factor]), True), ("Add", np.float32([2.0]), False)]
    folded = fold_all(make_activation_model("Conv", steps, bias=True, pads=[1, 1, 1, 1]))
    assert count_operators(folded) == {"Mul": 1, "Add": 1}


def test_what_something_else_reads_as_well_stays() -> None:
    model = make_activation_model("Conv", [("Mul", np.float32([2.0]), False)], bias=False)
    model.graph.output.append(helper.make_tensor_value_info("t1", 1, None))
    assert count_operators(fold_all(model)) == {"Mul": 1}


def test_a_sum_with_more_axes_than_the_factor_stays() -> None:
    """There the channels of the factor are columns of the sum."""
    stored = {"s": np.arange(1, 5), "b": np.ones((1, 4, 1, 1)), "w": np.arange(8).reshape(2, 4, 1, 1)}
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, (4, 4))],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert count_operators(fold_all(model)) == {"Mul": 1, "Add": 1}


def test_a_constant_that_would_get_as_large_as_an_image_stays() -> None:
    steps = [
        ("Mul", np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1), False),
        ("Add", np.ones((1, 1, 4, 4), np.float32), False),
    ]
    folded = fold_all(make_activation_model("Conv", steps, bias=False))
    assert count_operators(folded) == {"Mul": 1, "Add": 1}


@pytest.mark.parametrize(("factor", "stays"), [(2e-5, True), (0.5, False)])
def test_weights_of_float16_that_would_lose_digits_stay(factor: float, stays: bool) -> None:
    stored = {"w": np.full((2, 3, 1, 1), 0.05), "k": np.array(factor)}
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["m"]),
        helper.make_node("Conv", ["m", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 10, (1, 3, 5, 5))],
        [helper.make_tensor_value_info("y", 10, None)],
        [numpy_helper.from_array(value.astype(np.float16), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folded = clean_model(prepare_model(model, "m"), (FoldScales(),)).model.proto
    assert [node.op_type for node in folded.graph.node] == [*(["Mul"] if stays else []), "Conv"]
