"""Means and extremes over whole images as global pools: the same numbers, where a target takes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import original
from onnx import helper, numpy_helper

import byoc
from byoc.model import prepare_model
from byoc.passes import PooledMean

_AXES_ARE_INPUTS = 18  # ONNX opset from which a reduction reads its axes


def make(
    operator: str, rank: int, axes: Sequence[int] | None, opset: int, keepdims: int = 1
) -> onnx.ModelProto:
    """Return a model of one reduction, of floats."""
    shape = [2, 3, 4, 5, 6, 7][:rank]
    names: list[str] = ["x"]
    attributes: dict[str, Any] = {"keepdims": keepdims}
    stored = []
    since = 13 if operator == "ReduceSum" else _AXES_ARE_INPUTS
    if axes is not None and opset >= since:
        names.append("axes")
        stored.append(numpy_helper.from_array(np.array(axes), "axes"))
    elif axes is not None:
        attributes["axes"] = list(axes)
    node = helper.make_node(operator, names, ["y"], "r", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"])
@pytest.mark.parametrize(
    ("rank", "axes", "is_image"),
    [
        (3, [2], True),
        (4, [2, 3], True),
        (4, [3, 2], True),
        (4, [-1, -2], True),
        (5, [2, 3, 4], True),
        (5, [-3, 4, 3], True),
        (4, [2], False),
        (4, [1, 2], False),
        (4, [1, 2, 3], False),
        (4, [0, 2, 3], False),
        (4, None, False),
        (2, [1], False),
        (6, [2, 3, 4, 5], False),
    ],
)
def test_a_reduction_of_images_is_a_pool(
    rank: int, axes: Sequence[int] | None, is_image: bool, operator: str, opset: int
) -> None:
    model = make(operator, rank, axes, opset)
    made = PooledMean().run(model)

    pools = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}
    expected = pools.get(operator, operator) if is_image else operator
    assert [node.op_type for node in made.graph.node] == [expected]
    inputs = {"x": np.random.default_rng(0).standard_normal([2, 3, 4, 5, 6, 7][:rank], np.float32)}
    one, other = original(model, inputs)["y"], original(made, inputs)["y"]
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 18])
def test_what_drops_the_axes_or_computes_on_integers_stays(opset: int) -> None:
    dropped = make("ReduceMean", 4, [2, 3], opset, keepdims=0)
    assert PooledMean().run(dropped).graph.node[0].op_type == "ReduceMean"
    integers = make("ReduceMax", 4, [2, 3], opset)
    integers.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    integers.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert PooledMean().run(integers).graph.node[0].op_type == "ReduceMax"


def test_axes_that_are_not_known_stay() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[2, 3, 4, 5] x, int64[2] axes) => (float[a, b, c, d] y) { y = ReduceMean(x, axes) }""")
    index = prepare_model(model, "m").index
    assert [*PooledMean().find_candidates(index)] == []


BLOCK = """<ir_version: 8, opset_import: ["" : 18]>
g (float[batch, 8, 14, 14] x) => (float[batch, 8, 14, 14] y)
<int64[2] axes = {2, 3}, int64[1] one = {3}> {
    a = Relu(x)
    m = ReduceMean(a, axes)
    s = Sigmoid(m)
    b = Mul(a, s)
    r = ReduceMean(b, one)
    y = Add(b, r)
}"""


def test_a_target_takes_the_pool_where_it_refuses_the_mean(tmp_path: Any) -> None:
    model = onnx.parser.parse_model(BLOCK)
    result = byoc.partition(model, "dla", strategy="all-supported", output=tmp_path / "b")

    assert result.report.nodes.host == 0
    (effect,) = (each for each in result.plan.passes if each.name == "pooled-mean")
    assert effect is not None
    assert result.report.verification is not None
    for size in (1, 2):
        inputs = {"x": np.random.default_rng(size).standard_normal((size, 8, 14, 14), np.float32)}
        (expected,) = original(model, inputs).values()
        np.testing.assert_allclose(
            byoc.load(tmp_path / "b")(inputs)["y"], expected, rtol=1e-4, atol=1e-5
        )
    kept = byoc.partition(model, "dla", strategy="all-supported", no_passes=["pooled-mean"])
    assert "pooled-mean" not in {each.name for each in kept.plan.passes}
    taken = tmp_path / "npu.yaml"
    taken.write_text(
        "target: npu\ncost_model: dla\ncodegen: reference\ndtype: float32\nops: [{op: '*'}]\n"
    )
    found = byoc.partition(model, taken, strategy="all-supported", dims={"batch": 1})
    assert not found.plan.passes  # a target that takes the mean has it as it is
