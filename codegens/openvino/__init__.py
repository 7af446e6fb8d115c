"""The codegen for OpenVINO: a region is compiled by it, stored as a blob, and run from that.

A blob fits the build of OpenVINO and the kind of CPU that it was made with, which its stamp names.
Anywhere else the region is compiled anew when it is loaded, from its ONNX model beside the blob.
"""

import json
from collections.abc import Mapping, Sequence

import onnx

from byoc.codegen import Artifact, CompileError, Executor, Region, read_options, written_options
from byoc.graph.types import bits
from byoc.verdict import Verdict

from .device import compiled, imported, stamp
from .options import OpenVINOOptions
from .oracle import ask
from .program import Program

_BLOB = "region.blob"


class OpenVINO:
    """Compiles regions with OpenVINO, and runs them."""

    name = "openvino"
    Options = OpenVINOOptions

    def compile(self, region: Region, options: OpenVINOOptions) -> Artifact:
        """Return the compiled blob with its stamp.

        Raises CompileError for an option that there is not, and for what OpenVINO does not take.
        """
        for value in (*region.inputs, *region.outputs):
            if bits(value.type.dtype) < 8:
                raise CompileError(f"'{value.name}' is {value.type}: packed types do not cross")
        marks = stamp(options.device)
        model, inputs = compiled(region, options)
        files = {_BLOB: model.export_model().getvalue()} if options.blob else {}
        metadata = {**written_options(options), **marks, "inputs": json.dumps(inputs)}
        return Artifact(files, metadata)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the blob, or the region compiled anew where it does not fit.

        Raises CompileError as `compile` does.
        """
        told = artifact.metadata
        options = read_options(
            OpenVINOOptions, {name: told[name] for name in OpenVINOOptions.__dataclass_fields__}
        )
        marks = stamp(options.device)
        model = None
        if _BLOB in artifact.files and all(told.get(name) == mark for name, mark in marks.items()):
            model = imported(artifact.files[_BLOB], options)
        if model is not None:
            return Program(model, json.loads(told["inputs"]), region.outputs)
        model, inputs = compiled(region, options)
        return Program(model, inputs, region.outputs)

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return for each node whether OpenVINO compiles it, or OpenVINO's reason."""
        return ask(model)
