"""A shared library loaded, its function called with numpy arrays."""

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc.codegen import Value
from byoc.graph.types import NUMBERS

from .source import ENTRY

Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Program:
    """A region's function, called as an executor is.

    `arguments` are the names of the region's inputs in the function's order, `weights` the constants
    that follow, `made` the outputs at the end; `known` are those of the region's `outputs` that are
    constants. The function keeps nothing between calls, so threads may call it at once.
    """

    function: Any
    arguments: Sequence[str]
    weights: Sequence[Array]
    made: Sequence[str]
    known: Mapping[str, Array]
    outputs: Sequence[Value]

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name, arrays of their own."""
        given = [np.asarray(inputs[name], order="C") for name in self.arguments]
        types = {value.name: value.type for value in self.outputs}
        made = {name: _empty(types[name].dtype, types[name].shape) for name in self.made}
        if made:
            arrays = [*given, *self.weights, *made.values()]
            self.function(*(array.ctypes.data for array in arrays))
        passed = {name: inputs[name].copy() for name in types if name in inputs}
        return {**passed, **{name: value.copy() for name, value in self.known.items()}, **made}


def open_function(library: bytes, count: int) -> Any:
    """Return the function of a shared library that takes so many pointers. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.so"
        path.write_bytes(library)
        function = getattr(ctypes.CDLL(str(path)), ENTRY)  # stays when the file goes
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * count
    return function


def _empty(dtype: str, shape: Any) -> Array:
    return np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(NUMBERS[dtype]))
