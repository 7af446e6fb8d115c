"""The codegen for Apache TVM: its ONNX importer, its compiler by LLVM, and its virtual machine.

An artifact is a shared library for this kind of machine, weights included.
"""

from collections.abc import Mapping, Sequence

import onnx

from byoc.codegen import (
    YES,
    Artifact,
    CompileError,
    Executor,
    Fit,
    NotHereError,
    Region,
    Verdict,
    count_bits,
    format_options,
    node_names,
    read_stored_options,
    refuse,
)

from .tvm_library import (
    TVMExecutor,
    TVMOptions,
    check_nodes,
    compile_region,
    describe_processor_problem,
    find_fit,
    load_function,
    read_stamp,
    tvm_version,
)

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
