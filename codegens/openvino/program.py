"""Running a compiled model on numpy arrays, from as many threads as one likes."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc.codegen import Contract
from byoc.graph.types import NUMBERS

from .device import openvino

Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled model, called as an executor is.

    `inputs` are the names of its inputs in order, `outputs` are the region's. A request holds the
    tensors of one run, so each thread has one of its own.
    """

    model: Any
    inputs: Sequence[str]
    outputs: Sequence[Contract]
    threads: threading.local = field(default_factory=threading.local)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name, arrays of their own."""
        request = self._request()
        for position, name in enumerate(self.inputs):
            kind = self.model.inputs[position].element_type
            request.set_input_tensor(position, _tensor(inputs[name], kind))
        request.infer()
        return {
            value.name: _array(request.get_output_tensor(position), value.type.dtype)
            for position, value in enumerate(self.outputs)
        }

    def _request(self) -> Any:
        if not hasattr(self.threads, "request"):
            self.threads.request = self.model.create_infer_request()
        return self.threads.request


def _tensor(value: Array, kind: Any) -> Any:
    """Return a copy of an array as a tensor; dtypes that numpy itself does not have go as bits."""
    array = np.asarray(value, order="C")
    if array.dtype.isbuiltin == 1:
        return openvino().Tensor(array)
    return openvino().Tensor(array.view(f"u{array.dtype.itemsize}"), list(array.shape), kind)


def _array(tensor: Any, dtype: str) -> Array:
    """Return a copy of a tensor as an array of a dtype."""
    wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(NUMBERS[dtype]))
    found = np.array(tensor.data)
    return found if wanted.isbuiltin == 1 else found.view(wanted)
