"""Load a shared library, and call its function with numpy arrays."""

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byoc.codegen import AnyArray, InputError, TensorContract, TensorType, to_numpy_dtype

from .c_source import ENTRY, FAILED


@dataclass(frozen=True, eq=False)
class CExecutor:
    """The function of a region as an executor.

    `failed` returns whether the last call of this thread ran out of memory; it is None if the function
    allocates none. The arguments of the function are the region's inputs, named in `arguments`, then
    `weights`, then the outputs `made`; `known` are outputs that are constants. The function has no
    state, so threads may call it concurrently.
    """

    function: Any
    failed: Any
    arguments: Sequence[str]
    weights: Sequence[AnyArray]
    made: Sequence[str]
    known: Mapping[str, AnyArray]
    outputs: Sequence[TensorContract]

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own."""
        given = [np.asarray(inputs[name], order="C") for name in self.arguments]
        types = {value.name: value.type for value in self.outputs}
        made = {name: _zero_array(types[name]) for name in self.made}
        if made:
            arrays = [*given, *self.weights, *made.values()]
            self.function(*(array.ctypes.data for array in arrays))
            if self.failed is not None and self.failed():
                raise InputError("there is not enough memory for intermediate results")
        passed = {name: inputs[name].copy() for name in types if name in inputs}
        return {**passed, **{name: value.copy() for name, value in self.known.items()}, **made}


def load_functions(library: bytes, count: int) -> tuple[Any, Any]:
    """Return the function of a shared library, which takes `count` pointers, and the check for failures.

    The check is None if the function allocates no memory. Raises OSError if the library cannot be
    loaded.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.so"
        path.write_bytes(library)
        try:
            opened = ctypes.CDLL(str(path))  # stays loaded when the file is deleted
        except UnicodeError:  # ctypes decodes the linker's message, which has the path
            raise OSError("the linker does not open it") from None
    function = getattr(opened, ENTRY)
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * count
    try:
        failed = getattr(opened, FAILED)
    except (AttributeError, UnicodeError):  # as above
        failed = None
    return function, failed


def _zero_array(kind: TensorType) -> AnyArray:
    shape: Any = kind.shape  # all extents are known
    return np.zeros(shape, to_numpy_dtype(kind.dtype))
