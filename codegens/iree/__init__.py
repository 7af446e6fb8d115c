"""The codegen for IREE: a compiler for CPUs of four kinds, for CUDA, for Vulkan, and for an interpreter.

An artifact is a module for the target that was chosen, weights included. What is for this machine runs
here; the rest is compiled here and runs elsewhere, by IREE's runtime and without Python.
"""

from collections.abc import Mapping, Sequence

import onnx

from byoc.codegen import (
    YES,
    Artifact,
    CompileError,
    Executor,
    Fit,
    Region,
    Verdict,
    format_options,
    node_names,
    read_stored_options,
    refuse,
)

from .iree_executor import (
    IREEOptions,
    can_cross,
    check_nodes,
    compile_region,
    compiler_version,
    find_fit,
    load_module,
    processor_stamp,
    runtime_version,
)

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
