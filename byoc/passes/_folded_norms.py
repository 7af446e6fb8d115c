"""The pass that folds BatchNormalization into the convolution or matrix product before it.

At inference BatchNormalization computes `y = (x - mean) * scale / sqrt(var + epsilon) + B` per channel
(ONNX, BatchNormalization). What is before it is linear, too: weights and bias are scaled, and the bias
is shifted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    find_constant_value,
    get_stated_attributes,
    set_attribute,
)
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits

_FIRST_OPSET = 7  # before, an attribute says whether it trains
_DTYPES = frozenset({"float16", "float32", "float64"})
_EPSILON = 1e-5
Array = NDArray[Any]


@dataclass(frozen=True)
class FoldBatchNormalization(CleanPass):
    """Fold BatchNormalization into the Conv, ConvTranspose or Gemm whose result it alone reads.

    Results differ in the last digits. Rule files ask for it (`wants: folded_batchnorm`).
    """

    name: ClassVar[str] = "fold-batchnorm"
    operators: ClassVar[frozenset[str]] = frozenset({"BatchNormalization"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the node before each BatchNormalization, where that can be."""
        for number in numbers:
            maker = _find_maker(edits, number)
            scales = None if maker is None else _read_scales(edits, number)
            if maker is not None and scales is not None:
                with np.errstate(all="ignore"):  # what is infinite then is not folded
                    _fold(edits, maker, number, *scales)


def _find_maker(edits: GraphEdits, number: int) -> int | None:
    """Return the node before a normalization that can take it in."""
    index = edits.index
    node, names = index.nodes[number], index.node_inputs[number]
    attributes = get_stated_attributes(node)
    if index.get_opset(node) < _FIRST_OPSET or any(index.node_outputs[number][1:]):
        return None
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return None
    maker = index.producers.get(edits.find_root(names[0]))
    if maker is None or maker in edits.removed or maker in edits.replaced:
        return None
    kind = index.node_kinds[maker]
    if not kind.is_onnx or kind.op_type not in _SCALE_WEIGHT:
        return None
    made = index.node_outputs[maker][0]
    if edits.list_readers(made) != [number] or edits.is_output(made):
        return None
    return maker if index.get_dtype(made) in _DTYPES else None


def _read_scales(edits: GraphEdits, number: int) -> tuple[Array, Array] | None:
    """Return factor and offset of each channel, float64 (channels,), None if they are not stored."""
    index = edits.index
    values = [_read(edits, name) for name in index.node_inputs[number][1:5]]
    if any(value is None or value.ndim != 1 for value in values):
        return None
    scale, bias, mean, variance = (value for value in values if value is not None)
    epsilon = get_stated_attributes(index.nodes[number]).get("epsilon", _EPSILON)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.float32(epsilon))
        return factor, bias - mean * factor


def _read(edits: GraphEdits, name: str) -> Array | None:
    """Return a stored floating-point tensor as float64, None if it is not stored."""
    index = edits.index
    maker = index.producers.get(name)
    while maker is not None and index.node_kinds[maker].op_type == "Identity":
        name = index.node_inputs[maker][0]
        maker = index.producers.get(name)
    if index.get_dtype(name) not in _DTYPES:
        return None
    if name not in index.stored_tensors and (maker is None or not _is_constant(index, maker)):
        return None
    value = find_constant_value(index, name, edits.folder)
    return None if value is None else value.astype(np.float64)


def _is_constant(index: GraphIndex, number: int) -> bool:
    return index.node_kinds[number].op_type == "Constant" and index.node_kinds[number].is_onnx


def _fold(edits: GraphEdits, maker: int, number: int, factor: Array, offset: Array) -> None:
    """Replace a node by one that computes the normalization of its result, too."""
    index = edits.index
    node, inputs = index.nodes[maker], index.node_inputs[maker]
    attributes = get_stated_attributes(node)
    weight = _read(edits, inputs[1])
    before = _read_bias(edits, inputs[2] if len(inputs) > 2 else "", len(factor))
    if weight is None or before is None:
        return
    try:
        scaled = _SCALE_WEIGHT[node.op_type](weight, factor, attributes)
    except ValueError:  # the channels are other ones
        return
    bias = before * attributes.get("beta", 1.0) * factor + offset
    dtype = index.get_dtype(index.node_outputs[maker][0])
    assert dtype is not None
    stored = [scaled.astype(dtype), bias.astype(dtype)]
    if not all(np.isfinite(value).all() for value in stored):
        return
    made = index.node_outputs[number][0]
    names = [edits.names.new_tensor(name) for name in (f"{inputs[1]}_folded", f"{made}_bias")]
    for name, value in zip(names, stored, strict=True):
        edits.stored.append(numpy_helper.from_array(value, name))
        edits.new_types[name] = helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], value.shape)
    folded = NodeProto()
    folded.CopyFrom(node)
    del folded.input[:]
    folded.input.extend([inputs[0], *names])
    folded.output[0] = made
    if "beta" in attributes:
        set_attribute(folded, helper.make_attribute("beta", 1.0))
    edits.note_replaced(number, f"folded into {node.op_type} '{node.name or node.output[0]}'")
    edits.notes.setdefault(maker, []).extend(edits.notes.pop(number))
    edits.replace(maker, folded)
    edits.remove(number)
    edits.drop_unread(name for name in (*inputs[1:], *index.node_inputs[number][1:]) if name)


def _read_bias(edits: GraphEdits, name: str, channels: int) -> Array | None:
    """Return a bias as float64 (channels,), zeros where there is none; None if that is not known."""
    if not name:
        return np.zeros(channels)
    value = _read(edits, name)
    if value is None or value.size not in (1, channels) or value.shape[-1:] not in ((), (value.size,)):
        return None
    return np.array(np.broadcast_to(value.ravel(), (channels,)))


def _scale_conv(weight: Array, factor: Array, attributes: dict[str, Any]) -> Array:
    if weight.shape[0] != len(factor):
        raise ValueError
    return np.multiply(weight, factor.reshape(-1, *[1] * (weight.ndim - 1)))


def _scale_transposed_conv(weight: Array, factor: Array, attributes: dict[str, Any]) -> Array:
    """Scale a weight (inputs, outputs of a group, ...), whose groups follow one another in axis 0."""
    groups = attributes.get("group", 1)
    each = factor.reshape(groups, weight.shape[1])
    rows = np.repeat(each, weight.shape[0] // groups, axis=0)
    scaled: Array = np.multiply(weight, rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)))
    return scaled


def _scale_gemm(weight: Array, factor: Array, attributes: dict[str, Any]) -> Array:
    across = bool(attributes.get("transB", 0))
    if weight.shape[0 if across else 1] != len(factor):
        raise ValueError
    return np.multiply(weight, factor[:, None] if across else factor[None, :])


_SCALE_WEIGHT = {
    "Conv": _scale_conv,
    "ConvTranspose": _scale_transposed_conv,
    "Gemm": _scale_gemm,
}
