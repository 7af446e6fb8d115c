"""The codegen for OpenVINO: it compiles a region, stores it as a blob, and runs the blob.

A blob is valid for the build of OpenVINO and the kind of CPU that are named in its stamp. Anywhere else
the region is compiled again on loading, from its ONNX model beside the blob.
"""

import json
import os
from collections.abc import Mapping, Sequence

import onnx

from byoc.codegen import (
    NOTE,
    YES,
    AnyArray,
    Artifact,
    CompileError,
    Executor,
    Fit,
    OperatorTime,
    Region,
    Verdict,
    count_bits,
    format_options,
    node_names,
    read_stored_options,
    refuse,
)

from .openvino_blob import (
    OpenVINOExecutor,
    check_weight_offsets,
    choose_weights,
    describe_embedded_weights,
    export_blob,
    find_weight_file,
)
from .openvino_device import (
    compile_region_model,
    device_stamp,
    find_fit,
    import_blob,
    openvino_package,
)
from .openvino_integers import check_nodes, choose_exact_options, choose_safe_options, refused_nodes
from .openvino_options import OpenVINOOptions

__all__ = ["OpenVINO"]


_BLOB = "region.blob"
_VARIABLES = ("OV_", "ONEDNN_", "DNNL_")  # the environment variables that OpenVINO reads begin so
_MARKS = {
    "openvino": "OpenVINO",
    "device_name": "the device",
    "device_abilities": "a device that can do",
}


class OpenVINO:
    """Codegen that compiles regions with OpenVINO, and runs them."""

    name = "openvino"
    api = 4
    Options = OpenVINOOptions
    concurrent = True
    recompiles = True
    native = True  # a blob of a GPU or an NPU holds compiled code, and OpenVINO does not check blobs
    libraries = ("openvino",)
    refers_to_weights = True  # a blob reads them from the file in which they are already
    recovery_options = ({"integers": "false"},)  # integer kernels saturate where a CPU has no VNNI

    def compile(self, region: Region, options: OpenVINOOptions) -> Artifact:
        """Return the compiled blob with its stamp; without it where it is large or imported wrongly.

        Raises CompileError if OpenVINO refuses the region, with the nodes that it refuses alone, and
        MissingRuntimeError without OpenVINO or the device.
        """
        openvino_package()
        for value in (*region.inputs, *region.outputs):
            if count_bits(value.type.dtype) < 8:
                touching = [node for node in region.nodes if value.inner in (*node.input, *node.output)]
                raise CompileError(
                    f"'{value.name}' is {value.type}: packed types do not cross",
                    node_names(touching),
                )
        marks = device_stamp(options.device)
        options = choose_safe_options(region, choose_exact_options(region, options))
        weights = choose_weights(region, options)
        try:
            model, inputs = compile_region_model(region, options, weights.properties)
        except CompileError as error:
            raise CompileError(str(error), refused_nodes(region, options)) from error
        blob, reason = export_blob(region, model, inputs, options, weights)
        metadata = {**format_options(options), **marks, "inputs": json.dumps(inputs)}
        if blob is None:
            told = {NOTE: f"what is compiled is not stored, and loading compiles it: {reason}"}
            return Artifact({}, {**metadata, **(told if options.blob else {})})
        note = describe_embedded_weights(region, blob, weights)
        notes = {NOTE: note} if note else {}
        return Artifact({_BLOB: blob}, {**metadata, **weights.metadata, **notes})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the blob, or the region compiled again if the blob is not valid.

        It is not where integers saturate here and did not where the blob was made.

        Raises CompileError as `compile` does.
        """
        stored = read_stored_options(OpenVINOOptions, artifact.metadata)
        options = choose_exact_options(region, stored)
        model = None
        if _BLOB in artifact.files and options == stored and self.compatible(region, artifact):
            weights = find_weight_file(region, artifact)
            further = {} if weights is None else weights.properties
            model = import_blob(artifact.files[_BLOB], options, further)
        if model is not None:
            return OpenVINOExecutor(model, json.loads(artifact.metadata["inputs"]), region.outputs)
        model, inputs = compile_region_model(region, options)
        return OpenVINOExecutor(model, inputs, region.outputs)

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        """Return OpenVINO's time of each operation of the region, which is compiled again to measure.

        Layers that it fused are one operation. Raises CompileError as `compile` does.
        """
        stored = read_stored_options(OpenVINOOptions, artifact.metadata)
        options = choose_exact_options(region, stored)
        model, names = compile_region_model(region, options, {"PERF_COUNT": True})
        found = OpenVINOExecutor(model, names, region.outputs).profile(inputs)
        inlined = region.load(inline=True).graph.node
        known = {name for node in inlined for name in (node.name, *node.output) if name}
        return [
            OperatorTime(tuple(each for each in layers if each in known), seconds, name)
            for name, (layers, seconds) in found.items()
        ]

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether OpenVINO is installed, and whether it compiles the region again."""
        return find_fit(_BLOB in files, metadata)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the blob was made by this OpenVINO for a device like this one.

        The weights that it reads from a file have to lie where they lay. An artifact without a blob is
        compatible. Raises MissingRuntimeError as `compile` does.
        """
        if _BLOB not in artifact.files:
            return YES
        for name, mark in device_stamp(
            read_stored_options(OpenVINOOptions, artifact.metadata).device
        ).items():
            made = artifact.metadata.get(name, "nothing")
            if made != mark:
                what = _MARKS[name]
                return refuse(f"the blob was made for {what} {made}, but this is {mark}")
        return check_weight_offsets(region, artifact)

    def cache_key(self, options: OpenVINOOptions) -> dict[str, str]:
        """Return the marks of a device other than the CPU, and OpenVINO's environment variables.

        Raises MissingRuntimeError as `compile` does, unless the device is the CPU: what the cache has of
        that is found without loading OpenVINO.
        """
        marks = {} if options.device == "CPU" else device_stamp(options.device)
        return {**marks, **{k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}}

    def check(self, model: onnx.ModelProto, options: OpenVINOOptions) -> Sequence[Verdict]:
        """Return for each node whether OpenVINO compiles it, or OpenVINO's reason."""
        return check_nodes(model, options)
