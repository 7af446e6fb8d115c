"""Run a compiled module on numpy arrays."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from byoc.codegen import (
    AnyArray,
    InputError,
    MissingRuntimeError,
    NotHereError,
    TensorContract,
    to_numpy_dtype,
)

from .iree_compile import IREEOptions

_MISSING = (
    "iree is not installed (pip install 'onnx-byoc[iree]'; "
    "--codegen reference runs on onnxruntime instead)"
)
_FUNCTION = "region"
_ELEMENTS = {
    **{"float16": "FLOAT_16", "float32": "FLOAT_32", "float64": "FLOAT_64", "bfloat16": "BFLOAT_16"},
    **{f"{sign}int{bits}": f"INT_{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "BOOL_8",
}
"""The element types of IREE's buffers: integers have no sign there."""


def can_cross(dtype: str) -> bool:
    """Return whether tensors of a dtype can be handed to IREE and taken back."""
    return dtype in _ELEMENTS


@dataclass(frozen=True, eq=False)
class IREEExecutor:
    """A compiled module as an executor; one run at a time, since the context of a module has state."""

    context: Any
    function: Any
    device: Any
    inputs: Sequence[TensorContract]
    outputs: Sequence[TensorContract]

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own."""
        runtime = runtime_package()
        given = runtime.VmVariantList(len(self.inputs))
        for value in self.inputs:
            given.push_ref(self._to_buffer(inputs[value.name], value.type.dtype))
        made = runtime.VmVariantList(len(self.outputs))
        self.context.invoke(self.function, given, made)
        return {
            value.name: self._to_array(
                made.get_as_object(position, runtime.HalBufferView), value.type.dtype
            )
            for position, value in enumerate(self.outputs)
        }

    def _to_buffer(self, array: AnyArray, dtype: str) -> Any:
        """Return an array as a buffer of the device; its bytes are handed over flat, its shape apart."""
        runtime = runtime_package()
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer = self.device.allocator.allocate_buffer_copy(
            memory_type=runtime.MemoryType.DEVICE_LOCAL,
            allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
            device=self.device,
            buffer=flat,
        )
        kind = getattr(runtime.HalElementType, _ELEMENTS[dtype])
        return runtime.HalBufferView(buffer, array.shape, kind)

    def _to_array(self, view: Any, dtype: str) -> AnyArray:
        """Return a copy of a buffer as an array of a dtype."""
        wanted = to_numpy_dtype(dtype)
        shape = tuple(view.shape)
        if 0 in shape:
            return np.empty(shape, wanted)
        size = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
        flat = self._to_mappable(view.get_buffer()).map().asarray([size], np.dtype(np.uint8))
        return np.array(flat).view(wanted).reshape(shape)

    def _to_mappable(self, buffer: Any) -> Any:
        """Return a buffer if this process can map its memory, else a copy in memory that it can map.

        `DeviceArray` of IREE 3.13 copies into memory of numpy, which Vulkan refuses by its alignment.
        """
        runtime = runtime_package()
        usage, memory = runtime.BufferUsage, runtime.MemoryType
        if buffer.allowed_usage() & int(usage.MAPPING_SCOPED):
            return buffer
        copy = self.device.allocator.allocate_buffer(
            memory_type=memory.HOST_LOCAL | memory.DEVICE_VISIBLE,
            allowed_usage=usage.TRANSFER_TARGET | usage.MAPPING_SCOPED,
            allocation_size=buffer.byte_length(),
        )
        semaphore = self.device.create_semaphore(0)
        start, end = (runtime.HalFence.create_at(semaphore, time) for time in (0, 1))
        self.device.queue_copy(buffer, copy, wait_semaphores=start, signal_semaphores=end)
        end.wait()
        return copy


@cache
def runtime_package() -> Any:
    """Return IREE's runtime. Raises MissingRuntimeError if it is not installed."""
    try:
        import iree.runtime as package  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    return package


def runtime_version() -> str:
    """Return the version of IREE's runtime. Raises MissingRuntimeError if it is not installed."""
    runtime_package()
    return version("iree-base-runtime")


def load_module(
    code: bytes,
    options: IREEOptions,
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
) -> IREEExecutor:
    """Return a function that runs a compiled module on the device that it is for.

    Raises NotHereError if there is no such device, and InputError if IREE does not take the module.
    """
    runtime = runtime_package()
    device = _open_device(_find_driver(options), options.machine)
    instance = runtime.VmInstance()
    try:
        module = runtime.VmModule.copy_buffer(instance, code)
        context = runtime.VmContext(instance, [runtime.create_hal_module(instance, device), module])
        function = module.lookup_function(_FUNCTION)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"IREE does not load the module: {error}") from None
    if function is None:
        raise InputError(f"the module has no function '{_FUNCTION}'")
    return IREEExecutor(context, function, device, inputs, outputs)


def _find_driver(options: IREEOptions) -> str:
    """Return IREE's driver for what was compiled. Raises NotHereError if this is another machine."""
    machine = options.machine
    if machine in {"cuda", "vulkan"}:
        return machine
    if machine not in {"vmvx", IREEOptions().machine}:
        raise NotHereError(f"compiled for {machine}, and this is {IREEOptions().machine}")
    return "local-sync" if options.threads == 1 else "local-task"


@cache
def _open_device(driver: str, machine: str) -> Any:
    try:
        return runtime_package().get_device(driver)
    except (RuntimeError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise NotHereError(f"there is no device for {machine} here: {first}") from None


def processor_stamp() -> str:
    """Return a hash of the instruction sets of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    able = next((line for line in lines if line.startswith(("flags", "Features", "isa"))), "")
    return hashlib.sha256(able.encode()).hexdigest()[:16]
