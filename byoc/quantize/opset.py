"""Conversion of a model to newer versions: of its IR for metadata, of its operator set for quantization.

Scales per channel need operator set 13, 16 bits need 21. The model is converted rather than given
onnxruntime's own DequantizeLinear and QuantizeLinear (domain com.microsoft), which could stand beside
any version: ONNX's shape inference, its reference implementation and the compilers of the regions know
only ONNX's operators.
"""

from dataclasses import replace

from onnx import ModelProto, NodeProto, version_converter

from byoc.errors import InputError
from byoc.graph.copying import copy_without
from byoc.graph.load import Model, prepare_model, make_skeleton
from byoc.graph.outline import MIN_IR

PER_CHANNEL = 13
"""From here on QuantizeLinear and DequantizeLinear have an axis."""
SIXTEEN_BITS = 21
"""From here on they take int16 and uint16."""


def upgrade_ir(model: Model) -> Model:
    """Return a model of an IR version whose nodes have metadata; the same model if it already is.

    Before IR 4 every initializer had to be a graph input too; from then on such an input is a default.
    """
    if model.proto.ir_version >= MIN_IR:
        return model
    proto = copy_without(model.proto)
    if not model.index.has_default_inputs:
        inputs = set(model.index.inputs)
        data = [value for value in proto.graph.input if value.name in inputs]
        del proto.graph.input[:]
        proto.graph.input.extend(data)
    proto.ir_version = MIN_IR
    return replace(model, proto=proto)


def upgrade_opset(model: Model, least: int) -> Model:
    """Return a model of at least a given operator set version; the same model if it already is.

    The weights are not converted. Raises InputError if ONNX's converter fails, or would lose functions.
    """
    version = model.index.opsets.get("", 1)
    if version >= least:
        return model
    why = f"{model.source}: to be quantized it must be of operator set {least} or newer, not {version}"
    if model.proto.functions:
        raise InputError(f"{why}, and functions cannot be converted")
    try:
        light = version_converter.convert_version(make_skeleton(model.proto, model.folder), least)
    except Exception as error:  # the converter fails in many ways
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{why}, and cannot be converted: {reason}") from None
    proto = copy_without(model.proto, "node", "value_info")
    stored = {tensor.name for tensor in proto.graph.initializer}
    proto.graph.initializer.extend(t for t in light.graph.initializer if t.name not in stored)
    proto.graph.node.extend(light.graph.node)
    _restore_metadata(proto, model.proto)
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = least
    return replace(prepare_model(proto, model.source, model.folder), samples=model.make_samples)


def _restore_metadata(proto: ModelProto, source: ModelProto) -> None:
    """Copy metadata and descriptions, which the converter drops, to the converted nodes."""
    before: dict[str, NodeProto] = {node.output[0]: node for node in source.graph.node if node.output}
    for node in proto.graph.node:
        was = before.get(node.output[0]) if node.output else None
        if was is not None and was.op_type == node.op_type and not node.metadata_props:
            node.metadata_props.extend(was.metadata_props)
            node.doc_string = was.doc_string
