"""The codegen for OpenVINO: it compiles a region, stores it as a blob, and runs the blob.

A blob is valid for the build of OpenVINO and the kind of CPU that are named in its stamp. Anywhere else
the region is compiled again on loading, from its ONNX model beside the blob.

Quantized operators are computed in integers, or in floats with their roundings. Where a CPU has no
instructions for sums of products of 8 bits (VNNI), OpenVINO's kernels add pairs of products in 16 bits,
which saturate: 255 * 127 + 255 * 127 gives 32,767. Weights of half the range are right everywhere.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from byoc.codegen import (
    NOTE,
    YES,
    AnyArray,
    Artifact,
    CompileError,
    CompileProcess,
    Executor,
    Fit,
    OperatorTime,
    Region,
    Verdict,
    build_node,
    count_bits,
    find_refused_nodes,
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
    openvino_core,
    openvino_package,
    save_region,
    select_properties,
    state_defaults,
)
from .openvino_options import OpenVINOOptions

# Check nodes one by one with OpenVINO, in another process because a model may crash it.

_PATIENCE = 600.0  # seconds for all nodes


def check_nodes(model: onnx.ModelProto, options: OpenVINOOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether OpenVINO's device reads and compiles it."""
    openvino_core()  # raise here if it is not installed
    answers = _make_process(replace(options, threads=1)).check_nodes(model, state_defaults)
    return [refuse(each.reason) if each.reason else YES for each in answers]


def refused_nodes(region: Region, options: OpenVINOOptions) -> list[str]:
    """Return the nodes of a region that OpenVINO does not compile alone; none if that is unknown."""
    return find_refused_nodes(region.load, lambda model: check_nodes(model, options))


def compiles_safely(region: Region, options: OpenVINOOptions) -> bool:
    """Return whether OpenVINO compiles a region, or refuses it, without crashing."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        save_region(region, Path(folder) / "0.onnx")
        (answer,) = _make_process(options).run(Path(folder), 1)
    return answer.lasting


def _make_process(options: OpenVINOOptions) -> CompileProcess:
    given = ("answer", json.dumps(format_options(options)))
    return CompileProcess("OpenVINO", f"{__package__}.openvino_worker", given, _PATIENCE)


_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention")
_INTEGERS = ("QLinearConv", "QLinearMatMul")
_MOST = 64  # two products of 255 by such a weight fit into 16 bits, 255 * 64 * 2 = 32,640
_LARGEST = (255, 127)  # of uint8 and int8
_OPSET = 13  # ONNX opset with scales by axis


def choose_exact_options(region: Region, options: OpenVINOOptions) -> OpenVINOOptions:
    """Return the options with which a region is computed exactly on this machine.

    They are without `integers` where sums of integers saturate here, and the region has factors that
    make them so. Other devices than the CPU are taken to add in 32 bits.
    """
    if not options.integers or options.device != "CPU" or not _is_quantized(region):
        return options
    if _has_wide_factors(region) and _saturates():
        return replace(options, integers=False)
    return options


def choose_safe_options(region: Region, options: OpenVINOOptions) -> OpenVINOOptions:
    """Return the options with which OpenVINO compiles a region, or refuses it, without a crash.

    With integer arithmetic it crashes on some quantized models (2026.4.1: a Concat that is quantized
    twice with a zero point), so compiling is tried in another process first.
    """
    if not options.integers or not _is_quantized(region):
        return options
    for safe in (options, replace(options, integers=False)):
        if compiles_safely(region, safe):
            return safe
    why = "OpenVINO crashes when it compiles this"
    raise CompileError(why, refused_nodes(region, options), lasting=False)


def _list_nodes(region: Region) -> Iterator[onnx.NodeProto]:
    """Yield a region's nodes, those inside of composites as well."""
    yield from region.nodes
    for function in region.model.functions:
        yield from function.node


def _is_quantized(region: Region) -> bool:
    return any(node.op_type in ("QuantizeLinear", *_INTEGERS) for node in _list_nodes(region))


def _has_wide_factors(region: Region) -> bool:
    """Return whether some factor of a product may have more than half the range of int8.

    What is not a constant of 8 bits may: another activation, or weights that nodes quantize.
    """
    weights = [each for each in region.constants if each.type.dtype in ("int8", "uint8")]
    weights = [each for each in weights if (each.type.elements or 0) > 1]
    products = [node for node in _list_nodes(region) if node.op_type in (*_PRODUCTS, *_INTEGERS)]
    if len(weights) < len(products):
        return True
    return any(
        int(np.abs(region.constant(each.name).astype(np.int16)).max()) > _MOST for each in weights
    )


@cache
def _saturates() -> bool:
    """Return whether a sum of two products of the largest uint8 and int8 is wrong on this CPU."""
    activation, weight = _LARGEST
    constants = {
        "scale": np.float32(1),
        "x_zero": np.uint8(0),
        "w_zero": np.int8(0),
        "w": np.full((1, 2, 1, 1), weight, np.int8),
    }
    graph = helper.make_graph(
        [
            build_node("QuantizeLinear", ["x", "scale", "x_zero"], ["q"]),
            build_node("DequantizeLinear", ["q", "scale", "x_zero"], ["d"]),
            build_node("DequantizeLinear", ["w", "scale", "w_zero"], ["e"]),
            build_node("Conv", ["d", "e"], ["y"]),
        ],
        "probe",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 1, 1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, 1, 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    probe = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = OpenVINOOptions(threads=1)
    read = openvino_core().read_model(probe.SerializeToString())
    compiled = openvino_core().compile_model(read, options.device, select_properties(options))
    made = compiled([np.full((1, 2, 1, 1), activation, np.float32)])[0]
    return int(made.reshape(())) != 2 * activation * weight


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
        """Return whether OpenVINO is installed, and whether it compiles the region again.

        Raises InputError where the metadata is not this codegen's, as `load` does.
        """
        read_stored_options(OpenVINOOptions, metadata)
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
