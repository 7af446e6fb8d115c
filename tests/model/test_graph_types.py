"""Types by the names users write, and the bytes of a tensor."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, TypeProto, helper

from byoc.model import DTYPE_NUMBERS, DTYPES, TensorType, count_bits, read_type, write_type

BITS = {
    **dict.fromkeys(["int2", "uint2"], 2),
    **dict.fromkeys(["int4", "uint4", "float4e2m1"], 4),
    **dict.fromkeys(["float6e2m3", "float6e3m2"], 6),
    **dict.fromkeys(["bool", "int8", "uint8", "float8e4m3fn", "float8e4m3fnuz"], 8),
    **dict.fromkeys(["float8e5m2", "float8e5m2fnuz", "float8e8m0"], 8),
    **dict.fromkeys(["int16", "uint16", "float16", "bfloat16"], 16),
    **dict.fromkeys(["int32", "uint32", "float32"], 32),
    **dict.fromkeys(["int64", "uint64", "float64", "complex64", "string"], 64),
    "complex128": 128,
}


@pytest.mark.parametrize(("dtype", "width"), BITS.items())
def test_bits(dtype: str, width: int) -> None:
    if dtype in DTYPE_NUMBERS:  # older releases of onnx lack the narrowest
        assert count_bits(dtype) == width


def test_every_type_of_this_onnx_has_a_name_and_a_width() -> None:
    numbers = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    assert set(DTYPES) == numbers
    assert all(count_bits(name) > 0 for name in DTYPE_NUMBERS)
    assert {number: DTYPE_NUMBERS[name] for number, name in DTYPES.items()} == {n: n for n in numbers}


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_NUMBERS) - {"string"}))
def test_bytes_are_those_that_onnx_stores(dtype: str) -> None:
    """Five elements: sub-byte types fill their last byte with nothing."""
    array = onnx.numpy_helper.to_array(
        helper.make_tensor("t", DTYPE_NUMBERS[dtype], [5], [1, 0, 1, 1, 0])
    )
    stored = onnx.numpy_helper.from_array(array)
    assert stored.data_type == DTYPE_NUMBERS[dtype]
    assert TensorType(dtype, (5,)).bytes == len(stored.raw_data)


@pytest.mark.parametrize(
    ("kind", "elements", "size", "text"),
    [
        (TensorType("float32", (1, 3, 224, 224)), 150528, 602112, "float32[1, 3, 224, 224]"),
        (TensorType("int4", (3,)), 3, 2, "int4[3]"),
        (TensorType("uint2", (5,)), 5, 2, "uint2[5]"),
        (TensorType("int4", (3, 3)), 9, 5, "int4[3, 3]"),
        (TensorType("bool", ()), 1, 1, "bool[]"),
        (TensorType("float16", (0, 8)), 0, 0, "float16[0, 8]"),
        (TensorType("float32", ("N", None, 4)), None, None, "float32[N, ?, 4]"),
        (TensorType("int8", None), None, None, "int8[...]"),
    ],
)
def test_elements_bytes_and_text(
    kind: TensorType, elements: int | None, size: int | None, text: str
) -> None:
    assert (kind.elements, kind.bytes, str(kind)) == (elements, size, text)


def test_what_is_no_tensor_has_no_type() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    assert read_type(helper.make_sequence_type_proto(tensor)) is None
    assert read_type(helper.make_optional_type_proto(tensor)) is None
    assert read_type(helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1])) is None
    assert read_type(TypeProto()) is None
    assert read_type(helper.make_tensor_type_proto(TensorProto.UNDEFINED, [1])) is None


def test_no_shape_is_not_a_scalar() -> None:
    assert read_type(helper.make_tensor_type_proto(TensorProto.FLOAT, None)) == TensorType(
        "float32", None
    )
    assert read_type(helper.make_tensor_type_proto(TensorProto.FLOAT, [])) == TensorType("float32", ())


def test_a_negative_extent_is_an_unknown_one() -> None:
    proto = helper.make_tensor_type_proto(TensorProto.FLOAT, [-1, 4])
    assert read_type(proto) == TensorType("float32", (None, 4))


DIMS = st.none() | st.integers(0, 2**40) | st.text("abcN_", min_size=1, max_size=3)


@settings(deadline=None)
@given(st.sampled_from(sorted(DTYPE_NUMBERS)), st.none() | st.lists(DIMS, max_size=5).map(tuple))
def test_reading_undoes_writing(dtype: str, shape: tuple[int | str | None, ...] | None) -> None:
    kind = TensorType(dtype, shape)
    assert read_type(write_type(kind)) == kind
    if kind.elements is not None:
        assert kind.bytes == int(np.ceil(kind.elements * count_bits(dtype) / 8)) or kind.elements > 2**50
