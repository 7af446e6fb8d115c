"""The codegen for IREE: a compiler for CPUs of four kinds, for CUDA, for Vulkan, and for an interpreter.

An artifact is a module for the target that was chosen, weights included. What is for this machine runs
here; the rest is compiled here and runs elsewhere, by IREE's runtime and without Python.
"""

import hashlib
import json
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from byoc.codegen import (
    YES,
    AnyArray,
    Artifact,
    CompileError,
    CompileProcess,
    Executor,
    Fit,
    InputError,
    MissingRuntimeError,
    NotHereError,
    Region,
    TensorContract,
    Verdict,
    describe_missing,
    find_library,
    find_refused_nodes,
    format_options,
    node_names,
    read_stored_options,
    refuse,
    shorten_text,
    to_numpy_dtype,
)

# Compile regions and single nodes with IREE, in a worker process since a model may crash it.

# Options of the codegen `iree`, and IREE's flags for them.

_TRIPLES = {
    "x86_64": "x86_64-unknown-linux-eabi-elf",
    "aarch64": "aarch64-unknown-linux-eabi-elf",
    "riscv64": "riscv64-unknown-linux-eabi-elf",
    "wasm32": "wasm32-unknown-unknown",
}
_MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}  # as other systems name them
_FEATURES = {"riscv64": "+m,+a,+f,+d,+c", "wasm32": "+simd128"}
_PROCESSORS = {"cuda": "sm_80", "vulkan": "vp_android_baseline_2022"}


@dataclass(frozen=True)
class IREEOptions:
    """Options of the codegen `iree`.

    `target` is what regions are compiled for; `host` is this computer with all that its processor can
    do. `processor` and `features` say more about a target: a CPU and its features by their names in
    LLVM, CUDA's architecture, Vulkan's target. With `threads` 1 a run keeps to the thread that calls;
    with 0 IREE starts as many as it likes. `level` is how hard the compiler tries. `im2col` computes
    convolutions as products of matrices.
    """

    target: Literal["host", "x86_64", "aarch64", "riscv64", "wasm32", "vulkan", "cuda", "vmvx"] = field(
        default="host", metadata={"help": "what to compile for; vmvx is IREE's interpreter"}
    )
    processor: str = field(
        default="",
        metadata={"help": "LLVM's name of a CPU, CUDA's architecture or Vulkan's target; empty: any"},
    )
    features: str = field(default="", metadata={"help": "LLVM's features of a CPU: +v,+zvl256b"})
    threads: Literal[0, 1] = field(
        default=0,
        metadata={"help": "1: runs keep to the thread that calls; 0 leaves it to IREE", "at_load": True},
    )
    level: Literal["O0", "O1", "O2", "O3"] = field(
        default="O2", metadata={"help": "how hard the compiler tries"}
    )
    im2col: bool = field(default=True, metadata={"help": "compute convolutions as products of matrices"})

    @property
    def machine(self) -> str:
        """The target, and for `host` the name of this machine."""
        if self.target != "host":
            return self.target
        return _MACHINES.get(platform.machine(), platform.machine())

    @property
    def is_for_this_cpu(self) -> bool:
        """Whether the code may use all that this processor can do."""
        return (self.target == "host" and not self.processor) or self.processor == "host"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of IREE's compiler.

        Debug symbols name a temporary file, and with them no two artifacts of a region are the same.
        """
        return (
            "--iree-input-type=onnx",
            f"--iree-opt-level={self.level}",
            "--iree-opt-data-tiling=false",
            f"--iree-global-opt-use-im2col-for-convs={str(self.im2col).lower()}",
            "--iree-vm-bytecode-module-strip-source-map=true",
            "--iree-vm-emit-polyglot-zip=false",
            *self._target_flags,
        )

    @property
    def _target_flags(self) -> tuple[str, ...]:
        processor = self.processor or _PROCESSORS.get(self.target, "")
        if self.target == "cuda":
            return ("--iree-hal-target-device=cuda", f"--iree-cuda-target={processor}")
        if self.target == "vulkan":
            return ("--iree-hal-target-device=vulkan", f"--iree-vulkan-target={processor}")
        backend = "vmvx" if self.target == "vmvx" else "llvm-cpu"
        local = (
            "--iree-hal-target-device=local",
            f"--iree-hal-local-target-device-backends={backend}",
        )
        return local if self.target == "vmvx" else (*local, *self._cpu_flags)

    @property
    def _cpu_flags(self) -> tuple[str, ...]:
        abi = ("--iree-llvmcpu-target-abi=lp64d",) if self.machine == "riscv64" else ()
        common = ("--iree-llvmcpu-debug-symbols=false", *abi)
        if self.is_for_this_cpu:
            return (*common, "--iree-llvmcpu-target-cpu=host")
        return (
            *common,
            f"--iree-llvmcpu-target-triple={_TRIPLES.get(self.machine, self.machine)}",
            f"--iree-llvmcpu-target-cpu={self.processor or 'generic'}",
            f"--iree-llvmcpu-target-cpu-features={self.features or _FEATURES.get(self.machine, '')}",
        )


_PATIENCE = 1800.0  # seconds for one region, or all nodes of a model
_MAX_CHARACTERS = 300  # of IREE's message in a sentence
_MARK = "byoc-node-"
_AT_NODE = re.compile(rf'"{_MARK}(\d+)"')
_ERROR = re.compile(r"^.*?\berror: (?:loc\([^)]*\): )?(.*)$", re.MULTILINE)
_NO_LOWERING = re.compile(r"failed to legalize operation '([\w.]+)'(?:.*?\bname = \"(onnx\.\w+)\")?")


@cache
def compiler_version() -> str:
    """Return the version of IREE's compiler. Raises MissingRuntimeError if it is not installed."""
    try:
        return version("iree-base-compiler")
    except PackageNotFoundError:
        raise MissingRuntimeError(describe_missing("iree", "iree")) from None


def compile_region(region: Region, options: IREEOptions) -> bytes:
    """Return the compiled module of a region.

    Raises CompileError with IREE's reason and the nodes at fault, as far as they are known.
    """
    model = region.load(fold=True, inline=True)
    names = node_names(model.graph.node)
    for number, node in enumerate(model.graph.node):
        node.name = f"{_MARK}{number}"  # which messages then name
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "0.onnx"
        onnx.save(model, path, save_as_external_data=True, location="weights.bin")
        (answer,) = make_process(options).run(Path(folder), 1)
        if not answer.reason:
            return path.with_suffix(".vmfb").read_bytes()
    found = {
        names[int(number)] for number in _AT_NODE.findall(answer.reason) if int(number) < len(names)
    }
    nodes = [name for name in names if name in found] or _refused_nodes(region, options)
    raise CompileError(_shorten_message(answer.reason), nodes, lasting=answer.lasting)


def check_nodes(model: onnx.ModelProto, options: IREEOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether IREE compiles it alone."""
    compiler_version()
    answers = make_process(options).check_nodes(model)
    return [refuse(_shorten_message(each.reason)) if each.reason else YES for each in answers]


def _refused_nodes(region: Region, options: IREEOptions) -> list[str]:
    """Return the nodes of a region that IREE does not compile alone; none if that is unknown."""

    def load() -> onnx.ModelProto:
        return region.load(fold=True, inline=True)

    return find_refused_nodes(load, lambda model: check_nodes(model, options))


def make_process(options: IREEOptions) -> CompileProcess:
    """Return the process that compiles by these options."""
    flags = json.dumps(options.flags)
    return CompileProcess("IREE", f"{__package__}.compile_worker", (flags,), _PATIENCE)


def _shorten_message(text: str) -> str:
    """Return the sentence in which IREE says why, without its dumps of code."""
    errors = _ERROR.findall(text)
    first = errors[0] if errors else " ".join(text.split())
    missing = _NO_LOWERING.match(first)
    if missing:
        return f"IREE has no lowering for {missing[2] or missing[1]}"
    return shorten_text(f"IREE refuses: {first}", _MAX_CHARACTERS)


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
        raise MissingRuntimeError(describe_missing("iree", "iree")) from None
    return package


def runtime_version() -> str:
    """Return the version of IREE's runtime. Raises MissingRuntimeError if it is not installed."""
    runtime_package()
    return version("iree-base-runtime")


def find_fit(options: IREEOptions, stamp: Mapping[str, str], metadata: Mapping[str, str]) -> Fit:
    """Return whether a module loads here, as far as that is known without loading IREE.

    One of another version or processor is compiled again, where IREE's compiler is installed. `stamp`
    has the marks of this processor that the module depends on.
    """
    here = find_library("iree.runtime", "iree-base-runtime")
    if here is None:
        return Fit.without(describe_missing("iree", "iree"))
    fit = Fit(f"IREE {here}", accepts=f"IREE {metadata.get('iree', '')}", machine=options.machine)
    if options.machine in {"cuda", "vulkan"}:
        fit = replace(fit, unknown=f"whether there is a device for {options.machine}")
    elif options.machine not in {"vmvx", IREEOptions().machine}:
        why = f"compiled for {options.machine}, and this is {IREEOptions().machine}"
        return replace(fit, verdict=refuse(why))
    for name, mark in {**stamp, "iree": here}.items():
        made = metadata.get(name, "another")
        if made == mark:
            continue
        again = f"the module was made for {name} {made}, but this is {mark}"
        if find_library("iree.compiler", "iree-base-compiler") is None:
            why = f"{again}, and IREE's compiler, which would compile it again, is not installed"
            return replace(fit, verdict=refuse(why))
        return replace(fit, again=again)
    return fit


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


__all__ = ["IREE"]

_MODULE = "region.vmfb"


class IREE:
    """Codegen that compiles regions with IREE, and runs those that are for this machine."""

    name = "iree"
    api = 4
    Options = IREEOptions
    native = True  # a module holds machine code
    parallel = True  # most of the time goes by in the compiler's own processes
    libraries = ("iree-base-compiler",)

    def compile(self, region: Region, options: IREEOptions) -> Artifact:
        """Return the compiled module with its stamp.

        Raises CompileError if IREE refuses the region, and MissingRuntimeError without IREE.
        """
        compiler = compiler_version()
        for value in (*region.inputs, *region.outputs):
            if not can_cross(value.type.dtype):
                touching = [node for node in region.nodes if value.inner in (*node.input, *node.output)]
                why = f"'{value.name}' is {value.type}: IREE's buffers have no such type"
                raise CompileError(why, node_names(touching))
        module = compile_region(region, options)
        return Artifact(
            {_MODULE: module}, {**format_options(options), **_stamp(options), "iree": compiler}
        )

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the module.

        Raises NotHereError if it is for another machine, or a device that is missing here.
        """
        options = read_stored_options(IREEOptions, artifact.metadata)
        return load_module(artifact.files[_MODULE], options, region.inputs, region.outputs)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether IREE's runtime is installed, and the module is for this machine."""
        options = read_stored_options(IREEOptions, metadata)
        return find_fit(options, _stamp(options), metadata)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the module was compiled for this processor and can be run by this IREE.

        What is for another kind of machine is not judged here, but by `load`.
        """
        options = read_stored_options(IREEOptions, artifact.metadata)
        for name, mark in {**_stamp(options), "iree": runtime_version()}.items():
            made = artifact.metadata.get(name, "another")
            if made != mark:
                return refuse(f"the module was made for {name} {made}, but this is {mark}")
        return YES

    def cache_key(self, options: IREEOptions) -> dict[str, str]:
        """Return the processor, where the code may use all that it can do."""
        return _stamp(options)

    def check(self, model: onnx.ModelProto, options: IREEOptions) -> Sequence[Verdict]:
        """Return for each node whether IREE compiles it for the target, or IREE's reason."""
        return check_nodes(model, options)


def _stamp(options: IREEOptions) -> dict[str, str]:
    if not options.is_for_this_cpu:
        return {}
    return {"machine": options.machine, "processor_hash": processor_stamp()}
