"""Forms of a region's model that importers want: written out, and equal bit by bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - dtypes of numpy
import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from byoc.codegen import CompileError, read_region, write_wanted_forms
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS

NEWEST = helper.make_opsetid("", onnx.defs.onnx_opset_version())
SCHEMA = onnx.defs.get_schema("DequantizeLinear")
STORED = sorted({text[7:-1] for text in SCHEMA.inputs[0].types})
MADE = sorted({text[7:-1] for text in onnx.defs.get_schema("QuantizeLinear").outputs[0].types})
SHAPES: Sequence[tuple[tuple[int, ...], dict[str, int]]] = (
    ((), {}),
    ((3,), {"axis": 0}),
    ((3, 2), {"axis": 1, "block_size": 2}),
)


def write(model: Any, *wants: str) -> Any:
    """Return a model in other forms, checked, whose outputs are those of the model."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    write_wanted_forms(made, wants)  # type: ignore[arg-type]
    onnx.checker.check_model(made, full_check=True)
    random = np.random.default_rng(0)
    inputs = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        inputs[value.name] = (random.standard_normal(shape) * 3).astype(dtype)
    before, after = (ReferenceEvaluator(each).run(None, inputs) for each in (model, made))
    for one, other in zip(before, after, strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    return made


def name_dtype(text: str) -> int:
    return DTYPE_NUMBERS["float32" if text == "float" else text]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("shape", "attributes"), SHAPES)
def test_integers_are_dequantized_with_a_zero_point(
    stored: str, shape: tuple[int, ...], attributes: dict[str, int]
) -> None:
    number = name_dtype(stored)
    scales = helper.make_tensor("s", TensorProto.FLOAT, shape, np.full(shape, 0.5).ravel().tolist())
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "s"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", number, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        [scales],
    )
    made = write(helper.make_model(graph, opset_imports=[NEWEST]), "zero_points")
    (node,) = made.graph.node
    (found,) = (each for each in made.graph.initializer if each.name == node.input[2])
    assert (found.data_type, tuple(found.dims)) == (number, shape)


@pytest.mark.parametrize("to", ["", *MADE])
def test_floats_are_quantized_with_a_zero_point(to: str) -> None:
    number = name_dtype(to) if to else TensorProto.UINT8
    attributes = {"output_dtype": number} if to else {}
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", number, [3, 4])],
        [helper.make_tensor("s", TensorProto.FLOAT, (), [0.5])],
    )
    made = write(helper.make_model(graph, opset_imports=[NEWEST]), "zero_points")
    assert len(made.graph.node[0].input) == 3


def test_products_of_integers_have_zero_points() -> None:
    text = """g (uint8[2, 3] a, int8[3, 2] b, uint8[1, 1, 3, 3] x, int8[1, 1, 2, 2] w)
        => (int32[2, 2] y, int32[1, 1, 2, 2] z) { y = MatMulInteger(a, b) z = ConvInteger(x, w) }"""
    made = write(parse(text), "zero_points")
    assert [len(node.input) for node in made.graph.node] == [4, 4]


@pytest.mark.parametrize(
    "body",
    [
        "y = Clip(x, , high)",
        "y = Clip(x, low, )",
        "y = Slice(x, zeros, ends, , ones)",
        "y = Pad(x, pads, , axes)",
        'm = Resize<mode = "nearest">(x, , two) y = Slice(m, zeros, ends)',
    ],
)
def test_inputs_that_are_left_out_are_written(body: str) -> None:
    text = f"""g (float[2, 4] x) => (float[2, 4] y) <float high = {{1}}, float low = {{-1}},
        int64[2] zeros = {{0, 0}}, int64[2] ends = {{2, 4}}, int64[2] ones = {{1, 1}},
        int64[2] pads = {{0, 0}}, int64[1] axes = {{1}}, float[2] two = {{1, 1}}> {{ {body} }}"""
    made = write(parse(text, opset=18), "inputs")
    assert all(name for node in made.graph.node for name in node.input)


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_operators_get_their_bias_and_lengths(operator: str, gates: int) -> None:
    text = f"""g (float[5, 2, 3] x, float[1, {4 * gates}, 3] w, float[1, {4 * gates}, 4] r,
        float[1, 2, 4] h) => (float[5, 1, 2, 4] y)
        {{ y = {operator}<hidden_size = 4>(x, w, r, , , h) }}"""
    made = write(parse(text), "inputs")
    assert all(made.graph.node[0].input)


def test_what_no_number_says_is_refused_with_the_node() -> None:
    text = """g (float[1, 1, 2, 2] x, int64[4] n) => (float[1, 1, 4, 4] y)
        { y = Resize<mode = "nearest">(x, , , n) }"""
    with pytest.raises(CompileError, match="Resize leaves out its input 2") as raised:
        write_wanted_forms(parse(text), ["inputs"])
    assert raised.value.nodes == ("y",)


def test_constants_are_initializers_and_copies_go_in_bodies_too() -> None:
    text = """g (bool p, float[2] x) => (float[2] y) {
        c = Constant<value = float[2] {1, 2}>() k = Identity(x) s = Add(k, c)
        y = If(p) <then_branch = t () => (float[2] a) {
            d = Constant<value_floats = [3.0, 4.0]>() i = Identity(s) a = Add(i, d) },
          else_branch = e () => (float[2] b) { b = Add(s, c) }> }"""
    made = write(parse(text), "constants", "identity")
    operators = [node.op_type for graph in onnx_graphs(made) for node in graph.node]
    assert sorted(operators) == ["Add", "Add", "Add", "If"]


def onnx_graphs(model: Any) -> list[Any]:
    found, pending = [], [model.graph]
    while pending:
        graph = pending.pop()
        found.append(graph)
        pending += [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return found


def test_a_region_is_loaded_in_them(tmp_path: Path) -> None:
    text = """g (int8[4] q) => (float[4] y) <float s = {0.5}>
        { k = Identity(q) y = DequantizeLinear(k, s) }"""
    onnx.save(parse(text), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "r", "acme")
    (node,) = region.load(wants=["zero_points", "identity"]).graph.node
    assert (node.op_type, node.input[0], len(node.input)) == ("DequantizeLinear", "q", 3)
    with pytest.raises(InputError, match="no form 'zero_point' \\(did you mean zero_points\\?\\)"):
        region.load(wants=["zero_point"])  # type: ignore[list-item]
