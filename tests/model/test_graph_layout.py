"""Layouts: read from words, arrays packed and unpacked, and the same by ONNX nodes in onnxruntime."""

from collections.abc import Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc.model import (
    DTYPE_NUMBERS,
    TensorLayout,
    TensorType,
    can_convert_layout,
    make_layout_nodes,
    parse_layout,
    read_type,
)
from byoc.onnxrt import open_session, run_session, without_optimizations

DTYPES = ("float32", "float16", "int8", "uint8", "int32", "bool", "float64", "int64", "int16", "uint16")


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    axes = "".join(draw(st.permutations("NCHW" if draw(st.booleans()) else "OIHW")))
    blocks = draw(st.lists(st.tuples(st.sampled_from(axes), st.integers(2, 5)), max_size=3))
    return TensorLayout(axes, tuple(blocks))


shapes = st.tuples(*[st.integers(1, 7)] * 4)


def filled(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Return elements that are distinct where the dtype has enough, none of them 0."""
    return (np.arange(prod(shape)) % 120 + 1).reshape(shape).astype(dtype)


def by_the_definition(layout: TensorLayout, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a layout, element by element: each block's index is a digit of the axis."""
    steps = {axis: prod(n for own, n in layout.blocks if own == axis) for axis in layout.axes}
    extents = dict(zip(layout.plain_axes, array.shape, strict=True))
    outer = [-(-extents[axis] // steps[axis]) for axis in layout.axes]
    result = np.zeros([*outer, *(n for _, n in layout.blocks)], array.dtype)
    for place in np.ndindex(*result.shape):
        index = dict(zip(layout.axes, place[:4], strict=True))
        for (axis, size), digit in zip(layout.blocks, place[4:], strict=True):
            index[axis] = index[axis] * size + digit
        source = tuple(index[axis] for axis in layout.plain_axes)
        if all(i < dim for i, dim in zip(source, array.shape, strict=True)):
            result[place] = array[source]
    return result


def run(
    nodes: list[NodeProto], array: NDArray[Any], dims: Sequence[Any], rank: int, opset: int = 17
) -> Any:
    """Return what nodes make of x, of which the model is told `dims`, as y of a rank."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, [None] * rank)],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    onnx.checker.check_model(model, full_check=True)
    with without_optimizations():
        return run_session(open_session(model), {"x": array})["y"]


COUNT = count()


def numbered(wanted: str, kind: TensorType) -> str:
    return f"{wanted}_{next(COUNT)}"


@given(layouts(), shapes, st.sampled_from(DTYPES))
@example(parse_layout("OIHW4i2o3i"), (7, 7, 2, 3), "float16")
def test_packing_follows_the_definition_and_comes_back(
    layout: TensorLayout, shape: tuple[int, int, int, int], dtype: str
) -> None:
    array = filled(shape, dtype)

    packed = layout.pack_array(array)

    np.testing.assert_array_equal(packed, by_the_definition(layout, array))
    assert packed.flags.c_contiguous
    assert packed.dtype == array.dtype
    np.testing.assert_array_equal(layout.unpack_array(packed, shape), array)
    kind = layout.pack_type(TensorType(dtype, shape))
    assert kind == TensorType(dtype, packed.shape)
    assert kind is not None
    assert kind.bytes == packed.nbytes


@given(layouts(), shapes, st.sampled_from(DTYPES), st.booleans(), st.sampled_from([11, 13, 17, 21]))
@example(parse_layout("NHWC"), (2, 3, 4, 5), "int8", True, 5)
@example(parse_layout("NCHW16c"), (2, 3, 4, 5), "float16", True, 13)
@example(parse_layout("NCHW16c"), (2, 3, 4, 5), "int16", True, 13)
@example(parse_layout("NCHW4c"), (1, 3, 2, 2), "uint16", False, 21)
def test_nodes_pack_and_unpack(
    layout: TensorLayout, shape: tuple[int, int, int, int], dtype: str, dynamic: bool, opset: int
) -> None:
    dims = (None, *shape[1:]) if dynamic else shape
    kind = TensorType(dtype, dims)
    if not can_convert_layout(layout, kind, opset):
        blocked_first = any(axis == layout.plain_axes[0] for axis, _ in layout.blocks)
        assert (dynamic and blocked_first) or (dtype == "bool" and opset < 13)
        return
    array, packed = filled(shape, dtype), layout.pack_array(filled(shape, dtype))

    there = make_layout_nodes(layout.make_pack_steps(kind), "x", "y", numbered)
    back = make_layout_nodes(layout.make_unpack_steps(kind), "x", "y", numbered)
    middle = make_layout_nodes(layout.make_pack_steps(kind), "x", "m", numbered)
    again = make_layout_nodes(layout.make_unpack_steps(kind), "m", "y", numbered)

    np.testing.assert_array_equal(run(there, array, dims, packed.ndim, opset), packed)
    np.testing.assert_array_equal(run(back, packed, [None] * packed.ndim, 4, opset), array)
    np.testing.assert_array_equal(run(middle + again, array, dims, 4, opset), array)


@given(layouts(), shapes, st.sampled_from(["int8", "int16", "bfloat16"]))
def test_types_of_steps_are_what_onnx_infers(
    layout: TensorLayout, shape: tuple[int, int, int, int], dtype: str
) -> None:
    kind = TensorType(dtype, shape)
    told: dict[str, TensorType] = {}

    def name(wanted: str, made: TensorType) -> str:
        told[fresh := numbered(wanted, made)] = made
        return fresh

    nodes = make_layout_nodes(layout.make_pack_steps(kind), "x", "m", name)
    nodes += make_layout_nodes(layout.make_unpack_steps(kind), "m", "y", name)
    x = helper.make_tensor_value_info("x", DTYPE_NUMBERS[dtype], shape)
    graph = helper.make_graph(
        nodes, "g", [x], [helper.make_tensor_value_info("y", DTYPE_NUMBERS[dtype], None)]
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

    found = {value.name: read_type(value.type) for value in inferred.graph.value_info}
    assert {name: found[name] for name in told} == told
    assert found["m"] == layout.pack_type(kind)
    assert read_type(inferred.graph.output[0].type) == kind


def test_only_what_the_layout_changes_is_done() -> None:
    def ops(word: str, channels: int) -> list[str]:
        layout, kind = parse_layout(word), TensorType("float32", ("N", channels, 6, 6))
        return [step.op for step in (*layout.make_pack_steps(kind), *layout.make_unpack_steps(kind))]

    assert ops("NCHW", 3) == []
    assert ops("NHWC", 3) == ["Transpose", "Transpose"]
    assert ops("NCHW4c", 8) == ["Reshape", "Transpose", "Transpose", "Reshape"]
    assert ops("NCHW4c", 3) == ["Pad", "Reshape", "Transpose", "Transpose", "Reshape", "Slice"]
    assert ops("NCHW3w", 3) == ["Reshape", "Reshape"]


def test_the_batch_may_be_unknown_and_stays_so() -> None:
    kind = TensorType("int8", ("N", 3, None, 8))

    assert str(parse_layout("NHWC").pack_type(kind)) == "int8[N, ?, 8, 3]"
    assert parse_layout("NCHW16c").pack_type(kind) is None
    fixed = TensorType("int8", (None, 20, 5, 8))
    assert str(parse_layout("NCHW16c").pack_type(fixed)) == "int8[?, 2, 5, 8, 16]"
    assert parse_layout("NCHW2n").pack_type(fixed) is None


@pytest.mark.parametrize("shape", [None, (), (3,), (2, 3, 4), (1, 2, 3, 4, 5)])
def test_other_ranks_stay_plain(shape: tuple[int, ...] | None) -> None:
    layout, kind = parse_layout("NHWC"), TensorType("float32", shape)

    assert layout.pack_type(kind) is None
    assert not can_convert_layout(layout, kind, 17)
    with pytest.raises(ValueError, match="has no layout NHWC"):
        layout.make_pack_steps(kind)
    if shape is not None:
        with pytest.raises(ValueError, match=f"rank 4 is needed, not {len(shape)}"):
            layout.pack_array(np.zeros(shape, np.float32))


def test_what_no_operator_takes_stays_plain() -> None:
    images = {dtype: TensorType(dtype, (1, 3, 4, 4)) for dtype in ("float32", "bfloat16", "int4")}

    def taken(word: str, opset: int) -> list[str]:
        return [
            name for name, kind in images.items() if can_convert_layout(parse_layout(word), kind, opset)
        ]

    assert taken("NHWC", 1) == ["float32"]
    assert taken("NHWC", 13) == ["float32", "bfloat16"]
    assert taken("NHWC", 21) == ["float32", "bfloat16"]  # int4: two in a byte
    assert taken("NCHW4c", 10) == []
    assert taken("NCHW4c", 11) == ["float32"]
    assert taken("NHWC", 0) == []  # the model has no operators of ONNX's own


def test_unpacking_another_shape_is_refused() -> None:
    packed = parse_layout("NCHW4c").pack_array(np.zeros((1, 3, 2, 2), np.int8))

    with pytest.raises(ValueError, match=r"\(1, 5, 2, 2\) in layout NCHW4c is \(1, 2, 2, 2, 4\), not"):
        parse_layout("NCHW4c").unpack_array(packed, (1, 5, 2, 2))


@given(layouts())
def test_words_come_back(layout: TensorLayout) -> None:
    assert parse_layout(str(layout)) == layout
    assert layout.is_plain == (str(layout) in {"NCHW", "OIHW"})


FORMS = "expected the axes N, C, H, W or O, I, H, W in some order, then blocks such as 16c"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("", f"'' is no layout: {FORMS}"),
        ("NCH", f"'NCH' is no layout: {FORMS}"),
        ("NCHHW", f"'NCHHW' is no layout: {FORMS}"),
        ("NOHW", f"'NOHW' is no layout: {FORMS}"),
        ("16cNCHW", f"'16cNCHW' is no layout: {FORMS}"),
        ("NCHW16", f"'NCHW16' is no layout: {FORMS}"),
        ("nhwc", f"'nhwc' is no layout: {FORMS} (did you mean NHWC?)"),
        ("nChw16c", f"'nChw16c' is no layout: {FORMS} (did you mean NCHW16c?)"),
        ("NCHW16o", "'NCHW16o' is no layout: 16o is a block of an axis that it lacks"),
        ("NCHW1c", "'NCHW1c' is no layout: blocks have 2 to 65536 elements, not 1"),
        ("OIHW70000i", "'OIHW70000i' is no layout: blocks have 2 to 65536 elements, not 70000"),
        ("NCHW１６c", f"'NCHW１６c' is no layout: {FORMS}"),  # noqa: RUF001 - digits that are no digits
    ],
)
def test_other_words_are_told_what_would_be_right(word: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="is no layout") as error:
        parse_layout(word)

    assert str(error.value) == sentence
