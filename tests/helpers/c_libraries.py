"""Exported programs as libraries in this process: built, and run on arrays."""

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_HANDLE_BYTES = 1 << 12  # the structure of a model without regions has three pointers


def build_library(out: Path, command: Sequence[str], objects: Sequence[str] = ()) -> Path:
    """Build a program without its main function; `objects` are some of its files, compiled already."""
    compiled = {Path(each).stem for each in objects}
    own = [path.name for path in sorted(out.glob("*.c")) if path.stem not in {"main", *compiled}]
    library = out / f"model_{len(list(out.glob('*.so')))}.so"  # a loaded one is not replaced
    arguments = [
        *command,
        "-fPIC",
        "-shared",
        "-DBYOC_LINKED",
        *own,
        *objects,
        "-lm",
        "-o",
        library.name,
    ]
    subprocess.run(arguments, cwd=out, check=True, capture_output=True)
    return library


def run_library(
    library: Path, inputs: Sequence[Any], outputs: Mapping[str, Any], sizes: Sequence[int] = ()
) -> Mapping[str, Any]:
    """Run a program's library on arrays, into arrays that are returned.

    `sizes` are those of its open dimensions. Raises ValueError where it refuses them.
    """
    model = ctypes.CDLL(str(library))
    model.model_arena_bytes.restype = ctypes.c_size_t
    weights = _align(np.fromfile(library.parent / "weights.bin", np.uint8))
    handle, size = ctypes.create_string_buffer(_HANDLE_BYTES), ctypes.c_size_t(weights.size)
    needed = model.model_arena_bytes(_point(weights), size)
    arena = _align(np.zeros(max(needed, 1), np.uint8))
    assert not model.model_open(handle, _point(weights), size, _point(arena), ctypes.c_size_t(needed))
    given = [np.array(each, order="C") for each in inputs]
    pointers = [
        (ctypes.c_void_p * max(len(each), 1))(*map(_point, each)) for each in (given, outputs.values())
    ]
    given_sizes = [(ctypes.c_int64 * len(sizes))(*sizes)] if sizes else []
    failed = model.model_run(handle, *given_sizes, *pointers)
    model.model_error.restype = ctypes.c_char_p
    message = model.model_error(handle).decode()
    model.model_close(handle)  # its threads end
    if failed:
        raise ValueError(message)
    return outputs


def _align(array: Any) -> Any:
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    found = room[start : start + array.nbytes]
    found[:] = array
    return found


def _point(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
