"""Turning a light structure into a model, on a small one that has every oddity."""

import onnx
import pytest
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.zoo._classic_models import make_runnable

LIGHT = """
<ir_version: 3, opset_import: ["" : 9]>
tiny (float[10,3,4,4] image, float[1] queue, int64[4] w__SHAPE, int64[4] v__SHAPE, float[2] b,
      float[10] k, int64[2] flat, int64[2] square) => (float[10,10] y)
<int64[4] w__SHAPE = {2, 3, 3, 3}, int64[4] v__SHAPE = {1, 1, 10, 8}, float[2] b = {7.0, 7.0},
 float[10] k = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
 int64[2] flat = {10, 8}, int64[2] square = {10, 8}, float[1] queue = {0.0}>
{
    w = ConstantOfShape<value = float[1] {0.02}>(w__SHAPE)
    v = ConstantOfShape<value = float[1] {0.02}>(v__SHAPE)
    [y] c = Conv<kernel_shape = [3, 3]>(image, w, b)
    r = Relu(c)
    f = Reshape(r, flat)
    m = Reshape(v, square)
    y = Gemm<transB = 1>(f, m, k)
}
"""


@pytest.fixture
def light() -> onnx.ModelProto:
    return onnx.parser.parse_model(LIGHT)


def test_the_model_is_valid_and_has_a_batch_of_1(light: onnx.ModelProto) -> None:
    model = make_runnable(light, "tiny")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == [
        "Conv",
        "Relu",
        "Reshape",
        "Reshape",
        "Gemm",
    ]
    assert _dims(model.graph.input[0]) == [1, 3, 4, 4]
    assert _dims(model.graph.output[0]) == [1, 10]


def test_only_the_signal_is_reshaped_to_a_batch_of_1(light: onnx.ModelProto) -> None:
    stored = {t.name: numpy_helper.to_array(t) for t in make_runnable(light, "tiny").graph.initializer}
    assert stored["flat"].tolist() == [1, 8]
    assert stored["square"].tolist() == [10, 8]


def test_dead_inputs_and_initializers_as_inputs_go(light: onnx.ModelProto) -> None:
    graph = make_runnable(light, "tiny").graph
    assert [value.name for value in graph.input] == ["image"]
    assert {t.name for t in graph.initializer} == {"w", "v", "b", "k", "flat", "square"}


def test_stored_floats_get_new_values_too(light: onnx.ModelProto) -> None:
    stored = {t.name: numpy_helper.to_array(t) for t in make_runnable(light, "tiny").graph.initializer}
    assert abs(stored["b"]).max() <= 0.1


def test_a_nameless_node_takes_its_first_output_unless_taken(light: onnx.ModelProto) -> None:
    names = [node.name for node in make_runnable(light, "tiny").graph.node]
    assert names == ["y", "r", "f", "m", "y_"]


def test_the_structure_handed_in_is_not_changed(light: onnx.ModelProto) -> None:
    before = light.SerializeToString(deterministic=True)
    make_runnable(light, "tiny")
    assert light.SerializeToString(deterministic=True) == before


def test_the_numbers_depend_on_the_name_and_not_on_the_order(light: onnx.ModelProto) -> None:
    other_order = onnx.ModelProto()
    other_order.CopyFrom(light)
    other_order.graph.node[0].CopyFrom(light.graph.node[1])
    other_order.graph.node[1].CopyFrom(light.graph.node[0])
    assert _weights(make_runnable(other_order, "tiny")) == _weights(make_runnable(light, "tiny"))
    assert _weights(make_runnable(light, "other")) != _weights(make_runnable(light, "tiny"))


def test_two_open_inputs_are_refused(light: onnx.ModelProto) -> None:
    light.graph.initializer.remove(next(t for t in light.graph.initializer if t.name == "b"))
    with pytest.raises(InputError, match="zoo:tiny: has 2 inputs without a value"):
        make_runnable(light, "tiny")


def _weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in model.graph.initializer}


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
