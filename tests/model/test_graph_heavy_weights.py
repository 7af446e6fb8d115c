"""Model files read without their heavy weights: what is read later, and what is read as a whole."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.errors import InputError
from byoc.model import read_without_heavy_weights
from byoc.zoo import load_model

ELEMENTS = 100_000  # of 4 bytes


def make_model(elements: int = ELEMENTS, op: str = "Add") -> onnx.ModelProto:
    """Return a model of one node that reads a weight of many elements, and a small one."""
    heavy = numpy_helper.from_array(np.arange(elements, dtype=np.float32), "heavy")
    light = numpy_helper.from_array(np.ones(1, np.float32), "light")
    heavy.doc_string = "a weight"
    names = ["heavy", "light"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "heavy"], ["h"]), helper.make_node(op, ["h", "light"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [elements])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [elements])],
        [heavy, light],
    )
    assert [each.name for each in graph.initializer] == names
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_plan_does_not_read_heavy_weights(tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "m.onnx")
    result = byoc.partition(tmp_path / "m.onnx", rules="dla")
    heavy, light = result.plan.root.index.proto.graph.initializer
    assert (heavy.data_location, heavy.raw_data) == (TensorProto.EXTERNAL, b"")
    assert light.raw_data
    assert result.plan.model.proto == make_model()
    assert all(each in result.model.graph.initializer for each in make_model().graph.initializer)
    held = byoc.partition(make_model(), rules="dla")
    assert result.model.SerializeToString(deterministic=True) == held.model.SerializeToString(
        deterministic=True
    )


def test_a_file_that_changed_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make_model(), path)
    model = load_model(path, without_heavy=True)
    os.utime(path, (1, 1))
    with pytest.raises(InputError, match=r"m\.onnx: changed while it was in use"):
        _ = model.proto


def test_what_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    cases = {"small": make_model(100), "quantized": make_model()}
    scale = numpy_helper.from_array(np.ones(ELEMENTS, np.float32), "scale")
    cases["quantized"].graph.initializer.append(scale)
    cases["quantized"].graph.node.add(
        op_type="QuantizeLinear", input=["h", "scale"], output=["q"], name="q"
    )
    cases["wrong length"] = make_model()
    cases["wrong length"].graph.initializer[0].dims[0] -= 1
    cases["in another file"] = make_model()
    for what, model in cases.items():
        onnx.save(model, path, save_as_external_data=what == "in another file", location="other")
        assert read_without_heavy_weights(path) is None, what
    onnx.save(make_model(), path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    data = path.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[:-1000])
    (tmp_path / "noise.onnx").write_bytes(bytes(400_000))
    for name in ("link", "cut", "noise", "missing"):
        assert read_without_heavy_weights(tmp_path / f"{name}.onnx") is None, name
    assert read_without_heavy_weights(path) is not None
    _ = load_model(link, without_heavy=True).proto


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_whole_model_is_what_protobuf_reads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Fields in any order, twice, unknown ones, and a message in several parts."""
    model, numbers = make_model(20), st.integers(0, 3)
    graph = model.graph
    for position in range(data.draw(numbers)):
        values = np.arange(data.draw(st.integers(0, 40)), dtype=np.int16)
        graph.initializer.append(numpy_helper.from_array(values, f"w{position}"))
    if data.draw(st.booleans()):
        graph.initializer.append(helper.make_tensor("f", TensorProto.FLOAT, [30], [0.5] * 30))
    parts = [model.SerializeToString(), model.SerializeToString()][: 1 + data.draw(st.booleans())]
    parts.append(
        data.draw(st.sampled_from([b"", b"\x9a\x06\x01x", b"\x98\x06\x05", b"\xa1\x06" + bytes(8)]))
    )
    path = tmp_path_factory.mktemp("heavy") / "m.onnx"
    path.write_bytes(b"".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byoc.model._heavy_weights._HEAVY_BYTES", 16)
        patch.setattr("byoc.model._heavy_weights._LEAST_BYTES_FOR_A_FIELD", 1)
        patch.setattr(
            "byoc.model._heavy_weights._WINDOW_BYTES", data.draw(st.sampled_from([20, 50, 4096]))
        )
        found = read_without_heavy_weights(path)
    expected = onnx.load(path, load_external_data=False)
    assert found is not None
    read, heavy = found
    assert read != expected
    heavy.fill(read)
    assert read == expected
