"""Run a compiled model on numpy arrays, from any number of threads."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from byoc.codegen import AnyArray, TensorContract, to_numpy_dtype

from .openvino_device import openvino_package


@dataclass(frozen=True, eq=False)
class OpenVINOExecutor:
    """A compiled model as an executor.

    `inputs` are the names of its inputs in order, `outputs` those of the region. A request holds the
    tensors of one run, so each thread has its own.
    """

    model: Any
    inputs: Sequence[str]
    outputs: Sequence[TensorContract]
    threads: threading.local = field(default_factory=threading.local)

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own.

        Inputs are not copied, and outputs of known shape are written directly to the result.
        """
        request = self._thread_request()
        for position, (name, kind) in enumerate(zip(self.inputs, self._element_types, strict=True)):
            request.set_input_tensor(position, _to_tensor(inputs[name], kind))
        made = {}
        for position, name, dtype, shape in self._preallocated:
            made[name] = np.empty(shape, dtype)
            request.set_output_tensor(
                position, openvino_package().Tensor(made[name], shared_memory=True)
            )
        request.infer()
        return {
            value.name: made[value.name]
            if value.name in made
            else _to_array(request.get_output_tensor(position), value.type.dtype)
            for position, value in enumerate(self.outputs)
        }

    def _thread_request(self) -> Any:
        if not hasattr(self.threads, "request"):
            self.threads.request = self.model.create_infer_request()
        return self.threads.request

    @cached_property
    def _element_types(self) -> list[Any]:
        return [port.element_type for port in self.model.inputs]

    @cached_property
    def _preallocated(self) -> list[tuple[int, str, Any, tuple[int, ...]]]:
        """The outputs that OpenVINO can write into an array: position, name, dtype and shape.

        Not among them are dtypes that numpy lacks, open shapes, and inputs under another name, which
        OpenVINO does not copy; they are copied from OpenVINO's memory.
        """
        passed = {name for port in self.model.inputs for name in port.names}
        return [
            (position, value.name, dtype, tuple(port.shape))
            for position, (port, value) in enumerate(zip(self.model.outputs, self.outputs, strict=True))
            if (dtype := to_numpy_dtype(value.type.dtype)).isbuiltin == 1
            and port.partial_shape.is_static
            and passed.isdisjoint({value.name, *port.names})
        ]


def _to_tensor(value: AnyArray, kind: Any) -> Any:
    """Return an array as a tensor, a view if possible; dtypes that numpy lacks are copied as bits.

    OpenVINO knows one of C's types for each width: `long`, but not `long long`, which onnxruntime's
    int64 tensors have. numpy's own name for the width leads to the one that it knows.
    """
    array = np.asarray(value, order="C")
    if array.dtype.isbuiltin == 1:
        array = array.view(np.dtype(array.dtype.name))
        return openvino_package().Tensor(array, shared_memory=array.flags.writeable and array.size > 0)
    return openvino_package().Tensor(array.view(f"u{array.dtype.itemsize}"), list(array.shape), kind)


def _to_array(tensor: Any, dtype: str) -> AnyArray:
    """Return a copy of a tensor as an array of a dtype."""
    wanted = to_numpy_dtype(dtype)
    found = np.array(tensor.data)
    return found if wanted.isbuiltin == 1 else found.view(wanted)
