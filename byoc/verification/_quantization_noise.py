"""Quantization noise: the integers of a model that represent real numbers, and what rounding them moves.

The model is run a second time with its activations in floating point: a QuantizeLinear becomes its
clamp alone, and a DequantizeLinear behind it does nothing. Operators of integers are read as the same
ones of floats between such nodes. Of a DynamicQuantizeLinear the scale and the zero point stay, and the
products that read it are those of floats. Two implementations of a quantized network that are both right
round some values to neighbouring integers; that is a part of this noise.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx.inliner
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import Region
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    CLAMP_OPERATORS,
    VIEW_OPERATORS,
    EditableGraph,
    GraphIndex,
    NameAllocator,
    build_node,
    copy_without,
    find_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
    is_quantize,
    prepare_model,
    replace_weights,
    walk_graphs,
    walk_nodes,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import ReadQuantizedOperators, clean_model

# The allowed errors by dtype: a share of the range, units in the last place, or a ratio in dB.

Measure = Literal["relative", "units", "dB"]

TOLERANCE: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""The largest error as a share of the expected range; tensors of other dtypes must be equal."""

QUANTIZED_NETWORK_TOLERANCE = 6e-2
"""The largest error that noise explains, as a share of the range; rounding in floats apart.

Single steps add up in a network with quantized activations. onnxruntime's own optimizations change the
outputs of trained ones by this much.
"""

LEAST_SIGNAL_TO_NOISE = 20.0
"""The least signal-to-noise ratio (dB) where activations are integers by the operators' definition."""

_ROUNDINGS = 4  # one behind the other, which an output of the least range may have in its dtype
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LEAST_RANGE: Mapping[str, float] = {
    dtype: min(1.0, _ROUNDINGS * epsilon / TOLERANCE[dtype]) for dtype, epsilon in EPSILON.items()
}
"""The least range as a share of the largest magnitude: float32 4.8e-3, float16 0.39, bfloat16 0.63.

At this range `TOLERANCE` equals four times the dtype's epsilon at that magnitude. Adding in another
order makes differences of this size, so that a smaller error shows nothing wrong.
"""

QUANTIZED_THRESHOLD = "quantized"
"""The name in `--threshold` of integers that represent real numbers."""


@dataclass(frozen=True)
class Thresholds:
    """The allowed error of tensors.

    `relative` has the largest error of each floating-point dtype as a share of the expected range; with
    `signal_to_noise` (dB), that is required of floats instead. Quantized integers may differ by `units`
    in their last place; other integers, booleans and strings must be equal. `asked` are the names set
    by the user, and `least_range` is set by `for_computation_in`. With `any_equal_keys` a selection need
    not take the first one of equal keys, as ONNX has it.
    """

    relative: Mapping[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    units: float = 1.0
    signal_to_noise: float | None = None
    asked: frozenset[str] = frozenset()
    least_range: float = 0.0
    any_equal_keys: bool = False

    def limit_for(self, dtype: str, quantized: bool) -> tuple[float, Measure]:
        """Return the limit on the error of a tensor, and its measure."""
        if dtype in self.relative and self.signal_to_noise is not None:
            return self.signal_to_noise, "dB"
        if quantized and "int" in dtype:
            return self.units, "units"
        return self.relative.get(dtype, 0.0), "relative"

    def error_scale(self, dtype: str, span: float, magnitude: float) -> float:
        """Return the divisor of the error of floats; never 0.

        It is the range `span` of the expected values, at least `LEAST_RANGE` of their largest
        `magnitude`, and the magnitude itself if all values are the same.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return max(span, least * magnitude) if span else magnitude or 1.0

    def for_computation_in(self, dtype: str) -> "Thresholds":
        """Return the thresholds for a computation in a dtype: none is below that of the dtype.

        Thresholds set by the user stay.
        """
        least = max(LEAST_RANGE.get(dtype, 0.0), self.least_range)
        return replace(self._at_least(self.relative.get(dtype, 0.0)), least_range=least)

    def is_asked(self, dtype: str, measure: Measure) -> bool:
        """Return whether the user set the limit on the errors of a dtype in a measure."""
        return measure == "dB" or (QUANTIZED_THRESHOLD if measure == "units" else dtype) in self.asked

    def _at_least(self, least: float) -> "Thresholds":
        raised = {
            name: value if name in self.asked else max(value, least)
            for name, value in self.relative.items()
        }
        return replace(self, relative=raised)


DEFAULT_THRESHOLDS = Thresholds()


def read_thresholds(given: Mapping[str, str], signal_to_noise: float | None = None) -> Thresholds:
    """Parse thresholds by dtype, or `quantized` in units, over the defaults.

    Raise InputError for an unknown name, a value that is not a number of at least 0, and a ratio that
    is no number.
    """
    if signal_to_noise is not None and isnan(signal_to_noise):
        raise InputError("signal-to-noise ratio nan: not a number of dB")
    names = (*TOLERANCE, QUANTIZED_THRESHOLD)
    values = {}
    for name, text in given.items():
        if name not in names:
            known = ", ".join(names)
            raise InputError(
                f"threshold {name}: no such dtype{suggest_nearest(name, names)}; there are {known}"
            )
        values[name] = _parse_threshold(name, text)
    asked = frozenset(values)
    units = values.pop(QUANTIZED_THRESHOLD, DEFAULT_THRESHOLDS.units)
    return Thresholds({**TOLERANCE, **values}, units, signal_to_noise, asked)


def _parse_threshold(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"threshold {name}: '{text}' is not a number of at least 0")
    return value


# The tensors of a model that are integers and represent real numbers.

_QUANTIZING_OPERATORS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
_CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_OPERATORS = (
    *("QuantizeLinear", "QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearWhere"),
    *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean"),
    *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
)
_MOVING_OPERATORS = VIEW_OPERATORS | CLAMP_OPERATORS | {"Pad", "Resize", "Upsample"}


def find_quantized_tensors(model: ModelProto) -> frozenset[str]:
    """Return the names of the quantized tensors of a model, in bodies and functions as well.

    An operator that only moves numbers, such as Transpose, keeps them quantized, and so does a Resize,
    whose results lie between them. Tensors inside functions have names of their own here.
    """
    light = replace_weights(model, "sparse_initializer")
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    nodes = [node for graph in walk_graphs(light.graph) for node in graph.node]
    found = {name for node in nodes for name in _tensors_defined_quantized(node)}
    moving = [
        set(_moved_tensors(node))
        for node in nodes
        if is_onnx(node) and node.op_type in _MOVING_OPERATORS
    ]
    before = -1
    while before < len(found):  # once for each change of direction along a chain of moves
        before = len(found)
        for names in (*moving, *reversed(moving)):
            if not found.isdisjoint(names):
                found |= names
    return frozenset(found)


def _tensors_defined_quantized(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that are quantized by the definition of a node."""
    contrib = node.domain == _CONTRIB_DOMAIN and node.op_type in _CONTRIB_OPERATORS
    if contrib or (is_onnx(node) and node.op_type in _QUANTIZING_OPERATORS):
        yield node.output[0]
    if is_dequantize(node):
        yield node.input[0]


def _moved_tensors(node: NodeProto) -> list[str]:
    """Return the inputs and outputs of a node that hold the same numbers; indices do not."""
    reads = node.input if node.op_type == "Concat" else node.input[:1]
    makes = node.output if node.op_type == "Split" else node.output[:1]
    return [name for name in (*reads, *makes) if name]


def quantized_tensors_of(region: Region) -> frozenset[str]:
    """Return the tensors of a region's model that represent real numbers as integers."""
    contracts = (*region.inputs, *region.outputs)
    with_scale = {contract.name for contract in contracts if contract.scale is not None}
    return find_quantized_tensors(region.model) | with_scale


Array = NDArray[Any]

_DYNAMIC = "DynamicQuantizeLinear"
_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_INTEGER_OPERATORS = (
    *("DynamicQuantize", "QLinear", "ConvInteger", "MatMulInteger"),
    *("QAttention", "QGemm", "QEmbed", "QMoE"),
)


def has_quantized_activations(model: ModelProto) -> bool:
    """Return whether a model without functions computes with activations that are integers.

    A model whose weights alone are quantized (DequantizeLinear of constants, MatMulNBits) does not.
    """
    index = GraphIndex(model, {})
    return any(_quantizes_data(graph, node) for graph in index.walk() for node in graph.nodes)


def _quantizes_data(index: GraphIndex, node: NodeProto) -> bool:
    if is_quantize(node):
        return not index.is_constant(node.input[0])
    return _stays_integer(node)


@dataclass(frozen=True, eq=False)
class FloatTwin:
    """A model without functions, to be run with its activations in floating point.

    `folder` holds its external data.
    """

    model: ModelProto
    folder: Path | None

    @cached_property
    def proto(self) -> ModelProto | None:
        """The model with activations in floating point; None where some stay integers."""
        if any(_stays_integer(node) for graph in walk_graphs(self.model.graph) for node in graph.node):
            free = _free_dynamic_products(self.model) or read_qdq_groups(self.model, self.folder)
            return None if free is None else FloatTwin(free, self.folder)._free_quantized()
        return self._free_quantized()

    def _free_quantized(self) -> ModelProto | None:
        """Return the model without the rounding of QuantizeLinear; None where integers remain."""
        rounded = {
            node.output[0]
            for graph in self._index.walk()
            for node in graph.nodes
            if is_quantize(node) and not graph.is_constant(node.input[0])
        }
        if not rounded <= self._float_tensors:
            return None
        twin = copy_without(self.model, "value_info")
        graph = EditableGraph(twin.graph)
        for node in graph.nodes:
            if node.output[0] in self._float_tensors and is_quantize(node):
                graph.replace(node, *self._make_clamp(node, graph))
            elif is_dequantize(node) and node.input[0] in self._float_tensors:
                graph.replace(node, *self._make_scaling(node, graph.names))
        graph.write_to(twin.graph)
        graph.write_stored(twin.graph)
        for value in twin.graph.output:
            value.ClearField("type")
        return twin

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self.model, {})

    @cached_property
    def _float_tensors(self) -> frozenset[str]:
        """The integer tensors that are floating point in the twin, in units of their scale."""
        index = self._index
        found: set[str] = set()
        for number, node in enumerate(index.nodes):
            rounds = is_quantize(node) and self._get_unit(node) is not None
            if (rounds and number not in index.constant_nodes) or found.intersection(_moved_by(node)):
                found.update(node.output)
        before = -1
        while before != len(found):  # a reader that needs integers keeps them, and those before it
            before = len(found)
            for number, node in enumerate(index.nodes):
                moved = _moved_by(node)
                if is_dequantize(node) or (moved and found.issuperset([*moved, *node.output])):
                    continue
                found.difference_update(index.reads[number], node.output if moved else ())
        return frozenset(found)

    def _get_unit(self, node: NodeProto) -> tuple[Array, Array, int, int] | None:
        """Return scale, zero point and the bounds of a QuantizeLinear with one scale, all constant."""
        values = [find_constant_value(self._index, name, self.folder) for name in node.input[1:]]
        if any(value is None or np.size(value) != 1 for value in values):
            return None
        scale = np.asarray(values[0])
        zero = np.asarray(values[1]) if len(values) > 1 else np.zeros((), np.uint8)
        if "int" not in str(zero.dtype) or get_stated_attributes(node).get("output_dtype"):
            return None
        bits = 8 * zero.dtype.itemsize if "4" not in str(zero.dtype) else 4
        low = 0 if str(zero.dtype).startswith("u") else -(1 << (bits - 1))
        return scale, zero, low, low + (1 << bits) - 1

    def _make_clamp(self, node: NodeProto, graph: EditableGraph) -> Iterator[NodeProto]:
        """Yield nodes that clamp and do not round: x / scale + zero point, in the integers' range."""
        unit = self._get_unit(node)
        assert unit is not None  # `_float_tensors` has only these
        scale, zero, low, high = unit
        stored = {}
        for word, value in (("scale", scale), ("zero", zero), ("low", low), ("high", high)):
            array = np.asarray(value).astype(scale.dtype).reshape(())
            stored[word] = graph.store(array, f"{node.output[0]}_{word}")
        steps = [(op, graph.names.new_tensor(node.output[0])) for op in ("Div", "Add", "Max")]
        read = node.input[0]
        for (op, made), word in zip([*steps, ("Min", node.output[0])], stored, strict=True):
            yield build_node(op, [read, stored[word]], [made])
            read = made

    def _make_scaling(self, node: NodeProto, names: NameAllocator) -> Iterator[NodeProto]:
        """Yield the nodes of a DequantizeLinear whose input is floating point in the twin."""
        read, scale = node.input[0], node.input[1]
        if len(node.input) > 2 and node.input[2]:
            zero, centred = (names.new_tensor(node.output[0]) for _ in range(2))
            unit = find_constant_value(self._index, scale, self.folder)
            dtype = np.dtype(np.float32) if unit is None else unit.dtype
            to = helper.np_dtype_to_tensor_dtype(dtype)
            yield build_node("Cast", [node.input[2]], [zero], to=to)
            yield build_node("Sub", [read, zero], [centred])
            read = centred
        yield build_node("Mul", [read, scale], [node.output[0]])


def _moved_by(node: NodeProto) -> list[str]:
    """Return the inputs whose numbers a view holds; none for another operator."""
    if node.op_type not in VIEW_OPERATORS or not is_onnx(node):
        return []
    return list(node.input) if node.op_type == "Concat" else [node.input[0]]


def _stays_integer(node: NodeProto) -> bool:
    """Return whether an operator computes with integers by definition."""
    return node.op_type.startswith(_INTEGER_OPERATORS)


def read_qdq_groups(model: ModelProto, folder: Path | None) -> ModelProto | None:
    """Return a model with operators of integers as QDQ groups; None where some have no such form.

    Raises InputError for a model that is not valid.
    """
    if not any(_stays_integer(node) for graph in walk_graphs(model.graph) for node in graph.node):
        return model
    groups = clean_model(prepare_model(model, "the network", folder), [ReadQuantizedOperators()]).model
    nodes = (node for graph in walk_graphs(groups.proto.graph) for node in graph.node)
    return None if any(map(_stays_integer, nodes)) else groups.proto


def _free_dynamic_products(model: ModelProto) -> ModelProto | None:
    """Return a model that does not round what DynamicQuantizeLinear makes; None where integers remain.

    These are other operators of integers, and those whose activations something else reads or makes.
    """
    twin = copy_without(model, "value_info")
    graph = EditableGraph(twin.graph)
    rounded = {node.output[0] for node in graph.nodes if node.op_type == _DYNAMIC}
    for node in graph.nodes:
        if node.op_type == _DYNAMIC:
            graph.replace(node, *_make_unrounded(node, graph.names))
        elif node.op_type in _PRODUCTS and node.input[0] in rounded:
            graph.replace(node, *_make_product_of_floats(node, graph.names))
        elif is_dequantize(node) and node.input[0] in rounded:
            graph.replace(node, *_make_dynamic_scaling(node, graph.names))
        elif any(
            _stays_integer(each) or not rounded.isdisjoint(each.input) for each in walk_nodes([node])
        ):
            return None
    graph.write_to(twin.graph)
    return twin if rounded.isdisjoint(graph.outputs) else None


def _make_unrounded(node: NodeProto, names: NameAllocator) -> Iterator[NodeProto]:
    """Yield nodes that compute x / scale + zero point; the DynamicQuantizeLinear stays for these two."""
    rounded, zero, scaled = (names.new_tensor(node.output[0]) for _ in range(3))
    yield build_node(_DYNAMIC, [node.input[0]], [rounded, *node.output[1:]])
    yield build_node("Cast", [node.output[2]], [zero], to=TensorProto.FLOAT)
    yield build_node("Div", [node.input[0], node.output[1]], [scaled])
    yield build_node("Add", [scaled, zero], [node.output[0]])


def _make_dynamic_scaling(node: NodeProto, names: NameAllocator) -> Iterator[NodeProto]:
    """Yield nodes of a DequantizeLinear of numbers that are not rounded: less the zero point, scaled."""
    read = node.input[0]
    if len(node.input) > 2 and node.input[2]:
        zero, centred = (names.new_tensor(node.output[0]) for _ in range(2))
        yield build_node("Cast", [node.input[2]], [zero], to=TensorProto.FLOAT)
        yield build_node("Sub", [read, zero], [centred])
        read = centred
    yield build_node("Mul", [read, node.input[1]], [node.output[0]])


def _make_product_of_floats(node: NodeProto, names: NameAllocator) -> Iterator[NodeProto]:
    """Yield nodes of a product of integers, which is one of floats: each operand less its zero point.

    onnxruntime's ConvInteger has one zero point for all weights.
    """
    operands = []
    for position in (0, 1):
        number = names.new_tensor(node.output[0])
        yield build_node("Cast", [node.input[position]], [number], to=TensorProto.FLOAT)
        zero = node.input[position + 2] if len(node.input) > position + 2 else ""
        if zero:
            cast, centred = (names.new_tensor(node.output[0]) for _ in range(2))
            yield build_node("Cast", [zero], [cast], to=TensorProto.FLOAT)
            yield build_node("Sub", [number, cast], [centred])
            number = centred
        operands.append(number)
    product = build_node(_PRODUCTS[node.op_type], operands, [node.output[0]])
    product.attribute.extend(node.attribute)
    yield product


_INT8_LEVEL, _FLOAT_LEVEL = 4, 1  # of accuracy_level


def make_exact_products(model: ModelProto) -> ModelProto | None:
    """Return a model whose MatMulNBits, also those of its functions, do not round their activations.

    `accuracy_level` is the least accuracy that is asked for; at 4 onnxruntime rounds to int8. None where
    no product has it; those in bodies are left as they are.
    """
    if not any(map(_may_round, _list_nodes(model))):
        return None
    result = copy_without(model)
    for node in filter(_may_round, _list_nodes(result)):
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = _FLOAT_LEVEL
    return result


def _list_nodes(model: ModelProto) -> list[NodeProto]:
    """Return the nodes of the main graph and of functions."""
    return [*model.graph.node, *(node for function in model.functions for node in function.node)]


def _may_round(node: NodeProto) -> bool:
    """Return whether a product lets its activations be rounded to int8."""
    return (node.domain, node.op_type) == ("com.microsoft", "MatMulNBits") and any(
        attribute.name == "accuracy_level" and attribute.i == _INT8_LEVEL for attribute in node.attribute
    )


def run_float_twin(model: ModelProto, folder: Path | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model without functions with its activations in floating point; return its outputs.

    Quantized outputs are real numbers of units. Empty where some activations stay integers. Raises
    InputError when onnxruntime does not run it.
    """
    twin = FloatTwin(model, folder).proto
    if twin is None:
        return {}
    with without_optimizations():
        return run_session(open_session(twin, folder), inputs)
