"""The bytes of stored tensors, embedded in a model or in files beside it.

External data follows the ONNX specification (docs/ExternalData.md): `location` is a path relative to
the model's folder, `offset` and `length` are in bytes. Locations outside of that folder are refused,
be it by `..`, an absolute path or a link.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.errors import InputError
from byoc.model._tensor_types import count_bits
from byoc.model.schemas import DTYPES
from byoc.support import find_inside

_MAX_DIGITS = 19  # of 2**63, the size of the largest file
_BLOCK_BYTES = 1 << 20
_IN_MEMORY = "*/"  # onnxruntime's own mark of data that is no file's: `*/_ORT_MEM_ADDR_/*`

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


def find_external_data(
    tensor: TensorProto, folder: Path | None, known: dict[str, Path] | None = None
) -> ExternalData | None:
    """Return the location of a tensor's external data, None if it is embedded.

    `known` has the files of the folder that were found before, by their names, and takes the new one:
    for many tensors in one file. Raises InputError when the location is not a file inside the folder,
    or the file is too short.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    where = f"tensor '{tensor.name}' has external data in '{location}'"
    if folder is None:
        raise InputError(f"{where}, and a model in memory has no folder to look in")
    path = (known or {}).get(location) or _find_inside(folder, location, where)
    if known is not None:
        known[location] = path
    needed = count_bytes(tensor)
    offset = _parse_byte_count(fields.get("offset", "0"), f"{where} at offset")
    length = _parse_byte_count(fields.get("length", str(needed)), f"{where} of length")
    if length != needed:
        raise InputError(f"{where} of {length} bytes, but its shape and dtype ask for {needed}")
    if offset + length > path.stat().st_size:
        raise InputError(f"{where} up to byte {offset + length}, but the file has {path.stat().st_size}")
    return ExternalData(path, offset, length)


def _find_inside(folder: Path, location: str, where: str) -> Path:
    """Return the path of a file inside a folder. Raises InputError as `find_external_data`."""
    if location.startswith(_IN_MEMORY):  # older onnxruntimes take the offset for an address in memory
        raise InputError(f"{where}, which is not the name of a file")
    try:
        path = find_inside(folder, location) if location else None
        there = path is not None and path.is_file()
    except (OSError, ValueError):  # too long, a loop of links, a NUL character
        raise InputError(f"{where}, which is not the name of a file") from None
    if path is None:
        raise InputError(f"{where}, which is not inside the model's folder")
    if not there:
        raise InputError(f"{where}, and there is no such file beside the model")
    return path


def is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor is a weight (over 1 KiB); strings never are, they have no raw form."""
    return tensor.data_type != TensorProto.STRING and count_bytes(tensor) > _MAX_SMALL_BYTES


def check_tensor(
    tensor: TensorProto,
    folder: Path | None,
    known: dict[str, Path] | None = None,
    found: bool = False,
) -> None:
    """Raise InputError unless the tensor's data exists and has the length of its shape and dtype.

    `known` is as in `find_external_data`; `found` says that external data was found before.
    """
    if tensor.data_type not in DTYPES:
        raise InputError(f"tensor '{tensor.name}' has the unknown data type {tensor.data_type}")
    if any(dim < 0 for dim in tensor.dims):
        raise InputError(f"tensor '{tensor.name}' has a negative dimension")
    outside = tensor.data_location == TensorProto.EXTERNAL
    if outside and (found or find_external_data(tensor, folder, known) is not None):
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
    external = find_external_data(tensor, folder)
    if external is not None:
        with external.path.open("rb") as file:
            file.seek(external.offset)
            return file.read(external.length)
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    if tensor.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw form")
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data


def embed_external_data(tensors: Iterable[TensorProto], folder: Path | None) -> None:
    """Move the external data of tensors into them. Raises as `read_raw_bytes`.

    `onnx.load_external_data_for_model` refuses files with several hard links, as a bundle may hold.
    """
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = read_raw_bytes(tensor, folder)
            tensor.ClearField("data_location")
            del tensor.external_data[:]


def read_array(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    """Return a stored tensor as an array, embedded or external. Raises as `read_raw_bytes`."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    embedded = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    embedded.raw_data = read_raw_bytes(tensor, folder)
    return onnx.numpy_helper.to_array(embedded)


def write_raw_bytes(
    tensor: TensorProto,
    folder: Path | None,
    write: Callable[[bytes | memoryview], object],
    known: dict[str, Path] | None = None,
) -> int:
    """Pass a tensor's bytes in raw form to `write`, as of a file or a hash, and return their number.

    External data is passed in blocks, whatever its size, and a block is good until `write` returns.
    `known` is as in `find_external_data`. Raises InputError when its file has become too short, and as
    `read_raw_bytes`.
    """
    external = find_external_data(tensor, folder, known)
    if external is None:
        content = read_raw_bytes(tensor, folder)
        write(content)
        return len(content)
    left = external.length
    block = memoryview(bytearray(min(left, _BLOCK_BYTES)))
    with external.path.open("rb", buffering=0) as source:
        source.seek(external.offset)
        while left and (count := source.readinto(block[: min(left, len(block))])):
            write(block[:count])
            left -= count
    if left:
        missing = f"the data of tensor '{tensor.name}' ends {left} bytes early"
        raise InputError(f"{missing} in {external.path}")
    return external.length


def _parse_byte_count(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise InputError(f"{what} '{text}', which is not a number of bytes")
    return int(text)
