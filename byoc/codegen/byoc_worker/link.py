"""Messages between byoc and a worker process: frames on a socket, large data in shared memory.

A frame is its length (8 bytes, little-endian) and that many bytes. Answers are JSON, since the code that
runs in a worker is not trusted. Arrays and file contents are in the shared memory, and a message says
where. The memory is read and written by system calls and never mapped: its size may be changed by the
other side at any time.

This file also runs in other interpreters, from Python 3.8 on, with numpy alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from inspect import signature
from math import prod
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from . import Bytes, Record

if TYPE_CHECKING:
    import socket

    from numpy.typing import NDArray


LENGTH_BYTES = 8  # in front of each message, little endian
MOST_ANSWER_BYTES = 1 << 28

_MOST_DIMENSIONS = 32  # as many as an array of numpy 1 may have
_STRING = "string"
_KEPT_BYTES = 1 << 26

_NUMPY_DTYPES = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
# The others are of the package ml_dtypes. Where it has not got one, its elements are unsigned integers.
_STAND_INS = {
    "bfloat16": "uint16",
    **dict.fromkeys(
        (
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
            *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int4", "uint4", "int2", "uint2"),
        ),
        "uint8",
    ),
}


class BrokenMessageError(Exception):
    """A message cannot be read: it is not of the form that byoc writes."""


class SharedMemory:
    """A file without a name that two processes share, written from the start by each message.

    On Linux it is in memory (memfd_create(2)), elsewhere a removed temporary file.
    """

    def __init__(self, descriptor: int) -> None:
        """Use an open file."""
        self.descriptor = descriptor
        self._end = 0

    @classmethod
    def create(cls) -> SharedMemory:
        """Create an empty one. Raises OSError."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("byoc"))
        descriptor, path = tempfile.mkstemp(prefix="byoc-")
        Path(path).unlink()
        return cls(descriptor)

    def clear(self) -> None:
        """Begin a message: what was written before may be overwritten."""
        if self._end > _KEPT_BYTES:
            os.ftruncate(self.descriptor, 0)
        self._end = 0

    def write(self, content: Any) -> dict[str, int]:
        """Write bytes, or an array's; return where they are."""
        view = memoryview(content).cast("B")
        start = self._end
        while view:
            count = os.pwrite(self.descriptor, view, self._end)
            view, self._end = view[count:], self._end + count
        return {"start": start, "size": self._end - start}

    def read(self, location: Any) -> NDArray[np.uint8]:
        """Return the bytes at a location. Raises BrokenMessageError where there are none."""
        start, size = (_require_count(location, key) for key in ("start", "size"))
        if start + size > os.fstat(self.descriptor).st_size:
            raise BrokenMessageError("it names bytes that are not there")
        content = np.empty(size, np.uint8)
        view = content.data
        while view:
            count = os.preadv(self.descriptor, [view], start)
            if not count:
                raise BrokenMessageError("it names bytes that are not there")
            view, start = view[count:], start + count
        return content


def write_array(value: Any, memory: SharedMemory, declared: str = "") -> dict[str, Any]:
    """Write an array into the memory; return its dtype, shape and location.

    Strings are JSON texts there. An array of unsigned integers is of the `declared` dtype where they
    stand in for it. Raises TypeError for a dtype that no tensor has.
    """
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    entry = {"shape": list(array.shape), "writeable": bool(array.flags.writeable)}
    if array.dtype.kind in "OSU":
        texts = json.dumps([_encode_string(each) for each in array.reshape(-1).tolist()])
        return {**entry, "dtype": _STRING, **memory.write(texts.encode())}
    dtype = declared if _STAND_INS.get(declared) == str(array.dtype) else str(array.dtype)
    if find_dtype(dtype) is None:
        raise TypeError(f"{array.dtype} is not the type of a tensor")
    flat = np.ascontiguousarray(array).reshape(-1)
    return {**entry, "dtype": dtype, **memory.write(flat.view(np.uint8))}


def write_time(name: str, nodes: Any, time: Any) -> list[Any]:
    """Return the time of an operation as JSON: its name, its nodes, and seconds or cycles and hertz."""
    numbers = [time.count, time.hertz] if hasattr(time, "hertz") else [time]
    return [name, list(nodes), [float(each) for each in numbers]]


def read_array(entry: Any, memory: SharedMemory) -> NDArray[Any]:
    """Return the array of an entry that `write_array` made. Raises BrokenMessageError."""
    content = memory.read(entry)
    dtype, shape = _require(entry, "dtype", str), _require(entry, "shape", list)
    if len(shape) > _MOST_DIMENSIONS or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise BrokenMessageError("it has an array without a shape")
    if dtype == _STRING:
        array = _decode_strings(content.tobytes(), prod(shape))
    else:
        kind = find_dtype(dtype)
        if kind is None:
            raise BrokenMessageError("it has an array of no type that a tensor has")
        if prod(shape) * kind.itemsize != content.size:
            raise BrokenMessageError("it has an array of another size than its shape says")
        # A boolean is a byte of 0 or 1, and numpy counts on it.
        array = content != 0 if kind == np.bool_ else content.view(kind)
    result = array.reshape(shape)
    result.flags.writeable = bool(entry.get("writeable", True))
    return result


@lru_cache(maxsize=None)
def find_dtype(name: str) -> np.dtype[Any] | None:
    """Return the dtype of a tensor by numpy's name for it, None where tensors have no such one."""
    if name in _NUMPY_DTYPES:
        return np.dtype(name)
    if name not in _STAND_INS:
        return None
    try:
        import ml_dtypes  # noqa: PLC0415 - it need not be there

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        found = np.dtype(_STAND_INS[name])
    return found


def _encode_string(value: Any) -> str:
    """Return a text as JSON takes it, its first character saying whether it was bytes."""
    if isinstance(value, str):
        return f"s{value}"
    if isinstance(value, bytes):
        return f"b{value.decode('latin-1')}"
    raise TypeError(f"{type(value).__name__} is not the type of an element of a tensor of strings")


def _decode_strings(content: bytes, count: int) -> NDArray[Any]:
    texts = parse_answer(content)
    if not isinstance(texts, list) or len(texts) != count:
        raise BrokenMessageError("it has an array of another size than its shape says")
    array = np.empty(count, object)
    for number, text in enumerate(texts):
        if not isinstance(text, str) or text[:1] not in {"s", "b"}:
            raise BrokenMessageError("it has a string that is none")
        try:
            array[number] = text[1:] if text[0] == "s" else text[1:].encode("latin-1")
        except UnicodeEncodeError:
            raise BrokenMessageError("it has a string that is none") from None
    return array


def write_files(files: Mapping[str, bytes], memory: SharedMemory) -> list[Any]:
    """Write the files of an artifact; return their names and locations."""
    return [[name, memory.write(content)] for name, content in files.items()]


def read_files(entries: Any, memory: SharedMemory) -> dict[str, bytes]:
    """Read the files that `write_files` wrote. Raises BrokenMessageError."""
    return {name: memory.read(location).tobytes() for name, location in read_pairs(entries)}


def read_pairs(entries: Any) -> list[tuple[str, Any]]:
    """Return a list of pairs whose first is a text. Raises BrokenMessageError for anything else."""
    if not isinstance(entries, list):
        raise BrokenMessageError("a list is missing")
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise BrokenMessageError("a pair of a name and what it names is missing")
    return [(name, value) for name, value in entries]


def read_texts(entries: Any) -> list[str]:
    """Return a list of texts. Raises BrokenMessageError for anything else."""
    if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
        raise BrokenMessageError("a list of texts is missing")
    return entries


def parse_answer(content: bytes) -> Any:
    """Parse JSON that a worker wrote. Raises BrokenMessageError."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BrokenMessageError("it is not JSON") from None


def send_frame(link: socket.socket, content: bytes) -> None:
    """Send a frame. Raises OSError when the other side is gone or does not read in time."""
    link.sendall(len(content).to_bytes(LENGTH_BYTES, "little"))
    link.sendall(content)


def receive_frame(link: socket.socket) -> bytes:
    """Wait for a frame that is trusted, and return it; empty where the other side is gone."""
    length = int.from_bytes(_receive_bytes(link, LENGTH_BYTES), "little")
    return _receive_bytes(link, length)


def _receive_bytes(link: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _require(entry: Any, key: str, kind: type) -> Any:
    found = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(found, kind):
        raise BrokenMessageError(f"'{key}' is missing")
    return found


def _require_count(entry: Any, key: str) -> int:
    found = _require(entry, key, int)
    if isinstance(found, bool) or found < 0:
        raise BrokenMessageError(f"'{key}' is missing")
    return int(found)


def end_with_parent(life: int) -> None:
    """Have this process and all that it started killed as soon as the other end of a pipe is closed.

    Linux does so even while a codegen's code keeps the interpreter busy (fcntl(2), F_SETSIG).
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    if not hasattr(fcntl, "F_SETSIG"):
        Thread(target=_await_end, args=(life,), daemon=True).start()
        return
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed meanwhile
        os.killpg(0, signal.SIGKILL)


def _await_end(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


# Values that cross between byoc and a codegen in another Python: records of regions, and options.

_TYPES = {str: "str", Path: "str", int: "int", Bytes: "bytes", float: "float", bool: "bool"}
_CHECK_OPTIONS = 3
"""The version of the codegen interface from which on `check` is handed options."""


class OptionsError(Exception):
    """The options of a codegen are refused by the class that declares them."""


def read_value(value: Any, memory: SharedMemory) -> Any:
    """Return a value of byoc's; arrays and bytes are in the memory.

    Lists, mappings and records are JSON objects of one key.
    """
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return read_array(content, memory)
    if kind == "bytes":
        return memory.read(content).tobytes()
    if kind == "map":
        return {name: read_value(each, memory) for name, each in content}
    if kind == "record":
        name, attributes = content
        return Record(name, {key: read_value(each, memory) for key, each in attributes.items()})
    items = [read_value(each, memory) for each in content]
    return tuple(items) if kind == "tuple" else items


def describe_options(kind: Any) -> list[dict[str, Any]] | None:
    """Describe the fields of a codegen's `Options`, None where it has not got any.

    Raises TypeError for what is no dataclass, and for a field that cannot be given as text.
    """
    if kind is None:
        return None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError("its `Options` is not a dataclass")
    types = get_type_hints(kind)
    return [_describe_option(each, types[each.name]) for each in fields(kind) if each.init]


def make_options(codegen: Any, given: Mapping[str, Any]) -> Any:
    """Make a codegen's options of values. Raises OptionsError where its class refuses them."""
    kind = getattr(codegen, "Options", None)
    if kind is None:
        return dict(given)
    types = get_type_hints(kind)
    try:
        return kind(**{name: _convert(value, types[name]) for name, value in given.items()})
    except Exception as error:  # the class's own checks
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise OptionsError(f"codegen {codegen.name} refuses its options: {text}") from None


def takes_check_options(codegen: Any) -> bool:
    """Return whether `check` takes options: from version 3 on, without a version by its parameters."""
    version = getattr(codegen, "api", None)
    if version is not None:
        return bool(version >= _CHECK_OPTIONS)
    try:
        signature(codegen.check).bind("what is asked about", "options")
    except (TypeError, ValueError):
        return False
    return True


def _describe_option(field: Field[Any], annotation: Any) -> dict[str, Any]:
    kind, choices, optional = _describe_type(annotation, field.name)
    required = field.default is MISSING and field.default_factory is MISSING
    default = None
    if not required:
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
    default = default.value if isinstance(default, Enum) else default
    return {
        "name": field.name,
        "type": kind,
        "choices": choices,
        "optional": optional,
        "required": required,
        "default": str(default) if isinstance(default, Path) else default,
        "help": str(field.metadata.get("help", "")),
        "executes": bool(field.metadata.get("executes")),
        "at_load": bool(field.metadata.get("at_load")),
    }


def _describe_type(annotation: Any, name: str) -> tuple[str, list[Any], bool]:
    """Return the name of a field's type, its choices, and whether it may be None."""
    inner, optional = _split_optional(annotation)
    if get_origin(inner) is Literal:
        return "choice", list(get_args(inner)), optional
    if isinstance(inner, type) and issubclass(inner, Enum):
        return "choice", [member.value for member in inner], optional
    if inner in _TYPES:
        return _TYPES[inner], [], optional
    raise TypeError(f"its option '{name}' is a {annotation}, which cannot be given as text")


def _split_optional(annotation: Any) -> tuple[Any, bool]:
    parts = get_args(annotation)
    # `X | None` of Python 3.10 is of another class than Optional[X].
    is_union = get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    left = [part for part in parts if part is not type(None)]
    if is_union and len(left) == 1 and len(parts) == 2:
        return left[0], True
    return annotation, False


def _convert(value: Any, annotation: Any) -> Any:
    inner, _ = _split_optional(annotation)
    if value is not None and isinstance(inner, type) and issubclass(inner, (Enum, Path, Bytes)):
        return inner(value)
    return value
