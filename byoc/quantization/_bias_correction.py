"""Bias correction: the mean error of each output channel of a linear unit is taken from its bias.

Rounding weights and clipping what a layer reads shifts the mean of what it makes; later layers add such
shifts up. Each layer's own shift follows from channel means alone: that of its input times the error of
its weights, and the mean error of its input times its weights (Nagel et al., "Data-Free Quantization
Through Weight Equalization and Bias Correction", ICCV 2019, section 4.2; here means are measured, as in
the fast correction of NNCF). Padding is left out of account.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from byoc.model import (
    TENSOR_KEY,
    WEIGHT_KEY,
    GraphIndex,
    Model,
    NameAllocator,
    copy_without,
    get_metadata,
    is_inserted,
    is_quantize,
    prepare_model,
)
from byoc.quantization._arithmetic import read_constant, read_dequantized
from byoc.quantization._channel_classes import LinearChannels, list_linear_nodes
from byoc.quantization._channel_statistics import measure_channels

Float64Array = NDArray[np.float64]


def measure_bias_shifts(
    floats: Model, quantized: Model, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Float64Array]:
    """Return the mean errors, `[C]`, of a quantized model's linear nodes that have a bias, on samples.

    They are by the node's output in the float model.
    """
    linear = list(_find_quantized(floats, quantized))
    names = sorted({one.read for one in linear})
    if not names:
        return {}
    probed, copies = _add_roundings(floats, quantized, names)
    found = measure_channels(probed, [*names, *copies.values()], samples, "means")
    shifts = {}
    for one in linear:
        mean = found[one.read].mean
        moved = found[copies[one.read]].mean - mean
        inputs, outputs = one.channels.inputs, one.channels.outputs
        shift = np.zeros(int(outputs.max()) + 1)
        np.add.at(shift, outputs, one.errors * mean[inputs] + one.rounded * moved[inputs])
        shifts[one.made] = shift
    return shifts


@dataclass(frozen=True)
class _Quantized:
    """A linear node: rounded weights, and their errors, summed over the kernel to `[rows, columns]`."""

    read: str
    made: str
    channels: LinearChannels
    rounded: Float64Array
    errors: Float64Array


def _find_quantized(floats: Model, quantized: Model) -> Iterator[_Quantized]:
    """Yield the linear nodes whose input, weights and bias are integers in the quantized model."""
    index, other = floats.index, quantized.index
    by_name = {node.name: node for node in other.nodes if node.name and not is_inserted(node)}
    for number in list_linear_nodes(index):
        node = index.nodes[number]
        made = by_name.get(node.name or node.output[0])
        if made is None or len(made.input) < 3 or not made.input[2]:
            continue
        makers = [_find_maker(other, name) for name in made.input[:3]]
        maker = makers[1]
        if maker is None or None in makers or get_metadata(maker, WEIGHT_KEY) != node.input[1]:
            continue
        if not _has_channels(index, node.input[0]):
            continue
        weights = read_constant(index, node.input[1], floats.folder).astype(np.float64)
        rounded, _ = read_dequantized(other, maker, quantized.folder)
        axes = tuple(range(2, weights.ndim))
        channels = LinearChannels.of_node(node, weights.shape)
        errors = (rounded - weights).sum(axis=axes)
        yield _Quantized(node.input[0], node.output[0], channels, rounded.sum(axis=axes), errors)


def _find_maker(index: GraphIndex, name: str) -> NodeProto | None:
    """Return the DequantizeLinear of byoc that makes a tensor, None where there is none."""
    number = index.producers.get(name)
    return index.nodes[number] if number is not None and is_inserted(index.nodes[number]) else None


def _has_channels(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return shape is not None and len(shape) > 1 and isinstance(shape[1], int)


def _add_roundings(
    floats: Model, quantized: Model, names: Sequence[str]
) -> tuple[Model, dict[str, str]]:
    """Return a float model that rounds some tensors as well, and the rounded ones by those tensors."""
    index = quantized.index
    pairs: dict[str, NodeProto] = {}
    for node in index.nodes:
        if is_quantize(node) and is_inserted(node):
            pairs.setdefault(get_metadata(node, TENSOR_KEY), node)
    proto = copy_without(floats.proto)
    allocator = NameAllocator(proto.graph)
    copies = {}
    for name in names:
        axis = {each.name: helper.get_attribute_value(each) for each in pairs[name].attribute}
        scale = [allocator.new_tensor(f"{name}_{what}") for what in ("scale", "zero_point")]
        for made, read in zip(scale, pairs[name].input[1:], strict=True):
            value = read_constant(index, read, quantized.folder)
            proto.graph.initializer.append(numpy_helper.from_array(value, made))
        integers, copies[name] = (
            allocator.new_tensor(f"{name}_{what}") for what in ("integers", "rounded")
        )
        proto.graph.node.append(helper.make_node("QuantizeLinear", [name, *scale], [integers], **axis))
        proto.graph.node.append(
            helper.make_node("DequantizeLinear", [integers, *scale], [copies[name]], **axis)
        )
        proto.graph.value_info.append(
            ValueInfoProto(name=copies[name], type=floats.index.type_protos[name])
        )
    return prepare_model(proto, floats.source, floats.folder), copies
