"""Constants of regions in float16 and bfloat16: which are kept, and what is beyond their range."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cutting import ramp
from helpers.support import parse, prepared
from onnx import TensorProto, helper, numpy_helper
from short import CHAIN, FIRST, near, short

from byoc.model import prepare_model, read_model_file


def test_a_constant_beyond_the_range_becomes_the_largest_number() -> None:
    text = """
    g (float[5] x) => (float[5] y) <float[5] m = {-3.4e38, 70000, 65504, 6e-8, 65519}> {
      y = Max(x, m)
    }"""
    made = short(prepared(text), [0])
    y = made.run({"x": np.full(5, -65504, np.float32)})["y"]
    np.testing.assert_array_equal(y, np.float32([-65504, 65504, 65504, 2.0**-24, 65504]))
    assert made.notes == ("2 values of 'm' beyond the range of float16 became its largest",)


def test_a_constant_is_there_twice_only_if_both_sides_read_it() -> None:
    assert short(prepared(CHAIN), [0, 1]).stored() == {"w": "FLOAT", "w_float16": "FLOAT16"}
    alone = short(prepared(CHAIN), [0], [3])
    assert alone.stored() == {"w_float16": "FLOAT16"}
    assert [list(node.input)[-1] for node in alone.proto.graph.node if node.domain] == ["w_float16"] * 2


@pytest.mark.parametrize("size", [17, 20, 40])
def test_a_weight_in_a_constant_node_is_rounded_too(size: int) -> None:
    """1.1 to 6 KiB: half of 1.1 KiB is too little for a Constant node to count as stored."""
    value = numpy_helper.from_array(ramp(size, size), "value")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = prepare_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "t"
    )
    made = short(model, [1])
    assert sorted(made.host) == ["Cast", "Cast", FIRST]
    assert made.stored() == {"w_float16": "FLOAT16"}
    near(made, {"x": ramp(2, size)})


def test_weights_in_a_file_are_rounded(tmp_path: Path) -> None:
    proto = parse("g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(ramp(64, 64), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    model = prepare_model(read_model_file(tmp_path / "m.onnx"), "m", tmp_path)
    made = short(model, [0])
    (tensor,) = made.proto.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), ramp(64, 64).astype(np.float16))
    near(made, {"x": ramp(2, 64)})
