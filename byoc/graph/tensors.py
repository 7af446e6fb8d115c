"""The bytes of stored tensors, embedded or in files.

External data follows the ONNX specification (docs/ExternalData.md): `location` is a path relative to
the model's folder, `offset` and `length` are in bytes. Locations outside of that folder are refused,
be it by `..`, an absolute path or a link.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.errors import InputError
from byoc.graph.types import DTYPES, count_bits

_MAX_DIGITS = 19  # of 2**63, the size of the largest file
_BLOCK_BYTES = 1 << 20


# Constants up to this size may matter for shape inference and stay in the skeleton of a model.
_MAX_SMALL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The location of a tensor's bytes: a file, an offset and a length in bytes."""

    path: Path
    offset: int
    length: int


def count_bytes(tensor: TensorProto) -> int:
    """Return the size of a tensor in raw form in bytes, according to its shape and dtype."""
    return -(-prod(map(int, tensor.dims)) * count_bits(DTYPES[tensor.data_type]) // 8)


def find_external_data(tensor: TensorProto, folder: Path | None) -> ExternalData | None:
    """Return the location of a tensor's external data, None if it is embedded.

    Raises InputError when the location is not a file inside the folder, or the file is too short.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    where = f"tensor '{tensor.name}' has external data in '{location}'"
    if folder is None:
        raise InputError(f"{where}, and a model in memory has no folder to look in")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL character
        raise InputError(f"{where}, which is not the name of a file") from None
    if not location or not path.is_relative_to(root):
        raise InputError(f"{where}, which is not inside the model's folder")
    if not there:
        raise InputError(f"{where}, and there is no such file beside the model")
    needed = count_bytes(tensor)
    offset = _parse_byte_count(fields.get("offset", "0"), f"{where} at offset")
    length = _parse_byte_count(fields.get("length", str(needed)), f"{where} of length")
    if length != needed:
        raise InputError(f"{where} of {length} bytes, but its shape and dtype ask for {needed}")
    if offset + length > path.stat().st_size:
        raise InputError(f"{where} up to byte {offset + length}, but the file has {path.stat().st_size}")
    return ExternalData(path, offset, length)


def is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor is a weight (over 1 KiB); strings never are, they have no raw form."""
    return tensor.data_type != TensorProto.STRING and count_bytes(tensor) > _MAX_SMALL_BYTES


def check_tensor(tensor: TensorProto, folder: Path | None) -> None:
    """Raise InputError unless the tensor's data exists and has the length of its shape and dtype."""
    if tensor.data_type not in DTYPES:
        raise InputError(f"tensor '{tensor.name}' has the unknown data type {tensor.data_type}")
    if any(dim < 0 for dim in tensor.dims):
        raise InputError(f"tensor '{tensor.name}' has a negative dimension")
    if find_external_data(tensor, folder) is not None:
        return
    if not tensor.HasField("raw_data"):
        try:
            onnx.checker.check_tensor(tensor)
        except onnx.checker.ValidationError as error:
            raise InputError(f"tensor '{tensor.name}': {' '.join(str(error).split())}") from None
    elif len(tensor.raw_data) != count_bytes(tensor):
        raise InputError(
            f"tensor '{tensor.name}' holds {len(tensor.raw_data)} bytes, "
            f"but its shape and dtype ask for {count_bytes(tensor)}"
        )


def read_raw_bytes(tensor: TensorProto, folder: Path | None) -> bytes:
    """Return a tensor's bytes in raw form (little endian, packed), embedded or external.

    Raises ValueError for strings, which have no raw form.
    """
    place = find_external_data(tensor, folder)
    if place is not None:
        with place.path.open("rb") as file:
            file.seek(place.offset)
            return file.read(place.length)
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    if tensor.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw form")
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data


def read_array(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    """Return a stored tensor as an array, embedded or external. Raises as `raw_bytes`."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    embedded = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    embedded.raw_data = read_raw_bytes(tensor, folder)
    return onnx.numpy_helper.to_array(embedded)


def write_raw_bytes(tensor: TensorProto, folder: Path | None, file: BinaryIO) -> int:
    """Write a tensor's bytes in raw form to an open file, and return their number.

    External data is copied in blocks, whatever its size. Raises InputError when its file has become too
    short, and as `raw_bytes`.
    """
    place = find_external_data(tensor, folder)
    if place is None:
        return file.write(read_raw_bytes(tensor, folder))
    left = place.length
    with place.path.open("rb") as source:
        source.seek(place.offset)
        while left and (block := source.read(min(left, _BLOCK_BYTES))):
            left -= file.write(block)
    if left:
        raise InputError(f"the data of tensor '{tensor.name}' ends {left} bytes early in {place.path}")
    return place.length


def _parse_byte_count(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise InputError(f"{what} '{text}', which is not a number of bytes")
    return int(text)
