"""Graphs whose layers go by rows in ways that are easily taken for others."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from arena import error, execute, plan_rows, random_feeds, read_rows, reference
from checkers.stripes_check import check
from helpers.support import parse, prepared

from byoc.errors import InputError
from byoc.memory.reading import RowwiseModel, read_memory_model, read_row_model
from byoc.memory.report import draw_striped, plan_report
from byoc.memory.stripes import ALL_ROWS, SAME_ROW
from byoc.model import prepare_model


def _rows(text: str, opset: int = 17) -> RowwiseModel:
    return read_row_model(prepared(text, opset=opset).index)


def _sizes(model: RowwiseModel) -> Mapping[str, int]:
    return {tensor.name: tensor.size for tensor in model.tensors}


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "how",
    [
        'auto_pad = "SAME_UPPER"',
        'auto_pad = "SAME_LOWER", strides = [4, 4]',
        "pads = [3, 0, 0, 0], strides = [4, 1]",
        "strides = [3, 3]",
    ],
)
def test_pooling_with_a_kernel_of_the_whole_image(operator: str, how: str) -> None:
    """Only one window in the middle is global pooling; with padding there are others, or it is less."""
    text = f"""g (float[1, 2, 4, 4] x) => (float[1, 2, N, M] y) {{
        y = {operator}<kernel_shape = [4, 4], {how}>(x)
    }}"""
    model = parse(text)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    check(rows.tensors, rows.layers, rows.inputs, rows.outputs, plan)
    feeds = random_feeds(index)

    assert error(execute(index, rows, plan, feeds), reference(model, feeds)) < 1e-6


def test_a_resize_of_an_image_without_rows() -> None:
    proto = parse("""g (float[1, 0, 4, 4] x) => (float[1, 0, 8, 8] y) <float[4] scales = {1, 1, 2, 2}> {
        y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(x, , scales)
    }""")
    model = read_row_model(prepare_model(proto, "test").index)

    assert [layer.mode for layer in model.layers] == ["whole"]
    assert _sizes(model) == {"x": 0, "y": 0}


PADDING_ALONE = """
g (float[1, 2, 8, 7] x) => (float[1, 2, 2, 7] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
    r = Relu(x)
    s = Sigmoid(r)
    y = Conv<kernel_shape = [1, 1], strides = [20, 1], pads = [2, 0, 20, 0]>(s, w)
}"""


def test_layers_below_padding_alone_are_planned_drawn_and_executed() -> None:
    report = plan_report(prepared(PADDING_ALONE).index, "net")
    assert report.striped is not None
    drawn = draw_striped(report.striped, "net")
    assert {"s", "y"} <= {box.name for box in drawn.boxes}

    model = parse(PADDING_ALONE)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    check(rows.tensors, rows.layers, rows.inputs, rows.outputs, plan)
    feeds = random_feeds(index)
    found = execute(index, rows, plan, feeds)
    assert np.array_equal(found["y"], reference(model, feeds)["y"])


def test_a_mask_of_dropout_takes_bytes_of_its_own() -> None:
    model = _rows("""g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y, bool[1, 4, 6, 6] mask) {
        r = Relu(x)
        d, mask = Dropout(r)
        y = Sigmoid(d)
    }""")

    assert _sizes(model)["mask"] == 144
    assert model.storage_of["d"] == "r"
    assert model.outputs == ("y", "mask")
    layer = next(layer for layer in model.layers if "mask" in layer.writes)
    assert (layer.reads, layer.writes) == ((("r", SAME_ROW),), ("mask",))


def test_a_mask_of_dropout_that_nobody_reads_takes_none() -> None:
    model = _rows("""g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
        d, mask = Dropout(x)
        y = Sigmoid(d)
    }""")

    assert [layer.name for layer in model.layers] == ["y"]


def test_what_a_node_makes_is_the_same_by_rows_and_as_a_whole() -> None:
    """An optional output that nobody reads is not made; the second part of a Split is."""
    text = """g (float[1, 8, 4, 4] x) => (float[1, 1, 4, 4] y, float[1, 8, 2, 2] p) {
        one, seven = Split<axis = 1>(x, parts)
        y = Relu(one)
        p, where = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    }"""
    proto = parse(text)
    proto.graph.initializer.append(onnx.helper.make_tensor("parts", 7, [2], [1, 7]))
    index = prepare_model(proto, "test").index
    whole = read_memory_model(index).problem

    assert _sizes(read_row_model(index)) == dict(zip(whole.names, whole.sizes, strict=True))
    assert _sizes(read_row_model(index))["seven"] == 7 * 64
    assert "where" not in _sizes(read_row_model(index))


def test_an_output_of_an_unknown_type_is_an_input_error() -> None:
    model = prepared("""g (float[1, 2, 4, 4] x) => (float[1, 1, 4, 4] y) {
        a, b = Split<axis = 1>(x)
        y = Relu(a)
    }""")
    known = {name: proto for name, proto in model.index.type_protos.items() if name != "b"}
    index = replace(model.index, type_protos=known)
    with pytest.raises(InputError, match="net: 'b' is of an unknown type"):
        read_row_model(index, "net")


def test_a_reshape_whose_shape_is_data_copies_and_reads_its_shape() -> None:
    proto = parse("""g (float[2, 6] x, int64[2] shape) => (float[3, 4] y) {
        r = Reshape(x, shape)
        y = Reshape(r, fixed)
    }""")
    proto.graph.initializer.append(onnx.helper.make_tensor("fixed", 7, [2], [3, 4]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, [4, 3]))
    model = read_row_model(prepare_model(proto, "test").index)

    assert [(layer.reads, layer.mode) for layer in model.layers] == [
        ((("x", ALL_ROWS), ("shape", ALL_ROWS)), "whole")
    ]
    assert model.storage_of["y"] == "r"


def test_an_output_that_is_stored_is_not_counted_and_a_note_says_so() -> None:
    proto = parse(
        "g (float[4] x) => (float[4] y, float[4] w, int64[1] s) { y = Add(x, w) s = Shape(x) }"
    )
    proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [4], [1.0] * 4))
    model = read_memory_model(prepare_model(proto, "test").index)

    assert [model.problem.names[b] for b in model.problem.outputs] == ["y"]
    assert model.notes == tuple(
        f"the output '{name}' is stored, or computed of constants or shapes, and is not counted"
        for name in "ws"
    )
