"""Access to OpenVINO: read a region, compile it, and shorten its error messages."""

import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from byoc.codegen import CompileError, MissingRuntimeError, Region, shorten_text

from .openvino_options import OpenVINOOptions
from .openvino_values import correct_values, find_corrections

_MISSING = (
    "openvino is not installed (pip install 'onnx-byoc[openvino]'; "
    "--codegen reference runs on onnxruntime instead)"
)
_TAKES_ALL = ("CPU", "AUTO", "HETERO", "MULTI", "BATCH")
_MAX_CHARACTERS = 300
_MAX_IN_MEMORY = 1 << 30  # bytes of constants; a protobuf holds at most 2 GB

_NO_RULE = re.compile(r"^-- No conversion rule found for operations: (.+)$", re.MULTILINE)
_FAILED = re.compile(r"^-- (\w[\w.]*?)-\d+ with a message:$", re.MULTILINE)
_CONTEXT = ("Exception from", "Check '", "While validating", "FrontEnd API failed", "Loading input")


@cache
def openvino_package() -> Any:
    """Return the package. Raises MissingRuntimeError if it is not installed."""
    try:
        import openvino as package  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    return package


@cache
def openvino_core() -> Any:
    """Return the only core of this process; another would load every device's plug-in again."""
    return openvino_package().Core()


def device_stamp(device: str) -> dict[str, str]:
    """Return the properties that a blob depends on: OpenVINO's build, the device, its capabilities.

    Raises MissingRuntimeError if there is no such device.
    """
    try:
        name = openvino_core().get_property(device, "FULL_DEVICE_NAME")
        able = openvino_core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError as error:
        raise MissingRuntimeError(
            f"OpenVINO has no device '{device}' here: {shorten_refusal(error)}"
        ) from None
    return {
        "openvino": str(openvino_package().__version__),
        "device_name": str(name),
        "device_abilities": " ".join(sorted(able)),
    }


def compile_region_model(
    region: Region, options: OpenVINOOptions, further: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, list[str]]:
    """Compile a region; return the model, and for each of its inputs the name in the region.

    `further` are properties besides those of the options. Raises CompileError with OpenVINO's reason.
    """
    try:
        properties = {**select_properties(options), **further}
        read = _read(region)
        correct_values(read, find_corrections(region.model))
        model = openvino_core().compile_model(read, options.device, properties)
        return model, _input_names(region, model)
    except RuntimeError as error:
        raise CompileError(shorten_refusal(error)) from None


def select_properties(options: OpenVINOOptions) -> dict[str, Any]:
    """Return the properties of the options that their device has; another would be an error.

    Devices that only choose others, such as `AUTO`, list few properties and pass all on.
    """
    if options.device.partition(":")[0] in _TAKES_ALL:
        return options.properties
    supported = openvino_core().get_property(options.device, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in options.properties.items() if name in supported}


def import_blob(
    blob: bytes, options: OpenVINOOptions, further: Mapping[str, Any] = MappingProxyType({})
) -> Any | None:
    """Return the model of a blob, or None if OpenVINO refuses the blob.

    `further` are properties besides those of the options.
    """
    properties = {**select_properties(options), **further}
    try:
        return openvino_core().import_model(blob, options.device, properties)
    except RuntimeError:
        return None


def state_defaults(model: onnx.ModelProto) -> bool:
    """Write an attribute that OpenVINO's reader wants written; return whether one was left out.

    It is `interleaved` of com.microsoft.RotaryEmbedding, whose default is 0.
    """
    unstated = _find_unstated(model)
    for node in unstated:
        node.attribute.append(onnx.helper.make_attribute("interleaved", 0))
    return bool(unstated)


def is_read_from_file(region: Region) -> bool:
    """Return whether OpenVINO reads a region's file as it is, its weights mapped.

    Its reader supports no model-local functions, and wants an attribute written (`state_defaults`).
    """
    return not region.model.functions and not _find_unstated(region.model)


def _find_unstated(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that leave out the attribute which OpenVINO's reader wants written."""
    inside = [node for function in model.functions for node in function.node]
    return [
        node
        for node in (*model.graph.node, *inside)
        if (node.domain, node.op_type) == ("com.microsoft", "RotaryEmbedding")
        and not any(attribute.name == "interleaved" for attribute in node.attribute)
    ]


def _read(region: Region) -> Any:
    """Return a region as OpenVINO's model.

    Composites are inlined. It maps the weights of a model in a file; it refuses external data outside
    the folder of the file, also by links.
    """
    if is_read_from_file(region):
        return openvino_core().read_model(region.path)
    model = region.load(inline=True)
    state_defaults(model)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= _MAX_IN_MEMORY:
        return openvino_core().read_model(model.SerializeToString())
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.onnx"
        save_region(region, path)
        return openvino_core().read_model(path)


def save_region(region: Region, path: Path) -> None:
    """Write a region in standard operators to a file, its weights beside it."""
    model = region.load(inline=True)
    state_defaults(model)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin")


def _input_names(region: Region, model: Any) -> list[str]:
    """Return the region's input for each of a model's.

    By name; but an input that an operator only passes on is called as that operator's output is, so
    those that are left over go by their order. Inputs that nobody reads are left out, some of them.
    """
    ports = [set(port.names) for port in model.inputs]
    graph = onnx.load(region.path, load_external_data=False).graph
    read = {name for node in graph.node for name in node.input} | {v.name for v in graph.output}
    names = [value.name for value in region.inputs]
    by_port = [next((name for name in names if name in port), None) for port in ports]
    left = [name for name in names if name in read and name not in by_port]
    if by_port.count(None) > len(left):
        raise CompileError("OpenVINO gave the model inputs that the region does not have")
    rest = iter(left)
    return [name or next(rest) for name in by_port]


def shorten_refusal(error: Exception) -> str:
    """Return the sentence in which OpenVINO says why, without the places in its source."""
    text = str(error)
    missing = _NO_RULE.search(text)
    if missing:
        operators = re.sub(r"-\d+\b", "", missing[1])
        return shorten_text(f"OpenVINO has no conversion for {operators}", _MAX_CHARACTERS)
    failed = _FAILED.search(text)
    body = text[failed.end() :] if failed else text
    lines = [line.strip() for line in body.partition("\nSummary:")[0].splitlines()]
    relevant = [line for line in lines if line and not line.startswith(_CONTEXT)]
    what = f"OpenVINO refuses {failed[1]}: " if failed else "OpenVINO refuses: "
    return shorten_text(what + (" ".join(relevant) or type(error).__name__), _MAX_CHARACTERS)
