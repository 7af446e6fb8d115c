"""Running a compiled model on numpy arrays, from as many threads as one likes."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
        """Return the outputs by name, arrays of their own.

        Inputs are read where they lie, and outputs of known shape written where they are to be.
        """
        request = self._request()
        for position, (name, kind) in enumerate(zip(self.inputs, self._kinds, strict=True)):
            request.set_input_tensor(position, _tensor(inputs[name], kind))
        made = {}
        for position, name, dtype, shape in self._written:
            made[name] = np.empty(shape, dtype)
            request.set_output_tensor(position, openvino().Tensor(made[name], shared_memory=True))
        request.infer()
        return {
            value.name: made[value.name]
            if value.name in made
            else _array(request.get_output_tensor(position), value.type.dtype)
            for position, value in enumerate(self.outputs)
        }

    def _request(self) -> Any:
        if not hasattr(self.threads, "request"):
            self.threads.request = self.model.create_infer_request()
        return self.threads.request

    @cached_property
    def _kinds(self) -> list[Any]:
        return [port.element_type for port in self.model.inputs]

    @cached_property
    def _written(self) -> list[tuple[int, str, Any, tuple[int, ...]]]:
        """The outputs that OpenVINO can write into an array: position, name, dtype and shape.

        What numpy has no dtype for is taken from OpenVINO's own memory, and so is what has an open
        shape, and what is an input under another name, which OpenVINO does not copy.
        """
        passed = {name for port in self.model.inputs for name in port.names}
        return [
            (position, value.name, dtype, tuple(port.shape))
            for position, (port, value) in enumerate(zip(self.model.outputs, self.outputs, strict=True))
            if (dtype := _dtype(value.type.dtype)).isbuiltin == 1
            and port.partial_shape.is_static
            and passed.isdisjoint({value.name, *port.names})
        ]


def _tensor(value: Array, kind: Any) -> Any:
    """Return an array as a tensor, a view where it can be; foreign dtypes go as bits, copied."""
    array = np.asarray(value, order="C")
    if array.dtype.isbuiltin == 1:
        return openvino().Tensor(array, shared_memory=array.flags.writeable and array.size > 0)
    return openvino().Tensor(array.view(f"u{array.dtype.itemsize}"), list(array.shape), kind)


def _array(tensor: Any, dtype: str) -> Array:
    """Return a copy of a tensor as an array of a dtype."""
    wanted = _dtype(dtype)
    found = np.array(tensor.data)
    return found if wanted.isbuiltin == 1 else found.view(wanted)


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(NUMBERS[name]))
