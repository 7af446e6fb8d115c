"""Drivers: C libraries that run compiled regions without Python (`include/byoc_driver.h`)."""

import ctypes as c
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, fields
from byoc.codegen import Artifact, DriverSources, Region
from byoc.codegen.drivers._driver_structures import (
    ABI_VERSIONS,
    BUSY,
    DEVICE_MEMORY,
    DONE,
    FOREVER,
    PROGRAM_MEMORY,
    SHARED_MEMORY,
    STATUSES,
    VERSION_NAMES,
    WRONG_SIZE,
    BufferInfo,
    Counters,
    DescribedRegion,
    DriverBinding,
    DriverCall,
    DriverTable,
    DriverTable2,
    Event,
    Versions,
    allocate_aligned,
    count_bytes,
    find_functions,
    make_texts,
)
from byoc.errors import ByocError, InputError
from byoc.support import build_shared_library, describe_missing_file

__all__ = [
    "DONE",
    "DeviceTensor",
    "DriverCall",
    "DriverCounters",
    "DriverError",
    "DriverLibrary",
    "DriverTable",
    "DriverTable2",
    "DriverVersions",
    "OpenedRegion",
    "build_driver",
    "get_include_folder",
]

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


# A driver that is loaded into this process, its buffers, and regions that it has opened.

Array = NDArray[Any]
_FAILED = STATUSES.index("failed")
_MOST_CHARACTERS = 500  # of what a driver says, in a sentence


class DriverError(ByocError):
    """A driver refused an artifact, or failed; `status` is the meaning of its answer."""

    def __init__(self, message: str, status: str) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class DriverVersions:
    """The versions that a driver runs, or that an artifact needs, as texts; empty where there is none.

    Numbers in a text are separated by dots. `firmware` is that of the device that is here.
    """

    driver: str = ""
    firmware: str = ""
    oldest_firmware: str = ""
    newest_firmware: str = ""
    oldest_artifact: str = ""
    newest_artifact: str = ""


@dataclass(frozen=True)
class DriverCounters:
    """The work of a region since it was opened; bytes are those of its inputs and outputs."""

    runs: int
    bytes_from_program: int
    bytes_to_program: int
    bytes_on_device: int
    busy_ns: int


@dataclass(frozen=True)
class DriverEvent:
    """A layer of a region's last run: its name, those of the model's nodes in it, and nanoseconds."""

    layer: str
    nodes: tuple[str, ...]
    start_ns: int
    duration_ns: int


class DriverLibrary:
    """A driver in a shared library, by its `byoc_get_driver`.

    `abi_version` is the version of `byoc_driver.h` that both know, and `functions` has those of its
    table that are there, by name.
    """

    def __init__(self, path: Path) -> None:
        """Load a library. Raises InputError if it is missing, or no driver of this interface."""
        self.path = path
        try:
            self._library = c.CDLL(str(path.resolve()))
            get = self._library.byoc_get_driver
        except OSError as error:
            if not path.exists():
                raise InputError(describe_missing_file(path)) from None
            raise InputError(f"{path}: not a library that can be loaded: {error}") from None
        except AttributeError:
            raise InputError(f"{path}: not a driver: it has no byoc_get_driver") from None
        get.restype, get.argtypes = c.POINTER(DriverTable), (c.c_uint32,)
        table = next(filter(None, map(get, ABI_VERSIONS)), None)
        if not table:
            raise InputError(
                f"{path}: the driver has no table for version "
                f"{' or '.join(map(str, ABI_VERSIONS[::-1]))} of byoc_driver.h"
            )
        self.abi_version: int = table.contents.abi_version
        if self.abi_version not in ABI_VERSIONS or table.contents.struct_size < c.sizeof(DriverTable):
            raise InputError(
                f"{path}: the driver's table is of no version of byoc_driver.h that is known here"
            )
        missing = [name for name, _ in DriverTable._fields_[2:] if not getattr(table.contents, name)]
        if missing:
            raise InputError(f"{path}: the driver's table has no {missing[0]}")
        self.name = bytes(table.contents.name).decode(errors="replace")
        """The codegen whose artifacts it runs."""
        self.functions = find_functions(table)
        self._free: dict[int, list[DriverBuffer]] = defaultdict(list)

    @cached_property
    def has_buffers(self) -> bool:
        """Whether tensors can stay on the device between regions."""
        return {"submit", "wait", "open_buffer", "close_buffer", "read_buffer"} <= self.functions.keys()

    def open_region(
        self, region: Region, artifact: Artifact, options: Mapping[str, str] | None = None
    ) -> "OpenedRegion":
        """Open a region, with options of the driver.

        Extents have to be known, and elements to be of whole bytes. Raises DriverError if the driver
        refuses the region or an option, InputError for what cannot cross, and for options where the
        driver takes none.
        """
        return OpenedRegion(self, region, artifact, options or {})

    def open_buffer(
        self, size: int, memory: Array | None = None, descriptor: int | None = None
    ) -> "DriverBuffer":
        """Open a buffer of `size` bytes: on the device, unless it is `memory` or has a `descriptor`.

        `memory` is an array whose address is a multiple of 64, `descriptor` that of a file which can be
        mapped. Raises InputError where the driver has no buffers, DriverError where it refuses this one.
        """
        return DriverBuffer(self, size, memory, descriptor)

    def take_buffer(self, size: int) -> "DriverBuffer":
        """Return a buffer on the device that is free, or a new one; `give_buffer` gives it back."""
        try:
            return self._free[size].pop()
        except IndexError:
            return self.open_buffer(size)

    def give_buffer(self, buffer: "DriverBuffer") -> None:
        """Keep a buffer that nobody uses for the next one of its size."""
        self._free[buffer.size].append(buffer)

    def read_versions(
        self, region: Region | None = None, artifact: Artifact | None = None
    ) -> DriverVersions:
        """Return the versions that the driver runs, or those that an artifact needs.

        Raises InputError where the driver does not tell, and DriverError where the artifact is none
        that it knows.
        """
        self.require("read_versions")
        info = None
        if region is not None and artifact is not None:
            described = DescribedRegion(region, artifact)
            info = c.byref(described.info)
        found = Versions(c.sizeof(Versions))
        self.check(self.functions["read_versions"](info, c.byref(found)), region.name if region else "")
        texts = {name: getattr(found, name) or b"" for name in VERSION_NAMES}
        return DriverVersions(**{name: text.decode(errors="replace") for name, text in texts.items()})

    def require(self, *functions: str) -> None:
        """Raise InputError unless the driver has functions of version 2."""
        for function in functions:
            if function not in self.functions:
                raise InputError(f"{self.path}: driver {self.name} has no {function}")

    def check(self, status: int, what: str, why: bytes | None = b"") -> None:
        """Raise DriverError unless a function answered that all is well."""
        if status:
            meaning = STATUSES[status] if 0 <= status < len(STATUSES) else f"status {status}"
            text = " ".join((why or b"").decode(errors="replace").split())[:_MOST_CHARACTERS] or meaning
            raise DriverError(f"driver {self.name}: {what + ': ' if what else ''}{text}", meaning)

    def check_made(self, handle: c.c_void_p, what: str, function: str) -> None:
        """Raise DriverError where a function answered that all is well, and made nothing."""
        if not handle:
            self.check(_FAILED, what, f"{function} answers that all is well, and gives nothing".encode())


class DriverBuffer:
    """Memory that a driver knows by a handle, closed with this object."""

    def __init__(
        self, library: DriverLibrary, size: int, memory: Array | None, descriptor: int | None
    ) -> None:
        """Open it. Raises as `open_buffer`."""
        library.require("open_buffer", "close_buffer")
        self.library, self.size, self._memory = library, size, memory
        kind = DEVICE_MEMORY if descriptor is None else SHARED_MEMORY
        kind = kind if memory is None else PROGRAM_MEMORY
        if memory is not None and (memory.nbytes < size or not memory.flags.c_contiguous):
            raise InputError(f"a buffer of {size} bytes is not in an array of {memory.nbytes}")
        address = None if memory is None else memory.ctypes.data
        info = BufferInfo(
            c.sizeof(BufferInfo), kind, size, address, -1 if descriptor is None else descriptor
        )
        self.handle, why = c.c_void_p(), c.c_char_p()
        library.check(
            library.functions["open_buffer"](c.byref(info), c.byref(self.handle), c.byref(why)),
            f"a buffer of {size} bytes",
            why.value,
        )
        library.check_made(self.handle, f"a buffer of {size} bytes", "open_buffer")
        weakref.finalize(self, _close_buffer, library.functions["close_buffer"], self.handle, memory)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy an array to it, `offset` bytes from its beginning. Raises DriverError where it ends."""
        self.library.require("write_buffer")
        dense = np.ascontiguousarray(array)
        status = self.library.functions["write_buffer"](
            self.handle, offset, dense.ctypes.data, dense.nbytes
        )
        self.library.check(status, f"a buffer of {self.size} bytes")

    def read(self, array: Array, offset: int = 0) -> None:
        """Fill a contiguous array with what begins at `offset`. Raises DriverError as `write`."""
        self.library.require("read_buffer")
        status = self.library.functions["read_buffer"](
            self.handle, offset, array.ctypes.data, array.nbytes
        )
        self.library.check(status, f"a buffer of {self.size} bytes")


def _close_buffer(close: Callable[[c.c_void_p], None], handle: c.c_void_p, memory: object) -> None:
    close(handle)
    del memory  # which lived until here


class DeviceTensor:
    """A tensor that a region left on the device; whoever asks numpy for it gets a copy.

    Its buffer goes back to the library with this object.
    """

    def __init__(self, buffer: DriverBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Describe the tensor at the beginning of a buffer that `take_buffer` gave."""
        self.buffer, self.dtype, self.shape = buffer, dtype, shape
        weakref.finalize(self, buffer.library.give_buffer, buffer)

    @property
    def nbytes(self) -> int:
        """The bytes that cross to or from the program: none, unless it is asked for."""
        return 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the tensor in the program's memory."""
        if copy is False:
            raise ValueError("a tensor on a device cannot be an array without a copy")
        found = np.empty(self.shape, self.dtype)
        if found.nbytes:
            self.buffer.read(found)
        return found if dtype is None else found.astype(dtype)


class OpenedRegion:
    """A region that a driver has opened: an executor, from inputs by name to outputs by name.

    It serves one call at a time, and is closed with this object. `arena_bytes` is the memory that the
    driver works in. Inputs are arrays, or tensors that a region of the same library left on the device.
    """

    def __init__(
        self, library: DriverLibrary, region: Region, artifact: Artifact, options: Mapping[str, str]
    ) -> None:
        """Lay out the region's description, and open it."""
        self.library, self.name = library, region.name
        described = self._described = DescribedRegion(region, artifact)
        self._inputs, self._outputs = described.inputs, described.outputs
        info, functions = described.info, library.functions
        if options and "open_with" not in functions:
            raise InputError(
                f"driver {library.name}: {self.name}: it takes no options, and so not "
                f"{', '.join(options)}"
            )
        why = c.c_char_p()
        library.check(functions["compatible"](c.byref(info), c.byref(why)), self.name, why.value)
        size = functions["arena_size"](c.byref(info))
        try:  # of a wrong artifact `open` says what is wrong
            self._arena = allocate_aligned(1 << 16 if size == WRONG_SIZE else size)
        except (MemoryError, OverflowError, ValueError):
            library.check(
                _FAILED, self.name, f"there is no memory for its arena of {size} bytes".encode()
            )
        self.arena_bytes = len(self._arena)
        info.arena, info.arena_bytes = self._arena.ctypes.data, self.arena_bytes
        self._handle = c.c_void_p()
        if options:
            texts = make_texts(options)
            status = functions["open_with"](c.byref(info), len(texts), texts, c.byref(self._handle))
        else:
            status = functions["open"](c.byref(info), c.byref(self._handle))
        self._running: list[Any] = []
        weakref.finalize(
            self, _close_region, library, self._handle, self._running, (described, self._arena)
        )
        self._check(status)
        library.check_made(self._handle, self.name, "open_with" if options else "open")
        if size == WRONG_SIZE:
            raise DriverError(f"{self.name}: arena_size refuses what open takes", STATUSES[2])

    def __call__(self, inputs: Mapping[str, Any], on_device: Collection[str] = ()) -> Mapping[str, Any]:
        """Run the region once; leave the outputs in `on_device` there, as DeviceTensor.

        Raises InputError for a wrong input, DriverError if it fails.
        """
        if on_device or any(isinstance(each, DeviceTensor) for each in inputs.values()):
            self.submit(inputs, on_device)
            try:
                found = self.wait()
            except BaseException:
                _settle(self.library, self._handle, self._running)
                raise
            assert found is not None
            return found
        given = [_require(self.name, inputs, *each) for each in self._inputs]
        made = {name: np.empty(shape, dtype) for name, dtype, shape in self._outputs}
        self._check(
            self.library.functions["run"](self._handle, _point_to(given), _point_to(list(made.values())))
        )
        return made

    def submit(
        self,
        inputs: Mapping[str, Any],
        on_device: Collection[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a run, whose outputs `wait` returns; those in `on_device` stay there.

        Raises InputError for a wrong input, where a run has not been waited for, and where the driver
        cannot submit; DriverError where it refuses the run.
        """
        self.library.require("submit", "wait")
        if self._running:
            raise InputError(f"{self.name}: a run has not been waited for")
        given = [_require(self.name, inputs, *each) for each in self._inputs]
        made = {
            name: DeviceTensor(self.library.take_buffer(count_bytes(dtype, shape)), dtype, shape)
            if name in on_device and count_bytes(dtype, shape)
            else np.empty(shape, dtype)
            for name, dtype, shape in self._outputs
        }
        sides = [_bind(given), _bind(list(made.values()))]
        texts = make_texts(options or {})
        call = DriverCall(c.sizeof(DriverCall), *sides, len(texts), texts, DONE(), None)
        # What the driver reads is kept until the run has ended.
        self._running.append((call, given, made, texts))
        status = self.library.functions["submit"](self._handle, c.byref(call))
        if status:
            self._running.clear()
        self._check(status)

    def wait(self, seconds: float | None = None) -> Mapping[str, Any] | None:
        """Return the outputs of the run that was submitted, None if it has not ended in so many seconds.

        Raises InputError where none was submitted, DriverError if it failed or was cancelled.
        """
        if not self._running:
            raise InputError(f"{self.name}: no run was submitted")
        limit = FOREVER if seconds is None else int(seconds * 1e9)
        status = self.library.functions["wait"](self._handle, limit)
        if status == BUSY and seconds is not None:
            return None
        _, _, made, _ = self._running.pop()
        self._check(status)
        return dict(made)

    def cancel(self) -> None:
        """Ask the run to end early; any thread may call this. Raises InputError where it cannot be."""
        self.library.require("cancel")
        self.library.functions["cancel"](self._handle)

    def read_counters(self) -> DriverCounters:
        """Return the counters. Raises InputError where the driver has none."""
        self.library.require("read_counters")
        found = Counters(c.sizeof(Counters))
        self._check(self.library.functions["read_counters"](self._handle, c.byref(found)))
        return DriverCounters(*(getattr(found, each.name) for each in fields(DriverCounters)))

    def list_events(self) -> list[DriverEvent]:
        """Return the layers of the last run, none unless it had the option `events`.

        Raises InputError where the driver has none, DriverError where the artifact names no layers.
        """
        self.library.require("list_events")
        events, count = c.POINTER(Event)(), c.c_size_t()
        status = self.library.functions["list_events"](self._handle, c.byref(events), c.byref(count))
        self.library.check(status, self.name)
        listed = events[: count.value] if events else ()
        if len(listed) < count.value or any(each.node_count and not each.nodes for each in listed):
            self.library.check(_FAILED, self.name, b"list_events counts what it does not list")
        return [
            DriverEvent(
                _read_name(each.layer),
                tuple(map(_read_name, each.nodes[: each.node_count] if each.node_count else ())),
                each.start_ns,
                each.duration_ns,
            )
            for each in listed
        ]

    def _check(self, status: int) -> None:
        """Raise DriverError with what the driver says of a failure."""
        if status:
            self.library.check(status, self.name, self.library.functions["error"](self._handle))


def _read_name(name: bytes | None) -> str:
    return (name or b"").decode(errors="replace")


def _settle(library: DriverLibrary, handle: c.c_void_p, running: list[Any]) -> None:
    """End a run whose outputs nobody wants."""
    if running:
        if "cancel" in library.functions:
            library.functions["cancel"](handle)
        library.functions["wait"](handle, FOREVER)
        running.clear()


def _close_region(
    library: DriverLibrary, handle: c.c_void_p, running: list[Any], memory: object
) -> None:
    _settle(library, handle, running)
    library.functions["close"](handle)
    del memory  # which lived until here


def _require(
    region: str, inputs: Mapping[str, Any], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Any:
    if name not in inputs:
        raise InputError(f"{region}: input '{name}' is missing")
    array = inputs[name]
    if array.dtype != dtype or array.shape != shape:
        stated = f"{dtype}{list(shape)}"
        raise InputError(
            f"{region}: '{name}' is {array.dtype}{list(array.shape)}, and has to be {stated}"
        )
    return array if isinstance(array, DeviceTensor) else np.ascontiguousarray(array)


def _bind(tensors: Sequence[Any]) -> Any:
    """Return an array of `byoc_binding`."""
    rows = [
        DriverBinding(None, each.buffer.handle, 0)
        if isinstance(each, DeviceTensor)
        else DriverBinding(each.ctypes.data, None, 0)
        for each in tensors
    ]
    return (DriverBinding * len(rows))(*rows)


def _point_to(arrays: Sequence[Array]) -> Any:
    return (c.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
