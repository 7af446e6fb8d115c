"""Bias correction: the mean error of each output channel of a linear unit is taken from its bias.

Rounding weights and clipping what a layer reads shifts the mean of what it makes; later layers
add such shifts up. Each layer's own shift follows from channel means alone: that of its input
times the error of its weights, and the mean error of its input times its weights (Nagel et al.,
"Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.2;
here means are measured, as in the fast correction of NNCF). Padding is left out of account.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper

from byoc.model import (
    TENSOR_KEY,
    WEIGHT_KEY,
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    get_metadata,
    is_inserted,
    is_quantize,
    prepare_model,
)
from byoc.quantization._calibrators import measure_channel_means
from byoc.quantization._channel_classes import LinearChannels, list_linear_nodes
from byoc.quantization._precision import read_constant, read_dequantized

Float64Array = NDArray[np.float64]


_ROUNDED_SAMPLES = 4  # that tell what another rounding of a tensor moves its means by


@dataclass(eq=False)
class ChannelMeans:
    """The channel means of tensors over samples, as they are and rounded; what was measured is kept.

    Tensors of one name have the same values in all models that it is asked about. What another rounding
    moves means by is measured on four samples alone: it hardly differs between samples.
    """

    samples: Sequence[Mapping[str, Any]]
    _means: dict[str, Float64Array] = field(default_factory=dict)
    _moved: dict[tuple[str, Hashable], Float64Array] = field(default_factory=dict)

    def measure(
        self, floats: Model, quantized: Model, names: Sequence[str]
    ) -> dict[str, tuple[Float64Array, Float64Array]]:
        """Return the means of tensors, `[C]` each, and what rounding them moves these by."""
        roundings = _find_roundings(quantized, names)
        keys = {name: (name, roundings[name].key) for name in names}
        new = [name for name, key in keys.items() if key not in self._moved]
        if new:
            probed, copies = _add_roundings(floats, {name: roundings[name] for name in new})
            is_known = all(name in self._means for name in new)
            samples = self.samples[:_ROUNDED_SAMPLES] if is_known else self.samples
            found = measure_channel_means(probed, [*new, *copies.values()], samples, "means")
            self._means = {**{name: found[name] for name in new}, **self._means}
            moved = {keys[name]: found[copies[name]] - found[name] for name in new}
            self._moved.update(moved)
        return {name: (self._means[name], self._moved[key]) for name, key in keys.items()}


def measure_bias_shifts(floats: Model, quantized: Model, means: ChannelMeans) -> dict[str, Float64Array]:
    """Return the mean errors, `[C]`, of a quantized model's linear nodes that have a bias, on samples.

    They are by the node's output in the float model.
    """
    linear = list(_find_quantized(floats, quantized))
    found = means.measure(floats, quantized, sorted({one.read for one in linear}))
    shifts = {}
    for one in linear:
        mean, moved = found[one.read]
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


@dataclass(frozen=True, eq=False)
class _Rounding:
    """The rounding of a tensor: scale, zero point, and attributes such as the axis of several."""

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    attributes: Mapping[str, Any]

    @property
    def key(self) -> Hashable:
        """A key that equal roundings share."""
        dtype, axis = self.zero_point.dtype.str, self.attributes.get("axis")
        return dtype, axis, self.scale.tobytes(), self.zero_point.tobytes()


def _find_roundings(quantized: Model, names: Sequence[str]) -> dict[str, _Rounding]:
    """Return the roundings of tensors of the float model in a quantized one."""
    index = quantized.index
    pairs: dict[str, NodeProto] = {}
    for node in index.nodes:
        if is_quantize(node) and is_inserted(node):
            pairs.setdefault(get_metadata(node, TENSOR_KEY), node)
    found = {}
    for name in names:
        scale, zero_point = (
            read_constant(index, read, quantized.folder) for read in pairs[name].input[1:]
        )
        attributes = {each.name: helper.get_attribute_value(each) for each in pairs[name].attribute}
        found[name] = _Rounding(scale, zero_point, attributes)
    return found


def _add_roundings(floats: Model, roundings: Mapping[str, _Rounding]) -> tuple[Model, dict[str, str]]:
    """Return a float model that rounds some tensors as well, and the rounded ones by those tensors."""
    proto = copy_without(floats.proto)
    graph = EditableGraph(proto.graph)
    copies = {}
    for name, each in roundings.items():
        scale = [
            graph.store(value, f"{name}_{what}")
            for value, what in ((each.scale, "scale"), (each.zero_point, "zero_point"))
        ]
        integers, copies[name] = (
            graph.names.new_tensor(f"{name}_{what}") for what in ("integers", "rounded")
        )
        graph.insert_last(
            build_node("QuantizeLinear", [name, *scale], [integers], **each.attributes),
            build_node("DequantizeLinear", [integers, *scale], [copies[name]], **each.attributes),
        )
        proto.graph.value_info.append(
            ValueInfoProto(name=copies[name], type=floats.index.type_protos[name])
        )
    graph.write_to(proto.graph)
    graph.write_stored(proto.graph)
    return prepare_model(proto, floats.source, floats.folder), copies
