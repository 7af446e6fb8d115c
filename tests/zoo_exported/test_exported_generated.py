"""Transformers of any depth: valid, alive, and quick to make."""

import numpy as np
import onnx
import onnxruntime
import pytest

import byoc
from byoc.errors import InputError
from byoc.zoo._catalog import GeneratedTransformers, make_transformer


def test_the_small_one_is_valid_and_all_its_shapes_are_known() -> None:
    model = GeneratedTransformers().load("transformer_1k")
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    shapes = [value.type.tensor_type.shape.dim for value in inferred.graph.value_info]
    assert len(shapes) == len(model.graph.node) - 1
    assert all(dim.dim_value > 0 for shape in shapes for dim in shape)


@pytest.mark.parametrize("entry", GeneratedTransformers().entries(), ids=lambda entry: entry.name)
def test_it_has_the_nodes_that_its_name_says(entry: byoc.zoo.ZooEntry) -> None:
    model = GeneratedTransformers().load(entry.name)
    assert len(model.graph.node) == entry.nodes
    assert entry.nodes == pytest.approx(1000 * int(entry.name.split("_")[1][:-1]), rel=0.03)
    assert model.ByteSize() < 50_000_000


@pytest.mark.parametrize(("layers", "hidden"), [(1, 16), (5, 64), (30, 32)])
def test_the_signal_stays_in_range(layers: int, hidden: int) -> None:
    model = make_transformer(layers, hidden)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == 33 * layers + 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).standard_normal((2, 1, 16, hidden), np.float32)
    first, second = (session.run(None, {"x": image})[0] for image in images)
    assert first.shape == (1, 16, hidden)
    assert 0.5 < first.std() < 2
    assert abs(first - second).max() > 0.1


def test_neighbouring_layers_differ() -> None:
    stored = {tensor.name: tensor.raw_data for tensor in make_transformer(8).graph.initializer}
    assert len({stored[f"w{weights}.q.kernel"] for weights in range(4)}) == 4


def test_samples_suit_the_model() -> None:
    ((name, array),) = GeneratedTransformers().sample_inputs("transformer_1k", 3).items()
    assert (name, array.shape, array.dtype) == ("x", (1, 16, 64), np.float32)
    assert not np.array_equal(array, GeneratedTransformers().sample_inputs("transformer_1k", 4)["x"])


def test_it_can_be_partitioned() -> None:
    planned = byoc.partition(make_transformer(4), "dla")
    assert planned.report.predicted.seconds > 0


@pytest.mark.parametrize(("layers", "hidden"), [(0, 64), (1, 24), (1, 0)])
def test_what_cannot_be_made_is_refused(layers: int, hidden: int) -> None:
    with pytest.raises(InputError, match=f"no transformer has {layers} layers, {hidden} wide"):
        make_transformer(layers, hidden)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean transformer_10k"):
        GeneratedTransformers().load("transformer_10")
