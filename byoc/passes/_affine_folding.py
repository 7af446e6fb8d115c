"""Affine operations of each channel, folded into the weights of the linear operator before it.

A Conv, ConvTranspose or Gemm is linear: to multiply its result by a factor for each channel, and to add
an offset, is the same as other weights and another bias.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc._dataclasses import dataclass
from byoc.model import (
    GraphIndex,
    describe_node,
    find_constant_value,
    get_stated_attributes,
    set_attribute,
)
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits

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


# The pass that folds BatchNormalization into the convolution or matrix product before it.
#
# At inference BatchNormalization computes `y = (x - mean) * scale / sqrt(var + epsilon) + B` per
# channel (ONNX, BatchNormalization), which is affine.

_FIRST_OPSET = 7  # before, an attribute says whether it trains
_EPSILON = 1e-5  # BatchNormalization's default


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
                    fold_affine(edits, maker, number, *scales)


def _find_maker(edits: GraphEdits, number: int) -> int | None:
    """Return the node before a normalization that can take it in."""
    index = edits.index
    node = index.nodes[number]
    attributes = get_stated_attributes(node)
    if index.get_opset(node) < _FIRST_OPSET or any(index.node_outputs[number][1:]):
        return None
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return None
    return find_linear_maker(edits, number, index.node_inputs[number][0])


def _read_scales(edits: GraphEdits, number: int) -> tuple[Array, Array] | None:
    """Return factor and offset of each channel, float64 (channels,), None if they are not stored."""
    index = edits.index
    values = [read_floats(edits, name) for name in index.node_inputs[number][1:5]]
    if any(value is None or value.ndim != 1 for value in values):
        return None
    scale, bias, mean, variance = (value for value in values if value is not None)
    epsilon = get_stated_attributes(index.nodes[number]).get("epsilon", _EPSILON)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.float32(epsilon))
        return factor, bias - mean * factor


# A pass that writes out the padding that convolutions and pools leave to `auto_pad`.

_AUTOMATIC = ("SAME_UPPER", "SAME_LOWER", "VALID")
# Which input of a convolution has its weights.
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}


@dataclass(frozen=True)
class ExplicitPads(CleanPass):
    """Write the pads of convolutions and pools that state `auto_pad`: many targets take pads alone.

    SAME needs an image of known size. These stay: a window with dilations, which onnxruntime refuses
    under SAME; a pool with `ceil_mode`; and under SAME a pool whose stride is larger than its window, or
    a convolution whose last window ends three elements and more before the image does, where onnxruntime
    cuts the image as if its padding were negative.
    """

    name: ClassVar[str] = "explicit-pads"
    operators: ClassVar[frozenset[str]] = frozenset({*_WEIGHTS, "AveragePool", "LpPool", "MaxPool"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the nodes whose padding is known."""
        for number in numbers:
            node = edits.index.nodes[number]
            stated = get_stated_attributes(node)
            if stated.get("auto_pad") not in _AUTOMATIC or number in edits.index.constant_nodes:
                continue
            pads = _find_pads(edits, node, stated)
            if pads is None:
                continue
            edits.note_replaced(number, f"had auto_pad {stated['auto_pad']}")
            edits.replace(number, _write_pads(node, pads))


def _find_pads(edits: GraphEdits, node: NodeProto, stated: Mapping[str, Any]) -> list[int] | None:
    """Return the padding before and behind each axis, None where it is not known.

    SAME pads so that there is a window for every `stride` elements (ONNX, Conv): of an odd padding the
    element more is behind the image for SAME_UPPER, before it for SAME_LOWER.
    """
    kernel = _find_kernel(edits, node, stated)
    if kernel is None:
        return None
    ones = [1] * len(kernel)
    strides, dilations = stated.get("strides", ones), stated.get("dilations", ones)
    is_pool = node.op_type not in _WEIGHTS
    if dilations != ones or (is_pool and stated.get("ceil_mode", 0)):
        return None
    if stated["auto_pad"] == "VALID":
        return [0] * (2 * len(kernel))
    shape = None if edits.known is None else edits.known.find_shape(node.input[0])
    if shape is None or len(shape) != len(kernel) + 2:
        return None
    pairs = []
    for extent, size, stride in zip(shape[2:], kernel, strides, strict=True):
        whole = None if is_pool and stride > size else _find_padding(extent, size, stride)
        if whole is None:
            return None
        less, more = whole // 2, whole - whole // 2
        pairs.append((less, more) if stated["auto_pad"] == "SAME_UPPER" else (more, less))
    return [first for first, _ in pairs] + [last for _, last in pairs]


def _find_padding(extent: int | str | None, size: int, stride: int) -> int | None:
    """Return by how much SAME pads an axis, before and behind together, None where that is not known.

    It is not known to be 0 where onnxruntime cuts three elements and more, the first one among them.
    """
    if not isinstance(extent, int):
        return None
    windows = -(-extent // stride)
    wanted = (windows - 1) * stride + size - extent
    return max(wanted, 0) if wanted > -3 else None


def _find_kernel(
    edits: GraphEdits, node: NodeProto, stated: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """Return the extents of the window, those of the weights unless the node states them."""
    if "kernel_shape" in stated:
        return tuple(stated["kernel_shape"])
    shape = None if edits.known is None else edits.known.find_shape(node.input[_WEIGHTS[node.op_type]])
    extents = () if shape is None else shape[2:]
    known = tuple(each for each in extents if isinstance(each, int))
    return known if extents and len(known) == len(extents) else None


def _write_pads(node: NodeProto, pads: Sequence[int]) -> NodeProto:
    written = deepcopy(node)
    kept = [each for each in node.attribute if each.name not in ("auto_pad", "pads")]
    del written.attribute[:]
    written.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    return written
