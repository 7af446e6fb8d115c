"""The codegen that needs a C compiler alone: a region becomes C99 by emx-onnx-cgen, and a library.

The C source is in the artifact beside the library: what a microcontroller's tool chain takes, and what
loading compiles anew on a machine that the library was not made for.
"""

import json
from collections.abc import Sequence
from typing import Any

import onnx

from byoc.codegen import Artifact, CompileError, Executor, Region, read_options, written_options
from byoc.errors import InputError
from byoc.verdict import YES, Verdict, refuse

from .build import build, compiler_version, stamp
from .library import Program, open_functions
from .options import COptions
from .source import compiler, emit, judge, refused, take_apart

_SOURCE = "region.c"
_LIBRARY = "region.so"


class C:
    """Compiles regions to C, and runs them on this machine's CPU."""

    name = "c"
    api = 1
    Options = COptions
    concurrent = True
    recompiles = True

    def compile(self, region: Region, options: COptions) -> Artifact:
        """Return the C source and the shared library.

        Raises CompileError for an operator that emx-onnx-cgen does not emit and an extent that is not
        known, with the nodes at fault, and MissingRuntimeError without it or the C compiler.
        """
        compiler()
        parts = take_apart(region)
        arguments = [value.name for value in parts.model.graph.input]
        metadata = {
            **written_options(options),
            **stamp(options),
            "compiler": compiler_version(options),
            "arguments": json.dumps([*arguments, *parts.made]),
        }
        if not parts.made:  # nothing is computed
            return Artifact({}, metadata)
        try:
            source = emit(parts.model).encode()
        except CompileError as error:
            raise CompileError(str(error), refused(region)) from error
        return Artifact({_SOURCE: source, _LIBRARY: build(source, options)}, metadata)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the library, compiled anew where it does not fit.

        Raises InputError when the artifact is not this region's, and MissingRuntimeError where it
        takes a C compiler and there is none.
        """
        told = artifact.metadata
        parts = take_apart(region)
        inputs = [value.name for value in region.inputs]
        names = [*inputs, *parts.weights, *parts.made]
        if json.loads(told["arguments"]) != names:
            raise InputError(f"{region.name}: the C function and the region have other arguments")
        run, failed = self._functions(region, artifact, len(names)) if parts.made else (None, None)
        weights = list(parts.weights.values())
        return Program(run, failed, inputs, weights, parts.made, parts.known, region.outputs)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the library was made for a machine like this one."""
        if _LIBRARY not in artifact.files:
            return YES
        for name, mark in stamp(_options(artifact)).items():
            made = artifact.metadata.get(name, "another")
            if made != mark:
                return refuse(f"the library was made for the {name} {made}, and here is {mark}")
        return YES

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return for each node whether emx-onnx-cgen emits C for it, or its reason."""
        return judge(model)

    def _functions(self, region: Region, artifact: Artifact, count: int) -> tuple[Any, Any]:
        if self.compatible(region, artifact):
            try:
                return open_functions(artifact.files[_LIBRARY], count)
            except OSError:  # made for another libc, or damaged
                pass
        return open_functions(build(artifact.files[_SOURCE], _options(artifact)), count)


def _options(artifact: Artifact) -> COptions:
    """Return the options that an artifact was compiled with."""
    told = artifact.metadata
    return read_options(COptions, {name: told[name] for name in COptions.__dataclass_fields__})
