"""The structures and functions of `include/byoc_driver.h` for ctypes; the header describes them."""

import ctypes as c
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.contracts import TensorContract
from byoc.codegen import Artifact, Region
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits, to_numpy_dtype

ABI_VERSIONS = (2, 1)
"""The versions of `byoc_driver.h` that are known here, in the order in which a driver is asked."""
STATUSES = ("ok", "incompatible", "bad artifact", "bad argument", "failed", "busy", "cancelled")
"""The meaning of what a driver's functions answer, by number."""
WRONG_SIZE = c.c_size_t(-1).value


class Blob(c.Structure):
    """`byoc_blob`."""

    _fields_ = (("name", c.c_char_p), ("data", c.c_void_p), ("bytes", c.c_size_t))


class Text(c.Structure):
    """`byoc_text`."""

    _fields_ = (("name", c.c_char_p), ("text", c.c_char_p))


class TensorInfo(c.Structure):
    """`byoc_tensor`."""

    _fields_ = (
        ("name", c.c_char_p),
        ("dtype", c.c_int32),
        ("rank", c.c_int32),
        ("shape", c.POINTER(c.c_int64)),
        ("bytes", c.c_size_t),
    )


class RegionInfo(c.Structure):
    """`byoc_region_info`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("region", c.c_char_p),
        ("blob_count", c.c_size_t),
        ("blobs", c.POINTER(Blob)),
        ("text_count", c.c_size_t),
        ("texts", c.POINTER(Text)),
        ("input_count", c.c_size_t),
        ("inputs", c.POINTER(TensorInfo)),
        ("output_count", c.c_size_t),
        ("outputs", c.POINTER(TensorInfo)),
        ("arena", c.c_void_p),
        ("arena_bytes", c.c_size_t),
    )


BUSY = 5  # of STATUSES
DEVICE_MEMORY, PROGRAM_MEMORY, SHARED_MEMORY = range(3)
FOREVER = c.c_uint64(-1).value
_INFO = c.POINTER(RegionInfo)
_POINTERS = c.POINTER(c.c_void_p)


class DriverTable(c.Structure):
    """`byoc_driver`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("abi_version", c.c_uint32),
        ("name", c.c_char_p),
        ("compatible", c.CFUNCTYPE(c.c_int, _INFO, c.POINTER(c.c_char_p))),
        ("arena_size", c.CFUNCTYPE(c.c_size_t, _INFO)),
        ("open", c.CFUNCTYPE(c.c_int, _INFO, _POINTERS)),
        ("run", c.CFUNCTYPE(c.c_int, c.c_void_p, _POINTERS, _POINTERS)),
        ("close", c.CFUNCTYPE(None, c.c_void_p)),
        ("error", c.CFUNCTYPE(c.c_char_p, c.c_void_p)),
    )


class BufferInfo(c.Structure):
    """`byoc_buffer_info`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("kind", c.c_int32),
        ("bytes", c.c_size_t),
        ("memory", c.c_void_p),
        ("descriptor", c.c_int64),
    )


class DriverBinding(c.Structure):
    """`byoc_binding`."""

    _fields_ = (("data", c.c_void_p), ("buffer", c.c_void_p), ("offset", c.c_size_t))


DONE = c.CFUNCTYPE(None, c.c_void_p, c.c_int)


class DriverCall(c.Structure):
    """`byoc_call`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("inputs", c.POINTER(DriverBinding)),
        ("outputs", c.POINTER(DriverBinding)),
        ("option_count", c.c_size_t),
        ("options", c.POINTER(Text)),
        ("done", DONE),
        ("user", c.c_void_p),
    )


class Counters(c.Structure):
    """`byoc_counters`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("runs", c.c_uint64),
        ("bytes_from_program", c.c_uint64),
        ("bytes_to_program", c.c_uint64),
        ("bytes_on_device", c.c_uint64),
        ("busy_ns", c.c_uint64),
    )


class Event(c.Structure):
    """`byoc_event`."""

    _fields_ = (
        ("layer", c.c_char_p),
        ("node_count", c.c_size_t),
        ("nodes", c.POINTER(c.c_char_p)),
        ("start_ns", c.c_uint64),
        ("duration_ns", c.c_uint64),
    )


VERSION_NAMES = (
    *("driver", "firmware", "oldest_firmware", "newest_firmware"),
    *("oldest_artifact", "newest_artifact"),
)


class Versions(c.Structure):
    """`byoc_versions`."""

    _fields_ = (("struct_size", c.c_size_t), *((name, c.c_char_p) for name in VERSION_NAMES))


_TEXTS = c.POINTER(c.c_char_p)


class DriverTable2(c.Structure):
    """`byoc_driver_2`."""

    _fields_ = (
        ("base", DriverTable),
        ("open_with", c.CFUNCTYPE(c.c_int, _INFO, c.c_size_t, c.POINTER(Text), _POINTERS)),
        ("submit", c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(DriverCall))),
        ("wait", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint64)),
        ("cancel", c.CFUNCTYPE(None, c.c_void_p)),
        ("open_buffer", c.CFUNCTYPE(c.c_int, c.POINTER(BufferInfo), _POINTERS, _TEXTS)),
        ("write_buffer", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t)),
        ("read_buffer", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t)),
        ("close_buffer", c.CFUNCTYPE(None, c.c_void_p)),
        ("read_counters", c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(Counters))),
        (
            "list_events",
            c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.POINTER(Event)), c.POINTER(c.c_size_t)),
        ),
        ("read_versions", c.CFUNCTYPE(c.c_int, _INFO, c.POINTER(Versions))),
    )


def find_functions(table: Any) -> dict[str, Any]:
    """Return the functions of a table, a pointer to a DriverTable, that are there, by name."""
    found = {name: getattr(table.contents, name) for name, _ in DriverTable._fields_[3:]}
    if table.contents.abi_version < ABI_VERSIONS[0]:
        return found
    whole = c.cast(table, c.POINTER(DriverTable2)).contents
    for name, _ in DriverTable2._fields_[1:]:
        place = getattr(DriverTable2, name)
        # What lies behind the size is not the table's.
        if place.offset + place.size <= table.contents.struct_size and getattr(whole, name):
            found[name] = getattr(whole, name)
    return found


def make_texts(texts: Mapping[str, str]) -> Any:
    """Return an array of `byoc_text`."""
    rows = [Text(name.encode(), text.encode()) for name, text in texts.items()]
    return (Text * len(rows))(*rows)


# Regions as drivers are told of them.

ALIGNMENT = 64  # bytes, as `byoc_driver.h` promises for every buffer


class DescribedRegion:
    """A region as a driver is told of it; the memory of `info` lives as long as this object."""

    def __init__(self, region: Region, artifact: Artifact) -> None:
        """Lay the region out in C structures. Raises InputError for a tensor that cannot cross."""
        self.inputs = tuple(map(_describe_tensor, region.inputs))
        self.outputs = tuple(map(_describe_tensor, region.outputs))
        self._blobs = {name: _align(content) for name, content in artifact.files.items()}
        blobs = [
            Blob(name.encode(), array.ctypes.data, len(array)) for name, array in self._blobs.items()
        ]
        texts = make_texts(artifact.metadata)
        sides = [_make_tensors(self.inputs), _make_tensors(self.outputs)]
        self.info = RegionInfo(
            c.sizeof(RegionInfo),
            region.name.encode(),
            len(blobs),
            (Blob * len(blobs))(*blobs),
            len(texts),
            texts,
            len(self.inputs),
            sides[0],
            len(self.outputs),
            sides[1],
            None,
            0,
        )


_Described = tuple[str, np.dtype[Any], tuple[int, ...]]


def _describe_tensor(contract: TensorContract) -> _Described:
    """Return the name, dtype and shape of a boundary tensor."""
    shape = tuple(extent for extent in contract.type.shape or () if isinstance(extent, int))
    if contract.type.elements is None:
        raise InputError(f"{contract.name}: its extents are not all known, which a driver needs")
    if count_bits(contract.type.dtype) % 8 or contract.type.dtype == "string":
        raise InputError(f"{contract.name}: {contract.type.dtype} does not cross to a driver")
    return contract.name, to_numpy_dtype(contract.type.dtype), shape


def _make_tensors(described: Sequence[_Described]) -> Any:
    tensors = []
    for name, dtype, shape in described:
        extents = (c.c_int64 * len(shape))(*shape)
        size = count_bytes(dtype, shape)
        tensors.append(TensorInfo(name.encode(), _NUMBERS[dtype], len(shape), extents, size))
    return (TensorInfo * len(tensors))(*tensors)


_NUMBERS = {to_numpy_dtype(name): number for name, number in DTYPE_NUMBERS.items() if name != "string"}


def allocate_aligned(size: int) -> NDArray[np.uint8]:
    """Return zeros that begin at an aligned address."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _align(content: bytes) -> NDArray[np.uint8]:
    """Return a copy of bytes that begins at an aligned address."""
    array = allocate_aligned(len(content))
    array[:] = np.frombuffer(content, np.uint8)
    return array


def count_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
