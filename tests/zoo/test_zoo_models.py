"""All nine models: valid, of the original's structure, and numerically alive."""

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from byoc import zoo


def test_the_checker_accepts_it(trial: Any) -> None:
    onnx.checker.check_model(trial.model, full_check=True)
    assert 8 <= trial.model.ir_version <= 10


def test_the_structure_is_the_original(trial: Any) -> None:
    original = zoo.load_structure(trial.name)
    kept = [node for node in original.graph.node if node.op_type != "ConstantOfShape"]
    assert [_anonymous(node) for node in trial.model.graph.node] == [_anonymous(n) for n in kept]
    assert list(trial.model.opset_import) == list(original.opset_import)
    assert [o.name for o in trial.model.graph.output] == [o.name for o in original.graph.output]


def test_every_node_has_a_name_of_its_own(trial: Any) -> None:
    names = [node.name for node in trial.model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_the_image_is_the_only_input(trial: Any) -> None:
    (image,) = trial.model.graph.input
    assert image.name in {value.name for value in zoo.load_structure(trial.name).graph.input}
    assert image.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert _dims(image) == [1, 3, 224, 224]


def test_every_initializer_is_used(trial: Any) -> None:
    used = {name for node in trial.model.graph.node for name in node.input}
    assert {tensor.name for tensor in trial.model.graph.initializer} <= used


def test_the_batch_is_1_everywhere(trial: Any) -> None:
    weightless = onnx.ModelProto()
    weightless.CopyFrom(trial.model)
    for tensor in weightless.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            weightless.graph.input.add(name=tensor.name, type=_float_type(tensor.dims))
    integers = [t for t in weightless.graph.initializer if t.data_type == onnx.TensorProto.INT64]
    del weightless.graph.initializer[:]
    weightless.graph.initializer.extend(integers)
    inferred = onnx.shape_inference.infer_shapes(weightless, strict_mode=True, data_prop=True)
    shapes = {value.name: _dims(value) for value in inferred.graph.value_info}
    shapes |= {value.name: _dims(value) for value in trial.model.graph.output}
    signal = {trial.model.graph.input[0].name}
    for node in trial.model.graph.node:
        if not signal.isdisjoint(node.input):
            signal.update(node.output)
            assert shapes[node.output[0]][0] == 1, node.name


def test_no_weight_is_constant(trial: Any) -> None:
    for tensor in trial.model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            assert values.dtype == np.float32
            assert values.std() > 0, tensor.name


def test_the_signal_stays_in_range(trial: Any) -> None:
    assert trial.finite
    assert {name: value for name, value in trial.deviations.items() if not 1e-4 < value < 1e4} == {}


def test_the_answer_is_neither_certain_nor_even(trial: Any) -> None:
    for probabilities in trial.probabilities:
        assert probabilities.shape == (1000,)
        assert abs(probabilities.sum() - 1) < 1e-4
        assert 0.002 < probabilities.max() < 0.5


def test_the_answer_depends_on_the_image(trial: Any) -> None:
    first, second = trial.probabilities
    assert abs(first - second).max() > 0.05 * first.max()


def _anonymous(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("name")
    return copy


def _float_type(dims: Any) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, list(dims))


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
