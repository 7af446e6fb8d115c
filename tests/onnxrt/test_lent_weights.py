"""Sessions that borrow the weights of a model in memory: results are those of a file of the model."""

import gc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.onnxrt import SessionMode, open_session, run_session, with_session_mode

LARGE, SMALL = 40_000, 3  # elements; weights of up to 16,384 stay in the model
DTYPES = [
    *("float32", "float64", "float16", "bfloat16", "int4", "bool"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
]


def draw(dtype: str, size: int) -> NDArray[Any]:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    return np.random.default_rng(size).integers(0, 2, size).astype(kind)


def make_model(dtype: str, size: int = LARGE) -> ModelProto:
    """Return a model that adds a weight of a dtype to its input, as float32."""
    weight = numpy_helper.from_array(draw(dtype, size), "w")
    nodes = [
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "v"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model: ModelProto | Path, size: int = LARGE) -> NDArray[Any]:
    session = open_session(model)
    x = np.arange(size, dtype=np.float32)
    del model
    gc.collect()
    spoilt = [np.full(LARGE, 7, np.int8) for _ in range(50)]  # what lies where a freed weight was
    first, again = (run_session(session, {"x": x})["y"] for _ in range(2))
    assert len(spoilt) == 50
    np.testing.assert_array_equal(first, again)
    return np.asarray(first)


@pytest.mark.parametrize("mode", ["definition", "exact", "fast"])
@pytest.mark.parametrize("size", [LARGE, SMALL])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_in_memory_computes_as_in_a_file(
    dtype: str, size: int, mode: SessionMode, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make_model(dtype, size), path)
    with with_session_mode(mode):
        made, expected = run(make_model(dtype, size), size), run(path, size)
    np.testing.assert_array_equal(made, expected)
    wanted = np.arange(size, dtype=np.float32) + draw(dtype, size).astype(np.float32)
    np.testing.assert_array_equal(made, wanted)


def test_the_model_itself_stays_as_it_is() -> None:
    model = make_model("float32")
    before = model.SerializeToString(deterministic=True)
    run(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_weight_that_a_caller_may_give_is_the_default() -> None:
    model = make_model("float32")
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [LARGE]))
    x = np.zeros(LARGE, np.float32)
    session = open_session(model)
    np.testing.assert_array_equal(run_session(session, {"x": x})["y"], draw("float32", LARGE))
    np.testing.assert_array_equal(run_session(session, {"x": x, "w": x + 5})["y"], x + 5)


@pytest.mark.parametrize("change", ["too short", "twice", "negative"])
def test_what_onnxruntime_refuses_in_a_file_it_refuses_in_memory(change: str, tmp_path: Path) -> None:
    model = make_model("float32")
    if change == "twice":
        model.graph.initializer.append(model.graph.initializer[0])
    elif change == "negative":
        model.graph.initializer[0].dims[:] = [-1, -LARGE]
    else:
        model.graph.initializer[0].raw_data = b"\0" * 8
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    results: list[object] = []
    for each in (path, model):
        try:
            results.append(run(each).tolist())
        except InputError as error:
            results.append(str(error))
    assert results[0] == results[1]
    if change != "twice":
        assert "onnxruntime cannot load the model" in str(results[0])


def test_a_weight_that_nothing_reads_is_not_lent() -> None:
    """As the float weights of a quantized model, which stay beside their integers."""
    model = make_model("float32")
    expected = run(make_model("float32"))
    model.graph.initializer.append(numpy_helper.from_array(draw("float32", LARGE), "unread"))
    np.testing.assert_array_equal(run(model), expected)


def test_a_large_shape_is_there_while_a_model_is_loaded() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "ones"], ["r"]),
        helper.make_node("Reshape", ["r", "one"], ["y"]),
    ]
    shapes = {"ones": np.ones(LARGE, np.int64), "one": np.array([1], np.int64)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    stored = [numpy_helper.from_array(value, name) for name, value in shapes.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.array([3], np.float32)
    with with_session_mode("fast"):
        np.testing.assert_array_equal(run_session(open_session(model), {"x": x})["y"], x)


def test_raw_data_beside_external_data_is_not_lent(tmp_path: Path) -> None:
    """As onnx leaves it in a model whose weights are to be in a file: that holds what counts."""
    model = make_model("float32")
    (tmp_path / "w.bin").write_bytes(np.full(LARGE, 5, np.float32).tobytes())
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "w.bin")
    session = open_session(model, tmp_path)
    x = np.arange(LARGE, dtype=np.float32)
    np.testing.assert_array_equal(run_session(session, {"x": x})["y"], x + 5)


@pytest.mark.parametrize("reads", ["its own", "the outer one"])
def test_a_weight_that_a_body_reads_is_lent_unless_the_body_has_its_own(reads: str) -> None:
    """onnxruntime drops the outer one of two of a name, where bodies alone could read it."""
    kept = [numpy_helper.from_array(draw("float32", LARGE), "kept")] if reads == "its own" else []
    outer = numpy_helper.from_array(draw("float32", LARGE), "kept")
    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, [LARGE])
    body = helper.make_graph([helper.make_node("Neg", ["kept"], ["made"])], "body", [], [made], kept)
    branch = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [LARGE])
    model = helper.make_model(helper.make_graph([branch], "g", [flag], [y], [outer]))
    model.opset_import[0].version, model.ir_version = 17, 8
    session = open_session(model)
    np.testing.assert_array_equal(
        run_session(session, {"flag": np.array(True)})["y"],
        -numpy_helper.to_array((kept or [outer])[0]),
    )
    assert bool(session.lent_by_byoc) == (not kept)
