"""Constant operands behind a linear operator go into its weights; results stay what they were."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from support import examples

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
