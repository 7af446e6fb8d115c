"""A driver that is loaded into this process, and regions that it has opened."""

import ctypes as c
import weakref
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.contracts import TensorContract
from byoc.codegen import Artifact, DriverSources, Region
from byoc.errors import ByocError, InputError
from byoc.model import DTYPE_NUMBERS, count_bits, to_numpy_dtype
from byoc.support import build_shared_library

# Building a codegen's driver from its C sources, as a shared library.

_FLAGS = ("-std=c99", "-fvisibility=default")


def get_include_folder() -> Path:
    """Return the folder that holds `byoc_driver.h`."""
    return Path(str(files("byoc.codegen.drivers"))) / "include"


def build_driver(
    sources: DriverSources, library: Path, compiler: str | None = None, flags: Sequence[str] = ()
) -> Path:
    """Build a driver as the shared library `library`, and return that path.

    `compiler` is a command, by default that in the environment variable BYOC_CC, or `cc`; `flags` follow
    byoc's own. The library is put in place whole or not at all. Raises MissingRuntimeError without a
    compiler, and InputError with the compiler's messages where it fails.
    """
    return build_shared_library(
        f"driver {sources.name}",
        sources.files,
        library,
        (*_FLAGS, *flags, f"-I{get_include_folder()}"),
        sources.libraries,
        compiler,
    )


# The structures of `include/byoc_driver.h` for ctypes; the header describes them.

ABI_VERSION = 1  # of `byoc_driver.h`
ALIGNMENT = 64  # bytes, as `byoc_driver.h` promises for every buffer
STATUSES = ("ok", "incompatible", "bad artifact", "bad argument", "failed")
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
        ("open", c.CFUNCTYPE(c.c_int, _INFO, c.POINTER(c.c_void_p))),
        ("run", c.CFUNCTYPE(c.c_int, c.c_void_p, _POINTERS, _POINTERS)),
        ("close", c.CFUNCTYPE(None, c.c_void_p)),
        ("error", c.CFUNCTYPE(c.c_char_p, c.c_void_p)),
    )


# A driver that is loaded into this process, and regions that it has opened.

Array = NDArray[Any]


class DriverError(ByocError):
    """A driver refused an artifact, or failed; `status` is the meaning of its answer."""

    def __init__(self, message: str, status: str) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status


class DriverLibrary:
    """A driver in a shared library, by its `byoc_get_driver`."""

    def __init__(self, path: Path) -> None:
        """Load a library. Raises InputError if it is missing, or no driver of this interface."""
        self.path = path
        try:
            self._library = c.CDLL(str(path.resolve()))
            get = self._library.byoc_get_driver
        except OSError as error:
            if not path.exists():
                raise InputError(f"{path}: no such file") from None
            raise InputError(f"{path}: not a library that can be loaded: {error}") from None
        except AttributeError:
            raise InputError(f"{path}: not a driver: it has no byoc_get_driver") from None
        get.restype, get.argtypes = c.POINTER(DriverTable), (c.c_uint32,)
        table = get(ABI_VERSION)
        if not table:
            raise InputError(
                f"{path}: the driver has no table for version {ABI_VERSION} of byoc_driver.h"
            )
        self.table: DriverTable = table.contents
        if self.table.abi_version != ABI_VERSION or self.table.struct_size < c.sizeof(DriverTable):
            raise InputError(
                f"{path}: the driver's table is not of version {ABI_VERSION} of byoc_driver.h"
            )

    @property
    def name(self) -> str:
        """The codegen whose artifacts it runs."""
        return bytes(self.table.name).decode(errors="replace")

    def open_region(self, region: Region, artifact: Artifact) -> "OpenedRegion":
        """Open a region. Raises DriverError if the driver refuses it, InputError for what cannot cross.

        Extents have to be known, and elements to be of whole bytes.
        """
        return OpenedRegion(self, region, artifact)


class OpenedRegion:
    """A region that a driver has opened: an executor, from inputs by name to outputs by name.

    It serves one call at a time, and is closed with this object. `arena_bytes` is the memory that the
    driver works in.
    """

    def __init__(self, library: DriverLibrary, region: Region, artifact: Artifact) -> None:
        """Lay out the region's description, and open it."""
        self.library, self.name = library, region.name
        self._inputs = tuple(map(_describe_tensor, region.inputs))
        self._outputs = tuple(map(_describe_tensor, region.outputs))
        self._blobs = {name: _align(content) for name, content in artifact.files.items()}
        info = self._info = self._make_info(artifact.metadata)
        why = c.c_char_p()
        status = library.table.compatible(c.byref(info), c.byref(why))
        if status:
            raise self._make_error(status, why.value or b"")
        size = library.table.arena_size(c.byref(info))
        self._arena = _allocate(0 if size == WRONG_SIZE else size)
        if size == WRONG_SIZE:  # `open` says why
            self._arena = _allocate(1 << 16)
        self.arena_bytes = len(self._arena)
        info.arena, info.arena_bytes = self._arena.ctypes.data, self.arena_bytes
        self._handle = c.c_void_p()
        status = library.table.open(c.byref(info), c.byref(self._handle))
        weakref.finalize(self, library.table.close, self._handle)
        if status:
            raise self._make_error(status, library.table.error(self._handle) or b"")
        if size == WRONG_SIZE:
            raise DriverError(f"{self.name}: arena_size refuses what open takes", STATUSES[2])

    def __call__(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the region once. Raises InputError for a wrong input, DriverError if it fails."""
        given = [_require(self.name, inputs, *each) for each in self._inputs]
        made = {name: np.empty(shape, dtype) for name, dtype, shape in self._outputs}
        status = self.library.table.run(self._handle, _point_to(given), _point_to(list(made.values())))
        if status:
            raise self._make_error(status, self.library.table.error(self._handle) or b"")
        return made

    def _make_error(self, status: int, why: bytes) -> DriverError:
        meaning = STATUSES[status] if 0 <= status < len(STATUSES) else f"status {status}"
        text = why.decode(errors="replace") or meaning
        return DriverError(f"driver {self.library.name}: {self.name}: {text}", meaning)

    def _make_info(self, metadata: Mapping[str, str]) -> RegionInfo:
        blobs = [
            Blob(name.encode(), array.ctypes.data, len(array)) for name, array in self._blobs.items()
        ]
        texts = [Text(name.encode(), text.encode()) for name, text in metadata.items()]
        sides = [_make_tensors(self._inputs), _make_tensors(self._outputs)]
        return RegionInfo(
            c.sizeof(RegionInfo),
            self.name.encode(),
            len(blobs),
            (Blob * len(blobs))(*blobs),
            len(texts),
            (Text * len(texts))(*texts),
            len(self._inputs),
            sides[0],
            len(self._outputs),
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
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        tensors.append(TensorInfo(name.encode(), _NUMBERS[dtype], len(shape), extents, size))
    return (TensorInfo * len(tensors))(*tensors)


_NUMBERS = {to_numpy_dtype(name): number for name, number in DTYPE_NUMBERS.items() if name != "string"}


def _allocate(size: int) -> NDArray[np.uint8]:
    """Return zeros that begin at an aligned address."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _align(content: bytes) -> NDArray[np.uint8]:
    """Return a copy of bytes that begins at an aligned address."""
    array = _allocate(len(content))
    array[:] = np.frombuffer(content, np.uint8)
    return array


def _require(
    region: str, inputs: Mapping[str, Array], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    if name not in inputs:
        raise InputError(f"{region}: input '{name}' is missing")
    array = inputs[name]
    if array.dtype != dtype or array.shape != shape:
        stated = f"{dtype}{list(shape)}"
        raise InputError(
            f"{region}: '{name}' is {array.dtype}{list(array.shape)}, and has to be {stated}"
        )
    return np.ascontiguousarray(array)


def _point_to(arrays: Sequence[Array]) -> Any:
    return (c.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
