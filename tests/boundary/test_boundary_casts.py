"""Regions in float16 and bfloat16: what crosses, what is stored, and the numbers, in onnxruntime."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from helpers.cutting import ramp
from helpers.strategies import Alternating, Random
from helpers.support import examples, parse, prepared, sample_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from pipeline.random_graphs import GraphMaker
from short import CHAIN, FIRST, SECOND, casts, decibels, near, partitioned, same, short, target
from short import original as run_original

from byoc import zoo
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.placement.strategies import AllSupported
from byoc.rules import load_rules

SOME = ("densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet")


def by_hand(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one input and output in float16 throughout, cast at its ends."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    stored = {t.name for t in graph.initializer}
    data = next(value.name for value in graph.input if value.name not in stored)
    for value in graph.input:
        if value.name in stored and value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    out = graph.output[0].name
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = {data: "data16", out: "out16"}.get(name, name)
        for i, name in enumerate(node.output):
            node.output[i] = {out: "out16"}.get(name, name)
    graph.node.insert(0, helper.make_node("Cast", [data], ["data16"], to=TensorProto.FLOAT16))
    graph.node.append(helper.make_node("Cast", ["out16"], [out], to=TensorProto.FLOAT))
    del graph.value_info[:]
    return result


@pytest.mark.parametrize(
    ("name", "convert"),
    sample_cases(
        [*((name, "host") for name in SOME), ("squeezenet", "device"), ("resnet50", "device")],
        *[("squeezenet", "host"), ("squeezenet", "device")],
    ),
)
def test_light_models_are_as_close_as_float16_is(
    name: str, convert: Literal["host", "device"], tmp_path: Path
) -> None:
    model = prepare_model(zoo.load(name), name)
    made = partitioned(model, target(tmp_path), AllSupported(), convert)
    assert len(made.proto.functions) == 1
    assert [len(casts(made.proto.graph.node)), len(casts(made.function().node))] == (
        [2, 0] if convert == "host" else [0, 2]
    )
    assert "FLOAT" not in made.stored().values()
    inputs = zoo.sample_inputs(name, 0)
    near(made, inputs)
    with without_optimizations():
        expected = run_session(open_session(by_hand(model.proto)), inputs)
    same(expected, made.run(inputs))


@pytest.mark.parametrize("convert", ["host", "device"])
def test_regions_that_meet_exchange_float16(convert: Literal["host", "device"]) -> None:
    made = short(prepared(CHAIN), [0, 1], [2, 3], convert=convert)
    assert (
        casts(made.proto.graph.node) == [] if convert == "device" else made.host[1:3] == [FIRST, SECOND]
    )
    assert (made.inside(FIRST), made.inside(SECOND)) == (
        (["Mul", "Relu"], ["Sigmoid", "Sub"])
        if convert == "host"
        else (["Cast", "Mul", "Relu"], ["Sigmoid", "Sub", "Cast"])
    )
    whole = short(prepared(CHAIN), [0, 1, 2, 3])
    x = {"x": ramp(2, 4)}
    same(whole.run(x), made.run(x))
    same(whole.reference(x), made.reference(x))
    near(made, x)


def test_a_device_that_casts_gives_float32_where_the_host_reads_too() -> None:
    model = prepared(
        "g (float[4] x) => (float[4] y) { a = Abs(x) b = Neg(a) c = Relu(a) y = Add(b, c) }"
    )
    made = short(model, [0], [2], convert="device")
    assert (made.inside(FIRST), made.inside(SECOND)) == (
        ["Cast", "Abs", "Cast"],
        ["Cast", "Relu", "Cast"],
    )
    assert made.host == [FIRST, "Neg", SECOND, "Add"]
    near(made, {"x": ramp(4)})


def test_regions_of_two_types_meet_through_float32() -> None:
    made = short(prepared(CHAIN, opset=22), [0, 1], [2, 3], dtype=["float16", "bfloat16"])
    assert made.host == ["Cast", FIRST, "Cast", "Cast", SECOND, "Cast"]
    assert made.dtypes(FIRST)["b_float16"] == "float16"
    assert made.dtypes(SECOND)["c_bfloat16"] == "bfloat16"


def test_one_cast_serves_all_regions_that_read_a_tensor() -> None:
    text = """
    g (float[4] x) => (float[4] y) {
      a = Neg(x)  b = Relu(a)  c = Abs(a)  d = Exp(b)  e = Sub(d, c)  y = Mul(e, x)
    }"""
    made = short(prepared(text), [1], [2, 4])
    assert made.host == ["Neg", "Cast", FIRST, "Cast", "Exp", "Cast", SECOND, "Cast", "Mul"]
    near(made, {"x": ramp(4)})


def test_what_the_host_computes_stays_float32() -> None:
    made = short(prepared(CHAIN), [1])
    x = ramp(2, 4)
    w = np.array([0.1, -2.5, 3.3, 1e-6], np.float32)
    b = np.maximum((x * w).astype(np.float16), 0).astype(np.float32)
    np.testing.assert_allclose(made.reference({"x": x})["y"], 1 / (1 + np.exp(-b)) - w, rtol=1e-6)


def test_the_name_of_a_graph_output_stays() -> None:
    made = short(
        prepared("g (float[4] x) => (float[4] y, float[4] z) { y = Abs(x) z = Relu(y) }"), [0, 1]
    )
    assert [value.name for value in made.proto.graph.output] == ["y", "z"]
    assert made.host == ["Cast", FIRST, "Cast", "Cast"]
    near(made, {"x": ramp(4)})


def test_integers_cross_as_they_are() -> None:
    text = """
    g (float[3, 4] x, int64[2] i) => (float[2, 4] y, bool[2, 4] z) {
      y = Gather(x, i)  z = Greater(y, y)
    }"""
    made = short(prepared(text), [0, 1])
    assert made.host == ["Cast", FIRST, "Cast"]
    near(made, {"x": ramp(3, 4), "i": np.array([2, 0])})


def test_bfloat16_is_what_onnx_says(tmp_path: Path) -> None:
    text = """
    g (float[2, 8] x) => (float[2, 4] y) <float[4] b = {0.1, 0.2, 0.3, 1e30}> {
      m = MatMul(x, w)  a = Min(m, b)  y = Relu(a)
    }"""
    proto = parse(text, ir=10, opset=22)
    proto.graph.initializer.append(numpy_helper.from_array(ramp(8, 4), "w"))
    made = short(prepare_model(proto, "t"), [0, 1, 2], dtype="bfloat16")
    assert set(made.dtypes().values()) == {"bfloat16"}
    (note,) = (note for note in made.notes if "onnxruntime" in note)
    assert note.startswith("regions compute in bfloat16")
    x = ramp(2, 8)
    (found,) = ReferenceEvaluator(made.proto).run(None, {"x": x})
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert found.dtype == np.float32
    assert 30 < decibels(expected, found) < 60


@pytest.mark.parametrize(("dtype", "opset", "least"), [("bfloat16", 12, 13), ("float16", 5, 6)])
def test_an_operator_set_without_the_type_is_refused(dtype: str, opset: int, least: int) -> None:
    model = prepared("g (float[4] x) => (float[4] y) { y = Abs(x) }", opset=opset)
    with pytest.raises(InputError, match=f"operator set {opset}.* {dtype}.*{least} or newer"):
        short(model, [0], dtype=dtype)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25), st.sampled_from(["host", "device"]))
def test_random_graphs_are_valid_and_near(
    seed: int, size: int, convert: Literal["host", "device"]
) -> None:
    model = prepare_model(GraphMaker(seed).model(size), "random")
    rules = load_rules(str(Path(__file__).parent / "short.yaml"))
    there = replace(rules, compute_dtype="float16")
    for strategy in (AllSupported(), Random(seed), Alternating()):
        made = partitioned(model, there, strategy, convert)
        x = {"x0": ramp(1, 4, 3, 3), "x1": ramp(1, 4, 3, 3)[::, ::-1]}
        expected = run_original(model, x)
        given_out: dict[str, Any] = made.run(x)
        for name, value in expected.items():
            with np.errstate(over="ignore"):
                finite = np.isfinite(value.astype(np.float16)).all()
            assert given_out[name].dtype == value.dtype
            if finite:
                scale = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(given_out[name], value, atol=0.02 * scale)
