"""All exported structures: small files, valid, numerically alive, and ready to be cut."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

import byoc
from byoc import zoo

KERNELS = {"Conv", "Gemm", "MatMul"}
STOCHASTIC = {"Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}


def test_the_file_is_small(trial: Any) -> None:
    assert trial.bytes < 300_000


def test_the_checker_accepts_it(trial: Any) -> None:
    onnx.checker.check_model(trial.model, full_check=True)
    assert trial.model.ir_version == 10
    assert [(opset.domain, opset.version) for opset in trial.model.opset_import] == [("", 17)]


def test_every_weight_has_its_values(trial: Any) -> None:
    assert not any(tensor.metadata_props for tensor in trial.model.graph.initializer)
    kernels = {node.input[1] for node in trial.model.graph.node if node.op_type in KERNELS}
    stored = [tensor for tensor in trial.model.graph.initializer if tensor.name in kernels]
    assert len(stored) > 20
    for tensor in stored:
        assert tensor.data_type == TensorProto.FLOAT
        assert onnx.numpy_helper.to_array(tensor).std() > 0, tensor.name


def test_every_node_has_a_name_of_its_own_and_none_is_random(trial: Any) -> None:
    names = [node.name for node in trial.model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert STOCHASTIC.isdisjoint(node.op_type for node in trial.model.graph.node)


def test_the_index_is_true_to_it(trial: Any) -> None:
    (entry,) = (entry for entry in zoo.list_entries() if entry.name == trial.name)
    assert entry.nodes == _count(trial.model.graph)
    shapes = {name: array.shape for name, array in zoo.sample_inputs(trial.name).items()}
    assert shapes == {value.name: _dims(value) for value in trial.model.graph.input}


def test_the_answer_is_finite_and_there_is_one(trial: Any) -> None:
    for outputs in trial.outputs:
        for name, values in outputs.items():
            assert values.size > 0, name  # a detector: at least one detection
            assert np.isfinite(values).all(), name
            assert abs(values).max() > 1e-3, name


def test_the_answer_depends_on_the_input(trial: Any) -> None:
    # Labels may agree, and two images may have different numbers of detections.
    names = [name for name, values in trial.outputs[0].items() if values.dtype == np.float32]
    for first, second in ([outputs[name] for outputs in trial.outputs] for name in names):
        assert first.shape != second.shape or abs(first - second).max() > 0.02 * first.std()


def test_it_can_be_partitioned(trial: Any) -> None:
    predicted = byoc.partition(trial.model, "dla").report.predicted
    assert 0 < predicted.bound <= predicted.seconds
    # min-cut chooses without regard to launches, and says so: in detectors they can tip the balance.
    assert predicted.seconds - predicted.launch <= predicted.host_only


def _count(graph: onnx.GraphProto) -> int:
    bodies = (a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return sum(node.op_type != "Constant" for node in graph.node) + sum(map(_count, bodies))


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
