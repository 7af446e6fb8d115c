"""The codegen that needs a C compiler alone: a region becomes C99 by emx-onnx-cgen, and a library.

The C source is in the artifact beside the library: what a microcontroller's tool chain takes, and what
loading compiles anew on a machine that the library was not made for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from byoc.codegen import Artifact, Executor, Region, read_options, written_options
from byoc.errors import InputError
from byoc.verdict import Verdict

from .build import build, compiler_version, stamp
from .library import Program, open_functions
from .options import COptions
from .source import emit, judge, take_apart

_SOURCE = "region.c"
_LIBRARY = "region.so"


class C:
    """Compiles regions to C, and runs them on this machine's CPU."""

    name = "c"
    Options = COptions

    def compile(self, region: Region, options: COptions) -> Artifact:
        """Return the C source and the shared library.

        Raises CompileError for an option that there is not, an operator that emx-onnx-cgen does not
        emit, an extent that is not known, and a C compiler that is missing.
        """
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
        source = emit(parts.model).encode()
        return Artifact({_SOURCE: source, _LIBRARY: build(source, options)}, metadata)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the library, compiled anew where it does not fit.

        Raises InputError when the artifact is not this region's, and CompileError without a compiler.
        """
        told = artifact.metadata
        parts = take_apart(region)
        inputs = [value.name for value in region.inputs]
        names = [*inputs, *parts.weights, *parts.made]
        if json.loads(told["arguments"]) != names:
            raise InputError(f"{region.name}: the C function and the region have other arguments")
        run, failed = _functions(artifact, len(names)) if parts.made else (None, None)
        weights = list(parts.weights.values())
        return Program(run, failed, inputs, weights, parts.made, parts.known, region.outputs)

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return for each node whether emx-onnx-cgen emits C for it, or its reason."""
        return judge(model)


def _functions(artifact: Artifact, count: int) -> tuple[Any, Any]:
    told = artifact.metadata
    options = read_options(COptions, {name: told[name] for name in COptions.__dataclass_fields__})
    if all(told.get(name) == mark for name, mark in stamp(options).items()):
        try:
            return open_functions(artifact.files[_LIBRARY], count)
        except OSError:  # made for another libc, or damaged
            pass
    return open_functions(build(artifact.files[_SOURCE], options), count)
