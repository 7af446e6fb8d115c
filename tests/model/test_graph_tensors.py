"""The bytes of stored tensors: there, as long as they must be, and never outside the model's folder."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    ExternalData,
    check_model,
    count_bytes,
    find_external_data,
    read_raw_bytes,
)


def check_tensor(tensor: TensorProto, folder: Path | None) -> None:
    """Check a model that gives out a stored tensor."""
    output = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    graph = helper.make_graph([], "g", [], [output], [tensor])
    imports = [helper.make_opsetid("", 21)]
    check_model(helper.make_model(graph, opset_imports=imports, ir_version=10), folder)


def outside(dims: tuple[int, ...] = (2,), dtype: int = TensorProto.FLOAT, **fields: str) -> TensorProto:
    tensor = TensorProto(name="w", dims=dims, data_type=dtype, data_location=TensorProto.EXTERNAL)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a file of 16 bytes; beside it lies what is nobody's business."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (inside / "w.bin").write_bytes(bytes(range(16)))
    (inside / "sub" / "w.bin").write_bytes(b"deeper!!")
    (tmp_path / "secret").write_bytes(b"password")
    (tmp_path / "model2").mkdir()
    (tmp_path / "model2" / "w.bin").write_bytes(b"password")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "folder_link").symlink_to(tmp_path)
    (inside / "good_link").symlink_to("w.bin")
    (inside / "loop").symlink_to("loop")
    return inside


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"location": "w.bin", "length": "8"}, bytes(range(8))),
        ({"location": "w.bin", "offset": "8", "length": "8"}, bytes(range(8, 16))),
        ({"location": "w.bin", "offset": "4"}, bytes(range(4, 12))),
        ({"location": "sub/w.bin"}, b"deeper!!"),
        ({"location": "sub/../w.bin"}, bytes(range(8))),
        ({"location": "good_link"}, bytes(range(8))),
        ({"location": "w.bin", "checksum": "whatever"}, bytes(range(8))),
    ],
)
def test_data_beside_the_model(folder: Path, fields: dict[str, str], data: bytes) -> None:
    tensor = outside(**fields)
    check_tensor(tensor, folder)
    assert read_raw_bytes(tensor, folder) == data


def test_where_it_lies(folder: Path) -> None:
    place = find_external_data(outside(location="w.bin", offset="4"), folder)
    assert place == ExternalData(folder.resolve() / "w.bin", 4, 8)
    assert find_external_data(numpy_helper.from_array(np.zeros(2)), folder) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "'', which is not inside the model's folder"),
        ({"location": "../secret"}, "'../secret', which is not inside the model's folder"),
        ({"location": "sub/../../secret"}, "'sub/../../secret', which is not inside the model's folder"),
        ({"location": "../model2/w.bin"}, "'../model2/w.bin', which is not inside the model's folder"),
        ({"location": "/etc/passwd"}, "'/etc/passwd', which is not inside the model's folder"),
        ({"location": "link"}, "'link', which is not inside the model's folder"),
        (
            {"location": "folder_link/secret"},
            "'folder_link/secret', which is not inside the model's folder",
        ),
        ({"location": "missing"}, "'missing', and there is no such file beside the model"),
        ({"location": "sub"}, "'sub', and there is no such file beside the model"),
        ({"location": "."}, "'.', and there is no such file beside the model"),
        ({"location": "w.bin/x"}, "'w.bin/x', and there is no such file beside the model"),
        ({"location": "a\0b"}, r"'a\x00b', which is not the name of a file"),
        ({"location": "n" * 300}, f"'{'n' * 300}', which is not the name of a file"),
        (
            {"location": "w.bin", "length": "12"},
            "'w.bin' of 12 bytes, but its shape and dtype ask for 8",
        ),
        ({"location": "w.bin", "length": "0"}, "'w.bin' of 0 bytes, but its shape and dtype ask for 8"),
        ({"location": "w.bin", "offset": "9"}, "'w.bin' up to byte 17, but the file has 16"),
        (
            {"location": "w.bin", "offset": "-8"},
            "'w.bin' at offset '-8', which is not a number of bytes",
        ),
        (
            {"location": "w.bin", "offset": "8.0"},
            "'w.bin' at offset '8.0', which is not a number of bytes",
        ),
        ({"location": "w.bin", "offset": ""}, "'w.bin' at offset '', which is not a number of bytes"),
        (
            {"location": "w.bin", "length": "two"},
            "'w.bin' of length 'two', which is not a number of bytes",
        ),
        (
            {"location": "w.bin", "offset": "9" * 5000},
            f"'w.bin' at offset '{'9' * 5000}', which is not a number of bytes",
        ),
    ],
)
def test_refused_places(folder: Path, fields: dict[str, str], message: str) -> None:
    tensor = outside(**fields)
    with pytest.raises(InputError) as caught:
        check_tensor(tensor, folder)
    assert str(caught.value) == f"tensor 'w' has external data in {message}"
    with pytest.raises(InputError):
        read_raw_bytes(tensor, folder)


def test_a_link_to_itself(folder: Path) -> None:
    with pytest.raises(InputError, match=r"^tensor 'w' has external data in 'loop', "):
        check_tensor(outside(location="loop"), folder)


def test_a_model_in_memory_has_no_folder() -> None:
    with pytest.raises(InputError) as caught:
        check_tensor(outside(location="w.bin"), None)
    assert str(caught.value) == (
        "tensor 'w' has external data in 'w.bin', and a model in memory has no folder to look in"
    )


def test_packed_data_beside_the_model(folder: Path) -> None:
    tensor = outside((3,), TensorProto.INT4, location="w.bin", length="2")
    check_tensor(tensor, folder)
    assert read_raw_bytes(tensor, folder) == b"\x00\x01"
    with pytest.raises(InputError, match=r"of 3 bytes, but its shape and dtype ask for 2$"):
        check_tensor(outside((3,), TensorProto.INT4, location="w.bin", length="3"), folder)


@pytest.mark.parametrize(
    ("dtype", "dims", "length", "needed"),
    [
        (TensorProto.FLOAT, (2, 3), 23, 24),
        (TensorProto.FLOAT, (2, 3), 25, 24),
        (TensorProto.INT4, (3,), 3, 2),
        (TensorProto.INT4, (3,), 1, 2),
        (TensorProto.INT8, (), 0, 1),
        (TensorProto.DOUBLE, (0, 4), 8, 0),
    ],
)
def test_raw_data_of_the_wrong_length(
    dtype: int, dims: tuple[int, ...], length: int, needed: int
) -> None:
    tensor = TensorProto(name="w", dims=dims, data_type=dtype, raw_data=bytes(length))
    assert count_bytes(tensor) == needed
    with pytest.raises(InputError) as caught:
        check_tensor(tensor, None)
    assert str(caught.value) == (
        f"tensor 'w' holds {length} bytes, but its shape and dtype ask for {needed}"
    )
    check_tensor(TensorProto(name="w", dims=dims, data_type=dtype, raw_data=bytes(needed)), None)


def test_fields_that_are_too_short() -> None:
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, float_data=[1.0, 2.0])
    with pytest.raises(InputError, match=r"^tensor 'w': "):
        check_tensor(tensor, None)
    with pytest.raises(InputError, match=r"^tensor 'w': "):
        check_tensor(TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT), None)


@pytest.mark.parametrize("number", [0, 99, -1])
def test_an_unknown_data_type(number: int) -> None:
    with pytest.raises(InputError) as caught:
        check_tensor(TensorProto(name="w", dims=[1], data_type=number, raw_data=b"1234"), None)
    assert str(caught.value) == f"tensor 'w' has the unknown data type {number}"


def test_a_negative_dimension() -> None:
    with pytest.raises(InputError) as caught:
        check_tensor(TensorProto(name="w", dims=[-1, -4], data_type=1, raw_data=bytes(16)), None)
    assert str(caught.value) == "tensor 'w' has a negative dimension"


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_NUMBERS) - {"string"}))
def test_raw_form_of_values_in_fields(dtype: str) -> None:
    tensor = helper.make_tensor("t", DTYPE_NUMBERS[dtype], [3], [1, 0, 1])
    raw = onnx.TensorProto(
        name="t", dims=[3], data_type=DTYPE_NUMBERS[dtype], raw_data=read_raw_bytes(tensor, None)
    )
    check_tensor(raw, None)
    same = numpy_helper.to_array(tensor) == numpy_helper.to_array(raw)
    assert np.asarray(same).all()


def test_strings_have_no_raw_form() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [1], ["a"])
    check_tensor(tensor, None)
    with pytest.raises(ValueError, match=r"^strings have no raw form$"):
        read_raw_bytes(tensor, None)
