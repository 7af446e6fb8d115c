"""Layouts at borders: what is put in where."""

import onnx
import onnx.version_converter
import pytest
from helpers.support import prepared
from laying import arranged, border, call, cut, laid, put_in, region, same
from onnx import ModelProto

from byoc.boundary.convert import BoundaryFormat, RegionBoundary
from byoc.model import (
    LAYOUT_KEY,
    GraphIndex,
    extract_call,
    find_images,
    get_metadata,
    get_purpose,
    get_stated_types,
    parse_layout,
    read_type,
)

CHAIN = """g (float[N, 3, 6, 5] x) => (float[N, 3, 6, 5] y) {
    a = Relu(x)
    b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)
    c = Sigmoid(b)
    d = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c)
    y = Neg(d)
}"""


def test_a_region_is_given_its_layout_and_gives_it_back() -> None:
    model = laid(CHAIN, [[1, 2]])

    assert put_in(model.graph.node) == ["a_NHWC = Transpose(a)", "c = Transpose(c_NHWC)"]
    assert (call(model, "npu_0").input, call(model, "npu_0").output) == (["a_NHWC"], ["c_NHWC"])
    function = region(model, "npu_0")
    assert (function.input, function.output) == (["a_NHWC"], ["c_NHWC"])
    assert put_in(function.node) == ["a = Transpose(a_NHWC)", "c_NHWC = Transpose(c)"]
    marked = [node for node in (*model.graph.node, *function.node) if get_purpose(node)]
    assert [get_metadata(node, LAYOUT_KEY) for node in marked] == ["NHWC"] * 4
    types = {value.name: str(read_type(value.type)) for value in model.graph.value_info}
    assert types["a_NHWC"] == types["c_NHWC"] == "float32[N, 6, 5, 3]"


def test_between_regions_of_one_layout_nothing_is_converted() -> None:
    model = laid(CHAIN, [[0, 1], [2], [3, 4]])

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)", "y = Transpose(y_NHWC)"]
    assert call(model, "npu_1").input == ["b_NHWC"]
    assert put_in(region(model, "npu_1").node) == ["b = Transpose(b_NHWC)", "c_NHWC = Transpose(c)"]


def test_regions_of_two_layouts_meet_in_the_plain_one() -> None:
    model = laid(CHAIN, [[0, 1], [2, 3, 4]], ["NHWC", "NCHW4c"])

    assert put_in(model.graph.node) == [
        *("x_NHWC = Transpose(x)", "b = Transpose(b_NHWC)"),
        *("b_NCHW4c_pad = Pad(b)", "b_NCHW4c_reshape = Reshape(b_NCHW4c_pad)"),
        "b_NCHW4c = Transpose(b_NCHW4c_reshape)",
        *("y_transpose = Transpose(y_NCHW4c)", "y_reshape = Reshape(y_transpose)"),
        "y = Slice(y_reshape)",
    ]
    assert call(model, "npu_1").output == ["y_NCHW4c"]


def test_what_several_read_is_converted_once() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] x_NHWC,
                float[1, 2, 4, 4] z, float[1, 2, 4, 4] q, float[1, 2, 4, 4] h) {
            x_NHWC = MaxPool<kernel_shape = [1, 1]>(x)
            h = Sigmoid(x_NHWC)
            z = AveragePool<kernel_shape = [1, 1]>(x_NHWC)
            q = Add(x, x_NHWC)
        }""",
        [[0], [2], [3]],
    )

    # The tensor that region 0 makes is an output of the model, too, and read by Sigmoid. Its name is
    # what byoc would have called x, had it been free.
    assert put_in(model.graph.node) == [
        "x_NHWC_1 = Transpose(x)",
        "x_NHWC = Transpose(x_NHWC_NHWC)",
        "z = Transpose(z_NHWC)",
        "q = Transpose(q_NHWC)",
    ]
    assert call(model, "npu_2").input == ["x_NHWC_1", "x_NHWC_NHWC"]


def test_an_input_that_is_an_output_is_left_alone() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] x, float[1, 2, 1, 1] y) {
            y = GlobalAveragePool(x)
        }""",
        [[0]],
    )

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)", "y = Transpose(y_NHWC)"]


def test_only_images_are_converted() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x, float[2, 3, 4, 5] m, float[2] v)
            => (float[1, 2, 4, 4] y, float[2, 3, 4, 4] z, float[1, 32] f)
            <float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
            y = Conv(x, w, v)
            t = Transpose<perm = [0, 1, 3, 2]>(m)
            z = MatMul(m, t)
            f = Flatten(x)
        }""",
        [[0, 1, 2, 3]],
    )

    assert list(call(model, "npu_0").input) == ["x_NHWC", "v", "m", "w"]
    assert list(call(model, "npu_0").output) == ["y_NHWC", "z", "f"]


def test_an_input_given_twice_is_given_twice_in_the_layout() -> None:
    model = prepared("g (float[1,2,3,3] x) => (float[1,2,3,3] y) { a = Abs(x) y = LRN<size = 1>(a) }")
    outlined = cut(model, [0, 1])
    outlined.graph.node[0].input.append("x")
    outlined.functions[0].input.append("again")
    outlined.functions[0].node[0].CopyFrom(onnx.helper.make_node("Add", ["x", "again"], ["a"]))
    doubled = ModelProto()
    doubled.CopyFrom(outlined)

    result, _ = arranged(outlined, [border(model.index, "npu_0", "NHWC")])

    same(doubled, result)
    assert call(result, "npu_0").input == ["x_NHWC", "x_NHWC"]
    assert len(set(region(result, "npu_0").input)) == 2


@pytest.mark.parametrize("opset", [10, 11])
def test_blocks_stay_plain_where_operators_are_too_old(opset: int) -> None:
    model = prepared(
        "g (float[1,2,3,3] x) => (float[1,2,1,1] y) { a = Abs(x) y = GlobalMaxPool(a) }", opset=opset
    )

    result, _ = arranged(cut(model, [0, 1]), [border(model.index, "npu_0", "NCHW4c")])

    same(model.proto, result)
    assert bool(put_in(result.graph.node)) == (opset >= 11)


def test_a_plain_layout_changes_nothing() -> None:
    model = prepared(CHAIN)
    outlined = cut(model, [1, 2])

    for word in ("NCHW", ""):
        wants = BoundaryFormat(parse_layout(word) if word else None)
        where = RegionBoundary("npu_0", wants, find_images(model.index), model.index.type_protos)
        result, edit = arranged(outlined, [where])
        assert result == outlined
        assert not edit.types


@pytest.mark.parametrize("word", ["NHWC", "NCHW4c", "CHWN2h"])
def test_types_of_all_that_is_put_in_are_what_onnx_infers(word: str) -> None:
    model = prepared(CHAIN.replace("N, 3", "2, 3"))
    result, edit = arranged(cut(model, [0, 1], [3]), [border(model.index, r, word) for r in REGIONS])

    types = {**model.index.type_protos, **edit.types}
    index = GraphIndex(result, types)
    found = dict(get_stated_types(bare(result)))
    for name in REGIONS:
        found.update(get_stated_types(bare(extract_call(index, call(result, name), types))))

    assert set(edit.types) <= set(found)
    for name, kind in edit.types.items():
        assert read_type(found[name]) == read_type(kind), name


REGIONS = ("npu_0", "npu_1")


def bare(model: ModelProto) -> ModelProto:
    """Return a model with the types that follow from those of its inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True)
