"""Preparation of a model for quantization: newer versions, and what is affine folded.

Its IR is raised for metadata, its operator set for scales. Scales per channel need operator set 13, 16
bits need 21. The model is converted rather than given onnxruntime's own DequantizeLinear and
QuantizeLinear (domain com.microsoft), which could stand beside any version: ONNX's shape inference, its
reference implementation and the compilers of the regions know only ONNX's operators.
"""

from dataclasses import replace
from functools import partial

from byoc.errors import InputError
from byoc.model import (
    MIN_IR,
    ConversionError,
    Model,
    convert_opset,
    copy_without,
    prepare_model,
    set_ir_version,
)
from byoc.passes import FoldBatchNormalization, FoldScales, clean_model
from byoc.samples import model_samples

PER_CHANNEL = 13
"""From here on QuantizeLinear and DequantizeLinear have an axis."""
SIXTEEN_BITS = 21
"""From here on they take int16 and uint16."""


def upgrade_ir(model: Model) -> Model:
    """Return a model of an IR version whose nodes have metadata; the same model if it already is."""
    if model.structure.ir_version >= MIN_IR:
        return model
    proto = copy_without(model.structure)
    set_ir_version(proto, model.index)
    return replace(model, structure=proto)


def upgrade_opset(model: Model, least: int) -> Model:
    """Return a model of at least a given operator set version; the same model if it already is.

    The weights are not converted. Raises InputError if ONNX's converter fails, or would lose functions.
    """
    version = model.index.opsets.get("", 1)
    if version >= least:
        return model
    why = f"{model.source}: to be quantized it must be of operator set {least} or newer, not {version}"
    proto = copy_without(model.proto)
    try:
        convert_opset(proto, least, model.folder)
    except ConversionError as error:
        raise InputError(f"{why}: {error}") from None
    return replace(
        prepare_model(proto, model.source, model.folder), make_samples=partial(model_samples, model)
    )


def fold_affine_nodes(model: Model, *, through_sums: bool) -> Model:
    """Return a model with BatchNormalization and constant operands folded into linear nodes beside them.

    What can be folded beside one node follows one another, so it takes several rounds. With
    `through_sums` factors go through sums with constants, which makes other tensors, of other ranges. A
    model with nothing to fold is returned as it is.
    """
    passes = (FoldBatchNormalization(), FoldScales(through_sums=through_sums))
    folded = model
    while True:
        before, folded = folded, clean_model(folded, passes).model
        if folded is before:
            break
    if folded is model:
        return model
    return replace(folded, make_samples=partial(model_samples, model))
