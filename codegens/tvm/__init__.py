"""The codegen for Apache TVM: its ONNX importer, its compiler by LLVM, and its virtual machine.

An artifact is a shared library for this kind of machine, weights included.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    count_bits,
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

_PATIENCE = 1800.0  # seconds for one region, or all nodes of a model
_PRELOAD = ("tvm.relax.frontend.onnx", "byoc.codegen")  # 4 s of the processor, and compiles take 0.2
_MAX_CHARACTERS = 300  # of TVM's message in a sentence
_COMPILED = "0.so"
_FUNCTION = "main"
_ANY = "generic"

# What the levels of the x86-64 psABI (section "Micro-Architecture Levels") add, as Linux names it.
_LEVELS = {
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    "x86-64-v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}
_X86 = {"x86_64", "AMD64"}


@dataclass(frozen=True)
class TVMOptions:
    """Options of the codegen `tvm`.

    `target` is what processor regions are compiled for: `host` is the highest level of x86-64 that this
    one has, `generic` any of this machine's kind. `level` is how hard TVM and LLVM optimize.
    """

    target: Literal["host", "generic", "x86-64-v2", "x86-64-v3", "x86-64-v4"] = field(
        default="host", metadata={"help": "the processor to compile for; generic: any of this kind"}
    )
    level: Literal[0, 1, 2, 3] = field(default=3, metadata={"help": "how hard the compiler tries"})

    @property
    def processor(self) -> str:
        """The name of the target's processor."""
        return find_processor() if self.target == "host" else self.target


@cache
def find_processor() -> str:
    """Return the highest level of x86-64 that this processor has, `generic` for other kinds.

    LLVM's own name of the host is not taken: it goes by the model, and says more than a virtual machine
    lets through.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _ANY
    able = set(next((line for line in lines if line.startswith("flags")), "").split())
    found = _ANY
    for name, wanted in _LEVELS.items():
        if platform.machine() not in _X86 or not wanted <= able:
            break
        found = name
    return found


def describe_processor_problem(processor: str) -> str:
    """Return why code for a processor cannot run here, nothing where it can."""
    order = [_ANY, *_LEVELS]
    if order.index(processor) > order.index(find_processor()):
        return f"compiled for {processor}, and this processor is {find_processor()}"
    return ""


def read_stamp(options: TVMOptions) -> dict[str, str]:
    """Return the marks of a library by name: TVM's version, the kind of machine, the processor."""
    return {
        "tvm": tvm_version(),
        "machine": platform.machine(),
        "processor": options.processor,
    }


@cache
def tvm_version() -> str:
    """Return the version of TVM. Raises MissingRuntimeError if it is not installed."""
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        raise MissingRuntimeError(describe_missing("tvm", "tvm")) from None


@cache
def tvm_package() -> Any:
    """Return TVM. Raises MissingRuntimeError if it is not installed."""
    try:
        import tvm  # noqa: PLC0415 - optional, and takes a second
    except ImportError:
        raise MissingRuntimeError(describe_missing("tvm", "tvm")) from None
    return tvm


def find_fit(options: TVMOptions, metadata: Mapping[str, str]) -> Fit:
    """Return whether a library loads here, as far as that is known without loading TVM.

    One of another version or machine is compiled again for the same target.
    """
    here = find_library("tvm", "apache-tvm")
    if here is None:
        return Fit.without(describe_missing("tvm", "tvm"))
    fit = Fit(
        f"TVM {here}",
        accepts=f"TVM {metadata.get('tvm', '')}",
        machine=f"{metadata.get('machine', '')} {metadata.get('processor', '')}".strip(),
    )
    problem = describe_processor_problem(options.processor)
    if problem:
        return replace(fit, verdict=refuse(problem))
    stamp = {"tvm": here, "machine": platform.machine(), "processor": options.processor}
    for name, mark in stamp.items():
        if metadata.get(name) != mark:
            made = metadata.get(name, "another")
            return replace(fit, again=f"the library was made for {name} {made}, but this is {mark}")
    return fit


def compile_region(region: Region, options: TVMOptions) -> bytes:
    """Return the compiled library of a region.

    Raises CompileError with TVM's reason and the nodes that it refuses alone.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        model = region.load(fold=True, inline=True)
        onnx.save(model, Path(folder) / "0.onnx", save_as_external_data=True, location="weights.bin")
        (answer,) = _make_process(options, link=True).run(Path(folder), 1)
        if not answer.reason:
            return (Path(folder) / _COMPILED).read_bytes()
    nodes = find_refused_nodes(
        lambda: region.load(fold=True, inline=True), lambda model: check_nodes(model, options)
    )
    raise CompileError(_shorten_message(answer.reason), nodes, lasting=answer.lasting)


def check_nodes(model: onnx.ModelProto, options: TVMOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether TVM compiles it alone."""
    tvm_version()
    answers = _make_process(options, link=False).check_nodes(model)
    return [refuse(_shorten_message(each.reason)) if each.reason else YES for each in answers]


def _make_process(options: TVMOptions, link: bool) -> CompileProcess:
    given = {"processor": options.processor, "level": options.level, "link": link}
    arguments = (json.dumps(given),)
    return CompileProcess("TVM", f"{__package__}.compile_worker", arguments, _PATIENCE, _PRELOAD)


def _shorten_message(text: str) -> str:
    """Return the sentence in which TVM says why, without its dumps of code."""
    return shorten_text(f"TVM refuses: {_first_line(text)}", _MAX_CHARACTERS)


def _first_line(text: str) -> str:
    return next(filter(None, map(str.strip, text.splitlines())), "no reason is given")


@dataclass(frozen=True, eq=False)
class TVMExecutor:
    """A compiled library as an executor; one run at a time, since TVM's virtual machine has state."""

    function: Any
    inputs: Sequence[TensorContract]
    outputs: Sequence[TensorContract]

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own."""
        made = run_function(self.function, [inputs[value.name] for value in self.inputs])
        return {
            value.name: array.astype(to_numpy_dtype(value.type.dtype), copy=False)
            for value, array in zip(self.outputs, made, strict=True)
        }


def load_function(library: bytes) -> Any:
    """Return the function of a compiled library. Raises InputError if TVM does not take it."""
    tvm = tvm_package()
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / _COMPILED
        path.write_bytes(library)
        try:
            with _drop_messages():
                module = tvm.runtime.load_module(str(path))
                return tvm.runtime.vm.VirtualMachine(module, tvm.cpu())[_FUNCTION]
        except (AttributeError, RuntimeError, ValueError) as error:
            raise InputError(f"TVM does not load the library: {_first_line(str(error))}") from None


@contextmanager
def _drop_messages() -> Iterator[None]:
    """Drop what goes to the standard error of the process meanwhile, from C++ as well.

    TVM 0.27 writes a warning for each scope of memory that a library names.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def run_function(function: Any, arrays: Sequence[AnyArray]) -> list[AnyArray]:
    """Run a function of TVM's virtual machine, and return the arrays that it makes."""
    runtime = tvm_package().runtime
    made = function(*map(runtime.tensor, arrays))
    results = [made] if isinstance(made, runtime.Tensor | runtime.ShapeTuple) else made
    return [_to_array(each) for each in results]


def _to_array(result: Any) -> AnyArray:
    """Return a copy of a tensor, or of a shape, which TVM keeps as numbers."""
    return result.numpy() if hasattr(result, "numpy") else np.array([*result], np.int64)


__all__ = ["TVM"]

_LIBRARY = "region.so"


class TVM:
    """Codegen that compiles regions with TVM, and runs them."""

    name = "tvm"
    api = 4
    Options = TVMOptions
    native = True  # a library holds machine code
    parallel = True  # most of the time goes by in the compiler's own processes
    libraries = ("apache-tvm",)

    def compile(self, region: Region, options: TVMOptions) -> Artifact:
        """Return the compiled library with its stamp.

        Raises CompileError if TVM refuses the region, and MissingRuntimeError without TVM.
        """
        tvm_version()
        for value in (*region.inputs, *region.outputs):
            if count_bits(value.type.dtype) < 8:
                touching = [node for node in region.nodes if value.inner in (*node.input, *node.output)]
                why = f"'{value.name}' is {value.type}: types of less than a byte do not cross"
                raise CompileError(why, node_names(touching))
        library = compile_region(region, options)
        return Artifact({_LIBRARY: library}, {**format_options(options), **read_stamp(options)})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the library.

        Raises NotHereError if it is for a processor that can do more than this one.
        """
        problem = describe_processor_problem(artifact.metadata["processor"])
        if problem:
            raise NotHereError(problem)
        return TVMExecutor(load_function(artifact.files[_LIBRARY]), region.inputs, region.outputs)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether TVM is installed, and the processor can do what the library needs."""
        return find_fit(read_stored_options(TVMOptions, metadata), metadata)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the library was made by this TVM for a processor such as this one."""
        options = read_stored_options(TVMOptions, artifact.metadata)
        for name, mark in read_stamp(options).items():
            made = artifact.metadata.get(name, "another")
            if made != mark:
                return refuse(f"the library was made for {name} {made}, but this is {mark}")
        return YES

    def cache_key(self, options: TVMOptions) -> dict[str, str]:
        """Return the kind of processor that `host` stands for."""
        return {"processor": options.processor}

    def check(self, model: onnx.ModelProto, options: TVMOptions) -> Sequence[Verdict]:
        """Return for each node whether TVM compiles it, or TVM's reason."""
        return check_nodes(model, options)
