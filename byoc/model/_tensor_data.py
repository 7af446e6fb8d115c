"""The bytes of stored tensors, embedded in a model or in files beside it.

External data follows the ONNX specification (docs/ExternalData.md): `location` is a path relative to
the model's folder, `offset` and `length` are in bytes. Locations outside of that folder are refused,
be it by `..`, an absolute path or a link.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model._dimensions import Dim as Dim  # noqa: PLC0414 - imported from here as well
from byoc.model.schemas import DTYPE_NUMBERS, DTYPES
from byoc.support import find_inside

# Tensor types: dtype, shape and size in bytes, and their form in ONNX.

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
"""The dtypes of real numbers that operators compute in."""

# Several of these share a byte in a file (onnx.proto, TensorProto.raw_data), but not in numpy.
_BITS = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4e2m1": 4,
    "float6e2m3": 6,
    "float6e3m2": 6,
}
_POINTER_BITS = 64  # an element of a string tensor counts as its pointer
_REGISTERED = 2
"""`numpy.dtype.isbuiltin` of the dtypes that ml_dtypes adds to numpy's own."""


def to_numpy_dtype(dtype: str) -> "np.dtype[Any]":
    """Return numpy's dtype; those that numpy lacks are of the package ml_dtypes."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype]))


def make_native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose elements have this machine's byte order and numpy's one dtype of their type.

    A dtype that `newbyteorder` made equals that one where the order is the same, yet `isbuiltin` and
    `is` tell them apart. An array that is so already is returned as it is.
    """
    dtype = array.dtype
    if dtype.kind in "biufc" or dtype.isbuiltin == _REGISTERED:
        return np.asarray(array, dtype.type)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


@cache
def count_bits(dtype: str) -> int:
    """Return the bits of one element in a file; a string counts as a pointer."""
    if dtype == "string":
        return _POINTER_BITS
    if dtype in _BITS:
        return _BITS[dtype]
    return to_numpy_dtype(dtype).itemsize * 8


@dataclass(frozen=True, slots=True)
class TensorType:
    """The known type of a tensor: `dtype` as in `DTYPES`, `shape` None if the rank is not known."""

    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def elements(self) -> int | None:
        """The number of elements, None unless all dimensions are known."""
        if self.shape is None:
            return None
        known = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(known) if len(known) == len(self.shape) else None

    @property
    def bytes(self) -> int | None:
        """The size of the packed tensor in bytes, None unless all dimensions are known."""
        return None if self.elements is None else -(-self.elements * count_bits(self.dtype) // 8)

    def __str__(self) -> str:
        """Return for example `float32[1, 3, N, ?]`."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


def read_type(proto: TypeProto) -> TensorType | None:
    """Return the type of a tensor, None for a sequence, map, optional or sparse tensor."""
    return _parse_type(proto.SerializeToString())


# A model has few distinct types, which are read again and again.
_MAX_TYPES = 1 << 16


@lru_cache(_MAX_TYPES)
def _parse_type(data: bytes) -> TensorType | None:
    proto = TypeProto.FromString(data)
    if proto.WhichOneof("value") != "tensor_type":
        return None
    tensor = proto.tensor_type
    if tensor.elem_type not in DTYPES:
        return None
    if not tensor.HasField("shape"):
        return TensorType(DTYPES[tensor.elem_type], None)
    return TensorType(DTYPES[tensor.elem_type], tuple(map(_read_dim, tensor.shape.dim)))


def write_type(tensor: TensorType) -> TypeProto:
    """Return the ONNX form of a type; the inverse of `read_type`."""
    return make_tensor_type(DTYPE_NUMBERS[tensor.dtype], tensor.shape)


def make_tensor_type(dtype: int, shape: Sequence[Dim] | None) -> TypeProto:
    """Return the ONNX form of a type, given the number of its dtype."""
    result = TypeProto()
    result.CopyFrom(_make_tensor_type(dtype, None if shape is None else tuple(shape)))
    return result


def add_input(graph: GraphProto, tensor: TensorProto) -> None:
    """Add an input to a graph of a stored tensor's name and type."""
    graph.input.add(name=tensor.name, type=_make_tensor_type(tensor.data_type, tuple(tensor.dims)))


@lru_cache(_MAX_TYPES)
def _make_tensor_type(dtype: int, shape: tuple[Dim, ...] | None) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, shape)


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for unknown
    return dim.dim_param or None


def rate_knowledge(proto: TypeProto | None) -> int:
    """Return a number that grows with the information in a type: kind, rank, each known extent."""
    return 0 if proto is None else _rate_type(proto.SerializeToString())


@lru_cache(_MAX_TYPES)
def _rate_type(data: bytes) -> int:
    if TypeProto.FromString(data).WhichOneof("value") is None:
        return 0
    kind = _parse_type(data)
    if kind is None or kind.shape is None:
        return 1
    return 2 + sum(isinstance(dim, int) for dim in kind.shape)


def get_stated_types(proto: ModelProto) -> dict[str, TypeProto]:
    """Return the types that the main graph states for its tensors, stored ones included."""
    return get_graph_types(proto.graph)


def get_graph_types(graph: GraphProto) -> dict[str, TypeProto]:
    """Return the types that a graph states for its tensors, stored ones included.

    They are copies; tensors of equal types share one.
    """
    shared: dict[bytes, TypeProto | None] = {}
    types: dict[str, TypeProto] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        data = value.type.SerializeToString()
        if data not in shared:
            shared[data] = TypeProto.FromString(data) if _rate_type(data) else None
        kind = shared[data]
        if kind is not None:
            types[value.name] = kind
    for tensor in graph.initializer:
        types[tensor.name] = make_tensor_type(tensor.data_type, tensor.dims)
    return types


def read_tensor_types(types: Mapping[str, TypeProto]) -> dict[str, TensorType]:
    """Return the types of tensors; sequences, maps and optionals are left out."""
    known = {id(proto): proto for proto in types.values()}  # many tensors share a type
    read = {number: read_type(proto) for number, proto in known.items()}
    found = ((name, read[id(proto)]) for name, proto in types.items())
    return {name: kind for name, kind in found if kind is not None}


def clear_shape(kind: TypeProto | None) -> TypeProto | None:
    """Return a tensor type without its shape, any other type as it is."""
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    result = deepcopy(kind)
    result.tensor_type.ClearField("shape")
    return result


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
