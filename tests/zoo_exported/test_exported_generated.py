"""Transformers of any depth: valid, alive, and quick to make."""

import numpy as np
import onnx
import onnxruntime
import pytest

from byoc import zoo
from byoc.errors import InputError

ENTRIES = [entry for entry in zoo.list_entries() if entry.name.startswith("transformer_")]


@pytest.fixture(scope="module")
def small() -> onnx.ModelProto:
    return zoo.load("transformer_1k")


def test_the_small_one_is_valid_and_all_its_shapes_are_known(small: onnx.ModelProto) -> None:
    onnx.checker.check_model(small, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(small, strict_mode=True)
    shapes = [value.type.tensor_type.shape.dim for value in inferred.graph.value_info]
    assert len(shapes) == len(small.graph.node) - 1
    assert all(dim.dim_value > 0 for shape in shapes for dim in shape)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_it_has_the_nodes_that_its_name_says(entry: zoo.ZooEntry) -> None:
    model = zoo.load(entry.name)
    assert len(model.graph.node) == entry.nodes
    assert entry.nodes == pytest.approx(1000 * int(entry.name.split("_")[1][:-1]), rel=0.03)
    assert model.ByteSize() < 50_000_000


def test_the_signal_stays_in_range(small: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])
    samples = [zoo.sample_inputs("transformer_1k", seed) for seed in (3, 4)]
    assert [(x.shape, x.dtype) for x in samples[0].values()] == [((1, 16, 64), np.float32)]
    first, second = (session.run(None, sample)[0] for sample in samples)
    assert first.shape == (1, 16, 64)
    assert 0.5 < first.std() < 2
    assert abs(first - second).max() > 0.1


def test_neighbouring_layers_differ(small: onnx.ModelProto) -> None:
    stored = {tensor.name: tensor.raw_data for tensor in small.graph.initializer}
    assert len({stored[f"w{weights}.q.kernel"] for weights in range(4)}) == 4


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean transformer_10k"):
        zoo.load("transformer_10")
