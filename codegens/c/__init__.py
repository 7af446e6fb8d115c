"""The codegen that needs only a C compiler: emx-onnx-cgen makes C99 of a region, compiled to a library.

The artifact has the C source beside the library, for a microcontroller's tool chain, and for compiling
again on a computer that the library is not for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from byoc.codegen import (
    YES,
    AnyArray,
    Artifact,
    CompileError,
    Executor,
    Fit,
    InputError,
    NotHereError,
    OperatorTime,
    Region,
    Verdict,
    format_options,
    read_options,
    refuse,
)

from .c_compiler import (
    COptions,
    add_clock,
    compile_library,
    compiler_version,
    describe_compiler,
    find_fit,
    find_misfit,
    is_cross_compiled,
    library_stamp,
)
from .c_source import (
    CExecutor,
    check_nodes,
    compiler,
    emit_source,
    find_functions,
    have_same_source,
    load_functions,
    open_library,
    refused_nodes,
    separate_region,
)

__all__ = ["C"]


_SOURCE = "region.c"
_LIBRARY = "region.so"


class C:
    """Codegen that compiles regions to C, and runs them on the CPU."""

    name = "c"
    api = 4
    Options = COptions
    concurrent = True
    recompiles = True
    native = True  # a shared library
    parallel = True  # most of the time goes by in the C compiler
    libraries = ("emx-onnx-cgen",)

    def compile(self, region: Region, options: COptions) -> Artifact:
        """Return the C source and the shared library.

        Raises CompileError for an operator that emx-onnx-cgen does not support and for an unknown
        extent, with the nodes at fault, and MissingRuntimeError without emx-onnx-cgen or the C compiler.
        """
        compiler()
        parts = separate_region(region)
        arguments = [value.name for value in parts.model.graph.input]
        metadata = {
            **format_options(options),
            "compiler": compiler_version(options),
            "arguments": json.dumps([*arguments, *parts.made]),
        }
        if not parts.made:  # nothing is computed
            return Artifact({}, metadata)
        try:
            source = emit_source(parts.model).encode()
            library = compile_library(source, options)
        except CompileError as error:
            nodes = error.nodes or refused_nodes(region, options)
            raise CompileError(str(error), nodes, lasting=error.lasting) from error
        metadata |= library_stamp(library, options)
        return Artifact({_SOURCE: source, _LIBRARY: library}, metadata)

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: COptions
    ) -> Artifact | None:
        """Return the source and library of `first`, whose arguments are then the constants of `region`.

        Those that are in the source have to be equal, else it returns None.
        """
        parts = separate_region(region)
        if not have_same_source(parts, separate_region(first)):
            return None
        arguments = [*(value.name for value in parts.model.graph.input), *parts.made]
        return Artifact(artifact.files, {**artifact.metadata, "arguments": json.dumps(arguments)})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the library, compiled again if it is for another computer.

        Raises InputError if the artifact is not for this region, NotHereError if a cross compiler made
        the library for another machine, and MissingRuntimeError if a C compiler is needed and there is
        none.
        """
        metadata = artifact.metadata
        parts = separate_region(region)
        inputs = [value.name for value in region.inputs]
        names = [*inputs, *parts.weights, *parts.made]
        if json.loads(metadata["arguments"]) != names:
            raise InputError(f"{region.name}: the C function and the region have other arguments")
        run, failed = self._functions(region, artifact, len(names)) if parts.made else (None, None)
        weights = list(parts.weights.values())
        return CExecutor(run, failed, inputs, weights, parts.made, parts.known, region.outputs)

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        """Return the seconds of each function of the C source, compiled again with a clock around it.

        Raises as `load` does.
        """
        if _SOURCE not in artifact.files:
            return []  # nothing is computed
        parts = separate_region(region)
        timed = add_clock(artifact.files[_SOURCE].decode(), parts.model)
        # The user's own compiler, as in `load`.
        opened = open_library(compile_library(timed.source.encode(), read_options(COptions, {})))
        count = len(region.inputs) + len(parts.weights) + len(parts.made)
        names, weights = [value.name for value in region.inputs], list(parts.weights.values())
        functions = find_functions(opened, count)
        run = CExecutor(*functions, names, weights, parts.made, parts.known, region.outputs)
        for _ in range(2):  # the first run does not count
            run(inputs)
        return [
            OperatorTime(nodes, seconds, name)
            for (name, nodes), seconds in zip(timed.functions, timed.read(opened), strict=True)
        ]

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether the library is for this computer, or there is a compiler for the C source.

        Raises InputError where the metadata is not this codegen's, as `load` does.
        """
        _ = metadata["arguments"]
        return find_fit(_LIBRARY in files, metadata)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the library was compiled for a computer like this one."""
        if _LIBRARY not in artifact.files:
            return YES
        misfit = find_misfit(artifact.metadata)
        return refuse(misfit) if misfit else YES

    def cache_key(self, options: COptions) -> dict[str, str]:
        """Return the C compiler's version and path, and the environment variables that it reads.

        Raises MissingRuntimeError as `compile` does.
        """
        return describe_compiler(options)

    def check(self, model: onnx.ModelProto, options: COptions) -> Sequence[Verdict]:
        """Return for each node whether emx-onnx-cgen supports it and cc has its types, or the reason."""
        return check_nodes(model, options)

    def _functions(self, region: Region, artifact: Artifact, count: int) -> tuple[Any, Any]:
        verdict = self.compatible(region, artifact)
        if not verdict and is_cross_compiled(artifact.metadata):
            raise NotHereError(str(verdict))
        if verdict:
            try:
                return load_functions(artifact.files[_LIBRARY], count)
            except OSError as error:  # made for another libc, or damaged
                if is_cross_compiled(artifact.metadata):
                    raise NotHereError(f"the library cannot be loaded: {error}") from error
        # The user's own compiler: nothing in a bundle chooses a command.
        options = read_options(COptions, {})
        return load_functions(compile_library(artifact.files[_SOURCE], options), count)
