"""Affine operations of each channel, folded into the weights of the linear operator before it.

A Conv, ConvTranspose or Gemm is linear: to multiply its result by a factor for each channel, and to add
an offset, is the same as other weights and another bias.
"""

from collections.abc import Iterable
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc.model import (
    GraphIndex,
    describe_node,
    find_constant_value,
    get_stated_attributes,
    set_attribute,
)
from byoc.passes._graph_edits import GraphEdits

_DTYPES = frozenset({"float16", "float32", "float64"})
_VIEWS = frozenset({"Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"})
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
    """Return a stored floating-point tensor, or a view of one, as float64; None if it is not stored.

    Paddle writes the bias of a convolution as an Add of a Reshape of a stored vector.
    """
    index = edits.index
    shape = index.get_shape(name)
    maker = index.producers.get(name)
    while maker is not None and _is_view(index, maker):
        name = index.node_inputs[maker][0]
        maker = index.producers.get(name)
    if index.get_dtype(name) not in _DTYPES:
        return None
    if name not in index.stored_tensors and (maker is None or not _is_constant(index, maker)):
        return None
    value = find_constant_value(index, name, edits.folder)
    extents = [each for each in shape or () if isinstance(each, int)]
    if value is None or shape is None or len(extents) < len(shape) or prod(extents) != value.size:
        return None
    return value.astype(np.float64).reshape(extents)


def _is_view(index: GraphIndex, number: int) -> bool:
    return index.node_kinds[number].is_onnx and index.node_kinds[number].op_type in _VIEWS


def _is_constant(index: GraphIndex, number: int) -> bool:
    return index.node_kinds[number].op_type == "Constant" and index.node_kinds[number].is_onnx


def fold_affine(edits: GraphEdits, maker: int, number: int, factor: Array, offset: Array) -> None:
    """Replace a linear node by one that computes `factor * result + offset` (each `[channels]`), too.

    `number` is the node that computes that now, which goes. Nothing is done where weights are not
    stored, the channels are others, or a weight would be infinite or lose digits.
    """
    index = edits.index
    node, inputs = index.nodes[maker], index.node_inputs[maker]
    attributes = get_stated_attributes(node)
    weight = read_floats(edits, inputs[1])
    before = read_bias(edits, inputs[2] if len(inputs) > 2 else "", len(factor))
    if weight is None or before is None:
        return
    try:
        scaled = _SCALE_WEIGHT[node.op_type](weight, factor, attributes)
    except ValueError:  # the channels are other ones
        return
    bias = before * attributes.get("beta", 1.0) * factor + offset
    made = index.node_outputs[number][0]
    if not is_storable(edits, maker, scaled, bias):
        return
    folded = deepcopy(node)
    folded.input[1] = store_floats(edits, maker, scaled, f"{inputs[1]}_folded")
    set_bias(folded, store_floats(edits, maker, bias, f"{made}_bias"))
    folded.output[0] = made
    note_folded(edits, maker, number)
    edits.replace(maker, folded)
    edits.remove(number)
    edits.drop_parameters(list_parameters(index, maker, number))


def is_storable(edits: GraphEdits, number: int, *values: Array) -> bool:
    """Return whether tensors are finite and exact in the type of what a node makes.

    Exact is a tensor whose largest rounding error is within the type's epsilon of its largest value. It
    is not where its values are too small for normal numbers, as those of float16 are below 6e-5.
    """
    dtype = edits.index.get_dtype(edits.index.node_outputs[number][0])
    assert dtype is not None
    return all(_holds(np.dtype(dtype), value) for value in values)


def _holds(dtype: np.dtype[Any], value: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        stored = value.astype(dtype)
        error, largest = np.abs(stored - value), np.abs(value)
    limit = np.finfo(dtype).eps * largest.max(initial=0)
    return bool(np.isfinite(stored).all() and error.max(initial=0) <= limit)


def store_floats(edits: GraphEdits, number: int, value: Array, name: str) -> str:
    """Store a tensor of the type that a node makes under a new name; return the name."""
    dtype = edits.index.get_dtype(edits.index.node_outputs[number][0])
    assert dtype is not None
    return edits.store(value.astype(dtype), name)


def set_bias(node: NodeProto, name: str) -> None:
    """Let a linear node add a bias as it is stored, instead of the one that it adds."""
    del node.input[2:]
    node.input.append(name)
    if "beta" in get_stated_attributes(node):
        set_attribute(node, helper.make_attribute("beta", 1.0))


def note_folded(edits: GraphEdits, linear: int, number: int) -> None:
    """Record at a linear node that another one, with what was recorded there, is folded into it."""
    node = edits.index.nodes[linear]
    what = f"folded into {node.op_type} '{node.name or node.output[0]}'"
    own = [*edits.notes.get(number, ()), f"{describe_node(edits.index.nodes[number])} {what}"]
    edits.notes.setdefault(linear, []).extend(own)


def read_bias(edits: GraphEdits, name: str, channels: int) -> Array | None:
    """Return a bias as float64 (channels,), zeros where there is none; None if that is not known."""
    if not name:
        return np.zeros(channels)
    value = read_floats(edits, name)
    if value is None or value.size not in (1, channels) or value.shape[-1:] not in ((), (value.size,)):
        return None
    return np.array(np.broadcast_to(value.ravel(), (channels,)))


def list_parameters(index: GraphIndex, *numbers: int) -> Iterable[str]:
    """Yield the constants that nodes read."""
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
