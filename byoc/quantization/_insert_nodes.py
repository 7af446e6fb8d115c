"""Scales at the boundary of units, and the nodes and constants that quantization inserts.

The output of a unit keeps its name after the pair, so that all its readers, bodies included, stay as
they are; before the pair it is named `NAME_float`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import starmap
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import YES, Verdict, refuse
from byoc.model import (
    DTYPE_NUMBERS,
    QUANTIZE,
    TENSOR_KEY,
    WEIGHT_KEY,
    EditableGraph,
    GraphIndex,
    InferenceResult,
    Model,
    TensorType,
    build_node,
    copy_without,
    describe_node,
    get_stated_attributes,
    is_large,
    is_onnx,
    mark_inserted,
    may_be_float,
    set_metadata,
    to_numpy_dtype,
    write_type,
)
from byoc.planning import WIDE
from byoc.quantization._calibrators import GivenQuantization, Range, Ranges
from byoc.quantization._candidates import (
    QuantizationCandidate,
    TensorRequirement,
    combine_requirements,
    compute_channel_params,
    compute_class_params,
    convert_given,
    find_scale_classes,
    shares_scale,
)
from byoc.quantization._weights import (
    OPERANDS,
    WEIGHTED,
    Float32Array,
    QuantizationParams,
    ScaleRequirement,
    compute_params,
    find_channels,
    find_extremes,
    find_largest_sum,
    fits_int32,
    is_depthwise,
    is_same_form,
    quantize_bias,
    quantize_values,
    read_constant,
    widen_scales,
)


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A constant to be quantized, at the node and input that read it; `is_bias` for an int32 bias.

    A bias's scale has shape `[]` or `[C]`, and its values count along `params.axis`.
    """

    node: int
    position: int
    name: str
    params: QuantizationParams
    is_bias: bool = False


@dataclass(frozen=True, eq=False)
class QuantizationScheme:
    """The quantization of each boundary tensor and constant of units, and reasons for refused units."""

    activations: Mapping[str, QuantizationParams]
    constants: Sequence[QuantizedConstant]
    refused: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class ConstantStore:
    """The constants of a model, with a cache of their extremes and quantizations."""

    index: GraphIndex
    folder: Path | None
    shifts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is taken from biases, `[C]`, by the output of the node that reads one."""
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is quantized in the place of weights, by their names; scales are those of the weights."""
    _extremes: dict[tuple[str, int | None], Any] = field(default_factory=dict)
    _params: dict[tuple[str, int | None, ScaleRequirement], QuantizationParams | None] = field(
        default_factory=dict
    )

    def read_value(self, name: str) -> NDArray[Any]:
        """Return the value of a constant, which is read anew each time."""
        return read_constant(self.index, name, self.folder)

    def read_weights(self, name: str) -> NDArray[Any]:
        """Return the value of a constant as it is to be quantized."""
        return self.weights[name] if name in self.weights else self.read_value(name)

    def read_bias(self, node: NodeProto, name: str) -> NDArray[Any]:
        """Return the value of the bias that a node reads, less what is to be taken from it."""
        value = self.read_value(name)
        shift = self.shifts.get(node.output[0])
        if shift is None:
            return value
        shape = value.shape if value.size == shift.size else shift.shape
        return np.asarray(np.broadcast_to(value.reshape(-1), shift.shape) - shift, np.float32).reshape(
            shape
        )

    def find_extremes(self, name: str, axis: int | None = None) -> Any:
        """Return the least and the greatest value of a constant, or of each index of an axis."""
        key = name, axis
        if key not in self._extremes:
            self._extremes[key] = find_extremes(self.read_value(name), axis)
        return self._extremes[key]

    def find_params(
        self, name: str, axis: int | None, form: ScaleRequirement
    ) -> QuantizationParams | None:
        """Return the quantization of a constant; the same object for equal arguments."""
        key = name, axis, form
        if key not in self._params:
            low, high = self.find_extremes(name, axis)
            self._params[key] = compute_params(low, high, form, axis)
        return self._params[key]


def choose_scheme(
    store: ConstantStore,
    units: Sequence[QuantizationCandidate],
    ranges: Ranges,
    dtype: str | None,
    wide: Collection[str] = (),
) -> QuantizationScheme:
    """Choose the quantization of some units, all of whose tensors have a range.

    `dtype` is that of activations, by default the first that the target has; the `wide` ones, and
    tensors that share a scale with them, have 16 bits.
    """
    return _SchemeBuilder(store, units, ranges, dtype, wide).build()


@dataclass(eq=False)
class _SchemeBuilder:
    store: ConstantStore
    units: Sequence[QuantizationCandidate]
    ranges: Ranges
    dtype: str | None
    wide: Collection[str]
    activations: dict[str, QuantizationParams] = field(default_factory=dict)
    constants: list[QuantizedConstant] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def build(self) -> QuantizationScheme:
        self._choose_activations()
        for unit in self.units:
            for number in unit.unit.nodes:
                verdict = self._add_constants(unit, number)
                if not verdict:
                    self.refused[unit.name] = str(verdict)
        return QuantizationScheme(self.activations, self.constants, self.refused)

    def _choose_activations(self) -> None:
        classes = find_scale_classes(self.store.index, self.units)
        uses_of: dict[str, list[tuple[QuantizationCandidate, str, TensorRequirement]]] = {}
        for unit, name, requirement in self._find_uses():
            uses_of.setdefault(classes.get(name, name), []).append((unit, name, requirement))
        for uses in uses_of.values():
            entries = {name: self._find_range(name) for _, name, _ in uses}
            requirements = [requirement for *_, requirement in uses]
            dtype = self.dtype if entries.keys().isdisjoint(self.wide) else WIDE
            form = combine_requirements(requirements, dtype)
            params = self._choose_params(entries, requirements, form)
            if params is None:
                reason = f"'{uses[0][1]}' has negative values, which {form.dtype} with zero point 0"
                units = (unit.name for unit, *_ in uses)
                self.refused.update(dict.fromkeys(units, f"{reason} cannot represent"))
                continue
            for name in entries:
                self.activations[name] = self._normalize_axis(params, name)

    def _choose_params(
        self,
        entries: Mapping[str, Range | GivenQuantization],
        requirements: Sequence[TensorRequirement],
        form: ScaleRequirement,
    ) -> QuantizationParams | None:
        """Return the quantization of a class: a scale for each channel where all uses allow that."""
        name, *others = entries
        channels = self.ranges.channels.get(name)
        if channels is None or others or not all(each.channels for each in requirements):
            return compute_class_params(entries, form)
        return compute_channel_params(channels, form)

    def _find_uses(self) -> Iterator[tuple[QuantizationCandidate, str, TensorRequirement]]:
        """Yield the boundary tensors of units, and constants that share their scale, use by use."""
        index = self.store.index
        for unit in self.units:
            boundary = {*unit.reads, *unit.makes}
            for number in unit.unit.nodes:
                node = index.nodes[number]
                alike = shares_scale(node, unit)
                uses = [(False, *use) for use in enumerate(node.input)]
                uses += [(True, *use) for use in enumerate(node.output)]
                for out, position, name in uses:
                    constant = alike and name and index.is_constant(name) and may_be_float(index, name)
                    if name in boundary or constant:
                        requirement = unit.requirements.find_requirement(
                            index, node, position, "activations", out=out
                        )
                        yield unit, name, requirement

    def _find_range(self, name: str) -> Range | GivenQuantization:
        entry = self.ranges.tensors.get(name)
        if entry is not None:
            return entry
        low, high = self.store.find_extremes(name)
        return Range(float(low), float(high))

    def _normalize_axis(self, params: QuantizationParams, name: str) -> QuantizationParams:
        rank = self.store.index.get_rank(name)
        if params.axis is None or params.axis >= 0 or rank is None:
            return params
        return replace(params, axis=params.axis % rank)

    def _add_constants(self, unit: QuantizationCandidate, number: int) -> Verdict:
        """Add the constants of a node, unless the unit cannot be quantized."""
        index = self.store.index
        node = index.nodes[number]
        if not is_onnx(node) or node.op_type not in OPERANDS:
            return YES
        added: list[QuantizedConstant] = []
        for position, name in enumerate(node.input):
            if not name or not index.is_constant(name) or not may_be_float(index, name):
                continue
            if shares_scale(node, unit):
                params: QuantizationParams | None = self.activations.get(name)
            elif position == 2 and node.op_type in WEIGHTED:
                verdict = self._add_bias(unit, number, added)
                if not verdict:
                    return verdict
                continue
            else:
                params = self._choose_weights(unit, number, position)
            if params is None:
                return refuse(
                    f"'{name}' has negative values, and its data type with zero point 0 has none"
                )
            added.append(QuantizedConstant(number, position, name, params))
        self.constants += added
        return YES

    def _choose_weights(
        self, unit: QuantizationCandidate, number: int, position: int
    ) -> QuantizationParams | None:
        index = self.store.index
        node = index.nodes[number]
        name = node.input[position]
        given = self.ranges.tensors.get(name)
        if isinstance(given, GivenQuantization):
            return self._normalize_axis(convert_given(given), name)
        requirement = unit.requirements.find_requirement(index, node, position, "weights", out=False)
        found = find_channels(index, node) if position == 1 and requirement.per_channel else None
        form = ScaleRequirement(
            requirement.dtypes[0],
            requirement.symmetric,
            requirement.power_of_two,
            requirement.largest,
        )
        return self.store.find_params(name, found[0] if found else None, form)

    def _add_bias(
        self, unit: QuantizationCandidate, number: int, added: list[QuantizedConstant]
    ) -> Verdict:
        """Add a bias if that is possible, widening the weights' scales if need be."""
        index = self.store.index
        node = index.nodes[number]
        name = node.input[2]
        attributes = get_stated_attributes(node)
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            return refuse(f"{describe_node(node)} has a bias, and its alpha or beta is not 1")
        values = self.store.read_bias(node, name)
        if values.size not in {1, *values.shape[-1:]}:
            return refuse(f"the bias '{name}' is not one number for each channel")
        source = self._find_input_params(unit, number)
        weights = next((one for one in added if one.position == 1), None)
        params = weights.params if weights else self.activations.get(node.input[1])
        if source is None or params is None:
            return refuse(f"the bias '{name}' has no scale: '{node.input[0]}' has none")
        if source.axis is not None:
            if not is_depthwise(index, node):
                no_scale = f"the bias '{name}' has no scale"
                return refuse(f"{no_scale}: '{node.input[0]}' has none for all of it")
            count = self.store.read_value(node.input[1]).shape[0] // len(source.scale)
            source = replace(source, scale=np.repeat(source.scale, count))
        bias = values.astype(np.float32).reshape(-1)
        if weights and not isinstance(self.ranges.tensors.get(weights.name), GivenQuantization):
            requirement = unit.requirements.find_requirement(index, node, 1, "weights", out=False)
            groups = (find_channels(index, node) or (0, 1))[1] if node.op_type == "ConvTranspose" else 1
            each = bias.reshape(groups if len(bias) > 1 else 1, -1)
            count = self._count_products(number)
            products = find_largest_sum(count, source.dtype, params.dtype)
            most = np.abs(each).max(axis=0)
            wide = widen_scales(params, most, source.scale, requirement.power_of_two, products)
            if wide is not params:
                added[added.index(weights)] = QuantizedConstant(number, 1, weights.name, wide)
                params = wide
        scale = self._bias_scale(source, params, number, len(bias))
        if not fits_int32(bias, scale):
            return refuse(f"the bias '{name}' is too large for an int32 in steps of the scales given")
        axis = None if scale.ndim == 0 else max(values.ndim - 1, 0)
        params = QuantizationParams(scale, np.zeros(scale.shape, np.int64), "int32", axis)
        added.append(QuantizedConstant(number, 2, name, params, is_bias=True))
        return YES

    def _count_products(self, number: int) -> int:
        """Return the number of products that each result of a node with weights is the sum of."""
        node = self.store.index.nodes[number]
        axis, groups = find_channels(self.store.index, node) or (0, 1)
        shape = self.store.read_value(node.input[1]).shape
        channels = shape[axis] * (groups if node.op_type == "ConvTranspose" else 1)
        return int(prod(shape) // max(channels, 1))

    def _find_input_params(self, unit: QuantizationCandidate, number: int) -> QuantizationParams | None:
        """Return the quantization of a node's first input; inside a unit, the one of its range."""
        index = self.store.index
        name = index.nodes[number].input[0]
        if name in unit.reads:
            return self.activations.get(name)
        entry = self.ranges.tensors.get(name)
        if isinstance(entry, GivenQuantization):
            return convert_given(entry)
        if entry is None:
            return None
        requirement = unit.requirements.find_requirement(
            index, index.nodes[number], 0, "activations", out=False
        )
        return compute_params(entry.low, entry.high, combine_requirements([requirement], self.dtype))

    def _bias_scale(
        self, source: QuantizationParams, weights: QuantizationParams, number: int, count: int
    ) -> Float32Array:
        """Return the scale of a bias: activation times weights, in float32, for each channel."""
        scale = np.asarray(source.scale * weights.scale, np.float32)
        if scale.ndim == 0:
            return scale
        found = find_channels(self.store.index, self.store.index.nodes[number])
        groups = found[1] if found else 1
        return np.tile(scale, groups) if count == groups * len(scale) else scale


# Insertion of QuantizeLinear and DequantizeLinear nodes and of quantized constants into a model.


@dataclass(frozen=True, eq=False)
class SchemedUnits:
    """Units whose activations are of one type, their scheme, and the constants that they read."""

    units: Sequence[QuantizationCandidate]
    schemes: QuantizationScheme
    store: ConstantStore


def insert_quantization(
    model: Model, parts: Sequence[SchemedUnits], *, whole: bool = True
) -> tuple[Model, Mapping[str, str]]:
    """Return the model with some units quantized, and the new names of their outputs by the old ones.

    What a unit of one part makes and one of another part reads is converted between them: by an Identity
    between a DequantizeLinear and a QuantizeLinear. If `whole` is False the new weights have no content,
    which is enough to apply rules to the model. The given model is not changed; the float weights remain
    in the new one.
    """
    return _NodeInserter(model, parts, whole).insert()


@dataclass(eq=False)
class _NodeInserter:
    """A model under construction; the mappings are by node number of the float model."""

    model: Model
    parts: Sequence[SchemedUnits]
    whole: bool
    first: list[NodeProto] = field(default_factory=list)
    reads: dict[int, dict[str, str]] = field(default_factory=dict)
    makes: dict[int, dict[str, str]] = field(default_factory=dict)
    replaced: dict[tuple[int, int], str] = field(default_factory=dict)
    new_node_names: dict[int, str] = field(default_factory=dict)

    def insert(self) -> tuple[Model, Mapping[str, str]]:
        index = self.model.index
        self.graph = EditableGraph.of_index(index)
        self.names, self.types = self.graph.names, self.graph.types
        renamed: dict[str, str] = {}
        units = [unit for part in self.parts for unit in part.units]
        for number in (number for unit in units for number in unit.unit.nodes):
            node = index.nodes[number]
            if not node.name:  # after what it makes, as units are called
                made = next(filter(None, node.output))
                self.new_node_names[number] = self.names.new_node(made)
        made_as: dict[str, QuantizationParams] = {}
        for part in self.parts:
            for unit in part.units:
                for name in unit.makes:
                    made_as[name] = part.schemes.activations[name]
                    renamed[name] = self._quantize_output(unit, name, made_as[name])
        for part in self.parts:
            self._quantize_inputs(part, made_as)
            self._quantize_constants(part)
        return self._build_model(), renamed

    def _quantize_inputs(self, part: SchemedUnits, made_as: Mapping[str, QuantizationParams]) -> None:
        """Quantize what enters units, unless it is made in the form that they read."""
        entered: dict[str, str] = {}
        for unit in part.units:
            for name in unit.reads:
                params = part.schemes.activations[name]
                if name in made_as and is_same_form(params, made_as[name]):
                    continue
                if name not in entered:
                    source = self._convert(name, params.dtype) if name in made_as else name
                    entered[name] = self._quantize_input(name, source, params)
                for number in unit.unit.nodes:
                    self.reads.setdefault(number, {})[name] = entered[name]

    def _quantize_constants(self, part: SchemedUnits) -> None:
        quantized: dict[tuple[str, int], str] = {}
        for constant in part.schemes.constants:
            key = constant.name, id(constant.params)
            if key not in quantized:
                quantized[key] = self._quantize_constant(constant, part.store)
            self.replaced[constant.node, constant.position] = quantized[key]

    def _quantize_output(
        self, unit: QuantizationCandidate, name: str, params: QuantizationParams
    ) -> str:
        """Insert a pair after an output of a unit, and return the name of the tensor before the pair."""
        index = self.model.index
        number = index.producers[name]
        raw = self.names.new_tensor(f"{name}_float")
        self.makes.setdefault(number, {})[name] = raw
        for inside in unit.unit.nodes:
            self.reads.setdefault(inside, {})[name] = raw
        self._set_type(raw, name)
        self.graph.insert_after(number, *self._make_pair(name, raw, name, params))
        return raw

    def _convert(self, name: str, dtype: str) -> str:
        """Insert an Identity that a converted tensor goes through; return what it makes."""
        made = self.names.new_tensor(f"{name}_{dtype}")
        self._set_type(made, name)
        node = build_node("Identity", [name], [made], self.names.new_node(f"{name}_{dtype}"))
        set_metadata(mark_inserted(node, QUANTIZE), TENSOR_KEY, name)
        self.graph.insert_after(self.model.index.producers[name], node)
        return made

    def _quantize_input(self, name: str, source: str, params: QuantizationParams) -> str:
        """Put a pair beside what enters units, and return what it makes."""
        index = self.model.index
        made = self.names.new_tensor(f"{name}_dq")
        self._set_type(made, name)
        pair = self._make_pair(name, source, made, params)
        if name in index.producers:
            self.graph.insert_after(index.producers[name], *pair)
        else:
            self.first.extend(pair)
        return made

    def _make_pair(
        self, name: str, source: str, result: str, params: QuantizationParams
    ) -> Iterator[NodeProto]:
        middle = self.names.new_tensor(f"{name}_q")
        scale = [self._add_scale(name, params), self._add_zero_point(name, params)]
        self._set_type(middle, name, params.dtype)
        yield self._make_node("QuantizeLinear", [source, *scale], middle, params, (TENSOR_KEY, name))
        yield self._make_node("DequantizeLinear", [middle, *scale], result, params, (TENSOR_KEY, name))

    def _make_node(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        params: QuantizationParams,
        user_name: tuple[str, str],
    ) -> NodeProto:
        """Return a node marked as quantization of byoc, with a key and the tensor of the user."""
        name = self.names.new_node(f"{user_name[1]}_{op}")
        node = mark_inserted(build_node(op, inputs, [output], name, axis=params.axis), QUANTIZE)
        set_metadata(node, *user_name)
        return node

    def _quantize_constant(self, constant: QuantizedConstant, store: ConstantStore) -> str:
        """Insert the DequantizeLinear of a constant before its first reader; return its output."""
        params, name = constant.params, constant.name
        made = self.names.new_tensor(f"{name}_dq")
        shape = self.model.index.types[name].shape
        values: NDArray[Any] | None = None
        if self.whole or constant.is_bias:
            node = self.model.index.nodes[constant.node]
            of_bias = constant.is_bias
            floats = store.read_bias(node, name) if of_bias else store.read_weights(name)
            values, shape = _to_integers(floats, constant), floats.shape
            if constant.is_bias:
                shape = values.shape
        stored = self.graph.store(_make_tensor(values, params.dtype, shape), f"{name}_q")
        points = [] if not np.any(params.zero_point) else [self._add_zero_point(name, params)]
        inputs = [stored, self._add_scale(name, params), *points]
        node = self._make_node("DequantizeLinear", inputs, made, params, (WEIGHT_KEY, name))
        self.types[made] = write_type(TensorType("float32", shape))
        self.graph.insert_before(constant.node, node)
        return made

    def _add_scale(self, name: str, params: QuantizationParams) -> str:
        return self.graph.store(params.scale, f"{name}_scale")

    def _add_zero_point(self, name: str, params: QuantizationParams) -> str:
        points = params.zero_point
        return self.graph.store(_make_tensor(points, params.dtype, points.shape), f"{name}_zero_point")

    def _set_type(self, new: str, of: str, dtype: str = "float32") -> None:
        self.types[new] = write_type(TensorType(dtype, self.model.index.get_shape(of)))

    def _build_model(self) -> Model:
        source, graph = self.model.proto, self.graph
        graph.insert_first(*self.first)
        changed = {number for number, _ in self.replaced}
        for number in changed.union(self.reads, self.makes, self.new_node_names):
            graph.replace(number, self._rewrite_node(number, self.model.index.nodes[number]))
        proto = copy_without(source, "initializer")
        graph.write_to(proto.graph)
        for tensor in source.graph.initializer:
            if self.whole or not is_large(tensor):
                proto.graph.initializer.append(tensor)
            else:
                proto.graph.initializer.add(
                    name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
                )
        proto.graph.initializer.extend(graph.stored)
        inferred = self.model.inference
        typed = inferred.typed_graph and deepcopy(inferred.typed_graph)
        if typed is not None:
            graph.write_to(typed)
            typed.value_info.extend(starmap(helper.make_value_info, self.types.items()))
        return replace(
            self.model,
            structure=proto,
            heavy=None,
            inference=InferenceResult({**inferred.type_protos, **self.types}, typed, inferred.notes),
        )

    def _rewrite_node(self, number: int, node: NodeProto) -> NodeProto:
        reads, makes = self.reads.get(number, {}), self.makes.get(number, {})
        result = deepcopy(node)
        for position, name in enumerate(node.input):
            result.input[position] = self.replaced.get((number, position), reads.get(name, name))
        for position, name in enumerate(node.output):
            result.output[position] = makes.get(name, name)
        result.name = node.name or self.new_node_names.get(number, "")
        return result


def _make_tensor(values: NDArray[Any] | None, dtype: str, shape: Any) -> TensorProto:
    """Return a tensor with values rounded to a dtype, or without content."""
    if values is None:
        return TensorProto(data_type=DTYPE_NUMBERS[dtype], dims=shape)
    return numpy_helper.from_array(values.astype(to_numpy_dtype(dtype)))


def _to_integers(values: NDArray[Any], constant: QuantizedConstant) -> NDArray[Any]:
    """Return a constant quantized; a bias of one value is repeated for each channel."""
    params = constant.params
    if not constant.is_bias:
        return quantize_values(values, params)
    if params.scale.ndim and values.size == 1:
        return quantize_bias(np.repeat(values.reshape(-1), len(params.scale)), params.scale)
    return quantize_bias(values, params.scale)


def find_quantized_outputs(
    index: GraphIndex, unit: QuantizationCandidate, renamed: Mapping[str, str]
) -> set[str]:
    """Return the first output of each of a unit's nodes in the quantized model."""
    firsts = (next(name for name in index.nodes[n].output if name) for n in unit.unit.nodes)
    return {renamed.get(name, name) for name in firsts}
