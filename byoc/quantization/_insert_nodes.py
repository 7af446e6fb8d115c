"""Insertion of QuantizeLinear and DequantizeLinear nodes and of quantized constants into a model.

The output of a unit keeps its name after the pair, so that all its readers, bodies included, stay as
they are; before the pair it is named `NAME_float`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

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
    is_large,
    mark_inserted,
    set_metadata,
    to_numpy_dtype,
    write_type,
)
from byoc.quantization._candidates import QuantizationCandidate
from byoc.quantization._precision import (
    QuantizationParams,
    is_same_form,
    quantize_bias,
    quantize_values,
)
from byoc.quantization._scheme import ConstantStore, QuantizationScheme, QuantizedConstant


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
