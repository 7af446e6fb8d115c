"""Affine operations of each channel, folded into the weights of the linear operator before it.

A Conv, ConvTranspose or Gemm is linear: to multiply its result by a factor for each channel, and to add
an offset, is the same as other weights and another bias.
"""

from collections.abc import Iterable
from typing import Any

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
from byoc.passes._graph_edits import GraphEdits

_DTYPES = frozenset({"float16", "float32", "float64"})
Array = NDArray[Any]


def find_linear_maker(edits: GraphEdits, number: int, name: str) -> int | None:
    """Return the linear node that makes a tensor for one node alone and can take that in, else None."""
    index = edits.index
    maker = index.producers.get(edits.find_root(name))
    if maker is None or maker in edits.removed or maker in edits.replaced:
        return None
    kind = index.node_kinds[maker]
    if not kind.is_onnx or kind.op_type not in _SCALE_WEIGHT:
        return None
    made = index.node_outputs[maker][0]
    if edits.list_readers(made) != [number] or edits.is_output(made):
        return None
    return maker if index.get_dtype(made) in _DTYPES else None


def read_floats(edits: GraphEdits, name: str) -> Array | None:
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


def fold_affine(edits: GraphEdits, maker: int, number: int, factor: Array, offset: Array) -> None:
    """Replace a linear node by one that computes `factor * result + offset` (each `[channels]`), too.

    `number` is the node that computes that now, which goes. Nothing is done where weights are not
    stored, the channels are others, or a weight would be infinite.
    """
    index = edits.index
    node, inputs = index.nodes[maker], index.node_inputs[maker]
    attributes = get_stated_attributes(node)
    weight = read_floats(edits, inputs[1])
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
    edits.drop_unread(_list_parameters(index, maker, number))


def _read_bias(edits: GraphEdits, name: str, channels: int) -> Array | None:
    """Return a bias as float64 (channels,), zeros where there is none; None if that is not known."""
    if not name:
        return np.zeros(channels)
    value = read_floats(edits, name)
    if value is None or value.size not in (1, channels) or value.shape[-1:] not in ((), (value.size,)):
        return None
    return np.array(np.broadcast_to(value.ravel(), (channels,)))


def _list_parameters(index: GraphIndex, *numbers: int) -> Iterable[str]:
    return (
        name
        for number in numbers
        for name in index.node_inputs[number]
        if name and index.is_constant(name)
    )


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
