"""Biases of linear layers: corrected for what rounding shifts, and joined with the products before them.

Bias correction takes the mean error of each output channel of a linear unit from its bias. Rounding
weights and clipping what a layer reads shifts the mean of what it makes; later layers add such shifts
up. Each layer's own shift follows from channel means alone: that of its input times the error of its
weights, and the mean error of its input times its weights (Nagel et al., "Data-Free Quantization Through
Weight Equalization and Bias Correction", ICCV 2019, section 4.2; here means are measured, as in the fast
correction of NNCF). Padding is left out of account.

Exporters write the biases of matrix products as sums behind them: a transformer's linear layer is a
MatMul of `[batch, tokens, features]` and an Add. In integers the product would be rounded before its
bias is added, to the scale of a tensor that nothing else reads, and the sum once more. A Gemm adds the
bias to the sums of products before they are rounded, and what rounding moves the means by can be taken
from it. It has two dimensions, so views stand around it, and around a function behind it, which targets
compute with a product.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    TENSOR_KEY,
    WEIGHT_KEY,
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    get_constant_value,
    get_metadata,
    is_inserted,
    is_onnx,
    is_quantize,
    prepare_model,
)
from byoc.quantization._channel_classes import LinearChannels, list_linear_nodes, measure_channel_means
from byoc.quantization._weights import read_constant, read_dequantized
from byoc.samples import model_samples

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


_MATRIX = 2  # dimensions
_FUNCTIONS = frozenset(
    {"Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Swish", "Tanh"}
)


@dataclass(frozen=True)
class _BiasedProduct:
    """The numbers of a MatMul, of the Add and any function behind it, the bias, and shapes."""

    product: int
    total: int
    function: int | None
    bias: str
    read_shape: tuple[int, ...]
    made_shape: tuple[int, ...]


def join_biases(model: Model) -> Model:
    """Return a model in which products of a matrix and the sum with a bias behind each are one Gemm.

    The shapes of what they read have to be known. A model without such products is returned as it is.
    """
    index = model.index
    found = list(_find_biased(index))
    if not found:
        return model
    graph = EditableGraph.of_index(index)
    joined = {each.product for each in found}
    rows: dict[str, str] = {}  # tensors as matrices, which products share
    for each in found:
        product, total = index.nodes[each.product], index.nodes[each.total]
        read, name = product.input[0], product.name or product.output[0]
        bias = graph.store(
            read_constant(index, each.bias, model.folder).reshape(-1), f"{each.bias}_vector"
        )
        if read not in rows:
            viewed = _find_viewed(index, read)
            source = rows.get(viewed, viewed)
            rows[read] = graph.names.new_tensor(f"{read}_rows")
            shape = [prod(each.read_shape[:-1]), each.read_shape[-1]]
            stored = graph.store(np.asarray(shape), f"{read}_rows_shape")
            view = build_node(
                "Reshape", [source, stored], [rows[read]], graph.names.new_node(f"{name}_rows")
            )
            graph.insert_before(each.product, view)
            if viewed != read and _is_read_by(index, read, joined):
                graph.remove(index.producers[read])
        last = total if each.function is None else index.nodes[each.function]
        made = graph.names.new_tensor(f"{total.output[0]}_rows")
        nodes = [build_node("Gemm", [rows[read], product.input[1], bias], [made], name)]
        if last is not total:
            function = deepcopy(last)
            function.input[0], made = made, graph.names.new_tensor(f"{last.output[0]}_rows")
            function.output[0] = made
            nodes.append(function)
        rows[last.output[0]] = made
        reader = _find_next_view(index, last.output[0])
        if reader is not None:
            other = deepcopy(index.nodes[reader])
            other.input[0] = made
            graph.replace(reader, other)
        elif not _is_read_by(index, last.output[0], joined):
            stored = graph.store(np.asarray(each.made_shape), f"{last.output[0]}_shape")
            view_name = graph.names.new_node(f"{last.name or last.output[0]}_view")
            nodes.append(build_node("Reshape", [made, stored], [last.output[0]], view_name))
        graph.remove(each.product, *({each.total} if last is not total else ()))
        graph.replace(each.total if each.function is None else each.function, *nodes)
    proto = copy_without(model.proto)
    graph.write_to(proto.graph)
    graph.write_stored(proto.graph, graph.list_unread_stored())
    return replace(
        prepare_model(proto, model.source, model.folder),
        lost=model.lost,
        make_samples=partial(model_samples, model),
    )


def _find_viewed(index: GraphIndex, name: str) -> str:
    """Return the tensor that a Reshape views as another one; that other one where none does."""
    number = index.producers.get(name)
    if number is None or index.nodes[number].op_type != "Reshape" or not is_onnx(index.nodes[number]):
        return name
    return index.nodes[number].input[0]


def _is_read_by(index: GraphIndex, name: str, numbers: Collection[int]) -> bool:
    """Return whether some nodes alone read a tensor, as what they multiply."""
    readers = index.consumers.get(name, ())
    return (
        name not in index.outputs
        and bool(readers)
        and all(each in numbers and index.nodes[each].input[0] == name for each in readers)
    )


def _find_next_view(index: GraphIndex, name: str) -> int | None:
    """Return the Reshape that alone reads a tensor, to a shape that is stored and copies no extent."""
    readers = index.consumers.get(name, ())
    if len(readers) != 1 or name in index.outputs:
        return None
    node = index.nodes[readers[0]]
    if node.op_type != "Reshape" or not is_onnx(node) or node.input[0] != name:
        return None
    shape = get_constant_value(index, node.input[1])
    return None if shape is None or 0 in shape else readers[0]


def _find_biased(index: GraphIndex) -> Iterator[_BiasedProduct]:
    """Yield the products by a constant matrix whose result a sum with a bias alone reads."""
    for number, node in enumerate(index.nodes):
        if node.op_type != "MatMul" or not is_onnx(node) or not index.is_constant(node.input[1]):
            continue
        readers = index.consumers.get(node.output[0], ())
        total = index.nodes[readers[0]] if len(readers) == 1 else None
        if (
            total is None
            or total.op_type != "Add"
            or not is_onnx(total)
            or node.output[0] in index.outputs
        ):
            continue
        biases = [name for name in total.input if name != node.output[0] and index.is_constant(name)]
        read, made, columns = (
            _get_extents(index, name) for name in (node.input[0], total.output[0], node.input[1])
        )
        if not biases or not read or not made or not columns or len(columns) != _MATRIX:
            continue
        shape = _get_extents(index, biases[0])
        same = len(read) >= _MATRIX and made == (*read[:-1], columns[-1])
        if same and shape and prod(shape) == shape[-1] == columns[-1]:
            function = _find_function(index, total.output[0])
            yield _BiasedProduct(number, readers[0], function, biases[0], read, made)


def _find_function(index: GraphIndex, name: str) -> int | None:
    """Return the function that alone reads a tensor."""
    readers = index.consumers.get(name, ())
    if len(readers) != 1 or name in index.outputs:
        return None
    node = index.nodes[readers[0]]
    is_function = is_onnx(node) and node.op_type in _FUNCTIONS and len(node.input) == 1
    return readers[0] if is_function else None


def _get_extents(index: GraphIndex, name: str) -> tuple[int, ...]:
    """Return the shape of a float32 tensor; empty where it is not known, or there is none."""
    shape = index.get_shape(name) or ()
    known = tuple(each for each in shape if isinstance(each, int))
    return known if len(known) == len(shape) and index.get_dtype(name) == "float32" else ()
