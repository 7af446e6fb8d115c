"""The partitioned model: made when it is asked for, and always of the model that was planned."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import byoc
from byoc.quantization import Precision


def make_model() -> onnx.ModelProto:
    """Return a Gemm with a weight of 4.2 MB and one of 4 kB."""
    large = np.arange(1025 * 1024, dtype=np.float32).reshape(1025, 1024) % 1000
    stored = [numpy_helper.from_array(large, "large"), numpy_helper.from_array(large[0], "small")]
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "large", "small"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1025])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1024])],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def to_bytes(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


@pytest.mark.parametrize(("rules", "quantize"), [("dla", None), ("openvino-cpu", "float16")])
def test_weights_of_a_file_and_of_a_protobuf_are_the_same(
    tmp_path: Path, rules: str, quantize: str | None
) -> None:
    given = make_model()
    onnx.save(given, tmp_path / "g.onnx")
    asked = {"rules": rules, "strategy": "all-supported", "precision": Precision(quantize=quantize)}
    read = byoc.partition(tmp_path / "g.onnx", **asked)
    held = byoc.partition(given, **asked)
    stored = {each.name: each for each in read.model.graph.initializer}
    assert to_bytes(read.model) == to_bytes(held.model)
    assert read.model is read.plan.proto
    if quantize is None:
        assert all(stored[each.name] == each for each in given.graph.initializer)
    else:
        (half,) = (each for each in stored.values() if list(each.dims) == [1025, 1024])
        large = numpy_helper.to_array(given.graph.initializer[0])
        np.testing.assert_array_equal(numpy_helper.to_array(half), large.astype(np.float16))


def test_a_protobuf_that_is_edited_afterwards() -> None:
    given = make_model()
    result = byoc.partition(given, rules="dla")
    before = make_model().graph.initializer[0]
    given.graph.initializer[0].raw_data = bytes(len(before.raw_data))
    assert next(each for each in result.model.graph.initializer if each.name == "large") == before


def test_a_plan_of_a_file_is_not_outlined_until_the_model_is_asked_for(tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "g.onnx")
    result = byoc.partition(tmp_path / "g.onnx", rules="dla")
    made = {"outlined", "converted"}
    assert made.isdisjoint(vars(result.plan.partitioned))
    assert [each.name for each in result.model.functions] == [each.name for each in result.plan.regions]
    assert result.model is result.plan.proto
    held = byoc.partition(make_model(), rules="dla")
    assert made <= vars(held.plan.partitioned).keys()
