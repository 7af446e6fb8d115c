"""Insertion of QuantizeLinear and DequantizeLinear nodes and of quantized constants into a model.

The output of a unit keeps its name after the pair, so that all its readers, bodies included, stay as
they are; before the pair it is named `NAME_float`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from byoc.model import (
    DTYPE_NUMBERS,
    DTYPES,
    QUANTIZE,
    TENSOR_KEY,
    WEIGHT_KEY,
    GraphIndex,
    InferenceResult,
    Model,
    NameAllocator,
    TensorType,
    copy_without,
    is_large,
    mark_inserted,
    set_metadata,
    write_type,
)
from byoc.quantization._arithmetic import (
    QuantizationParams,
    is_same_form,
    quantize_bias,
    quantize_values,
)
from byoc.quantization._candidates import QuantizationCandidate
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
    before: dict[int, list[NodeProto]] = field(default_factory=dict)
    after: dict[int, list[NodeProto]] = field(default_factory=dict)
    reads: dict[int, dict[str, str]] = field(default_factory=dict)
    makes: dict[int, dict[str, str]] = field(default_factory=dict)
    replaced: dict[tuple[int, int], str] = field(default_factory=dict)
    tensors: list[TensorProto] = field(default_factory=list)
    types: dict[str, TypeProto] = field(default_factory=dict)
    new_node_names: dict[int, str] = field(default_factory=dict)

    def insert(self) -> tuple[Model, Mapping[str, str]]:
        index = self.model.index
        self.names = NameAllocator(index.graph)
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
        self.after.setdefault(number, []).extend(self._make_pair(name, raw, name, params))
        return raw

    def _convert(self, name: str, dtype: str) -> str:
        """Insert an Identity that a converted tensor goes through; return what it makes."""
        made = self.names.new_tensor(f"{name}_{dtype}")
        self._set_type(made, name)
        node = helper.make_node("Identity", [name], [made], self.names.new_node(f"{name}_{dtype}"))
        set_metadata(mark_inserted(node, QUANTIZE), TENSOR_KEY, name)
        self.after[self.model.index.producers[name]].append(node)
        return made

    def _quantize_input(self, name: str, source: str, params: QuantizationParams) -> str:
        """Put a pair beside what enters units, and return what it makes."""
        index = self.model.index
        made = self.names.new_tensor(f"{name}_dq")
        self._set_type(made, name)
        pair = self._make_pair(name, source, made, params)
        number = index.producers.get(name)
        (self.first if number is None else self.after.setdefault(number, [])).extend(pair)
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
        axis: dict[str, Any] = {} if params.axis is None else {"axis": params.axis}
        node = mark_inserted(helper.make_node(op, inputs, [output], name, **axis), QUANTIZE)
        set_metadata(node, *user_name)
        return node

    def _quantize_constant(self, constant: QuantizedConstant, store: ConstantStore) -> str:
        """Insert the DequantizeLinear of a constant before its first reader; return its output."""
        params, name = constant.params, constant.name
        stored = self.names.new_tensor(f"{name}_q")
        made = self.names.new_tensor(f"{name}_dq")
        tensor_type = self.model.index.types[name]
        shape = tensor_type.shape
        values: NDArray[Any] | None = None
        if self.whole or constant.is_bias:
            node = self.model.index.nodes[constant.node]
            of_bias = constant.is_bias
            floats = store.read_bias(node, name) if of_bias else store.read_weights(name)
            values, shape = _to_integers(floats, constant), floats.shape
            if constant.is_bias:
                shape = values.shape
        self._add_tensor(stored, values, params.dtype, shape)
        points = [] if not np.any(params.zero_point) else [self._add_zero_point(name, params)]
        inputs = [stored, self._add_scale(name, params), *points]
        node = self._make_node("DequantizeLinear", inputs, made, params, (WEIGHT_KEY, name))
        self.types[stored] = write_type(TensorType(params.dtype, shape))
        self.types[made] = write_type(TensorType("float32", shape))
        self.before.setdefault(constant.node, []).append(node)
        return made

    def _add_tensor(self, name: str, values: NDArray[Any] | None, dtype: str, shape: Any) -> None:
        if values is None:
            self.tensors.append(TensorProto(name=name, data_type=DTYPE_NUMBERS[dtype], dims=shape))
            return
        kind = helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype])
        self.tensors.append(numpy_helper.from_array(values.astype(kind), name))

    def _add_scale(self, name: str, params: QuantizationParams) -> str:
        new = self.names.new_tensor(f"{name}_scale")
        self.tensors.append(numpy_helper.from_array(params.scale, new))
        self.types[new] = write_type(TensorType("float32", params.scale.shape))
        return new

    def _add_zero_point(self, name: str, params: QuantizationParams) -> str:
        new = self.names.new_tensor(f"{name}_zero_point")
        self._add_tensor(new, params.zero_point, params.dtype, params.zero_point.shape)
        self.types[new] = write_type(TensorType(params.dtype, params.zero_point.shape))
        return new

    def _set_type(self, new: str, of: str, dtype: str = "float32") -> None:
        self.types[new] = write_type(TensorType(dtype, self.model.index.get_shape(of)))

    def _build_model(self) -> Model:
        source = self.model.proto
        proto = copy_without(source, "node", "initializer")
        proto.graph.node.extend(self._iterate_nodes(source.graph.node))
        for tensor in source.graph.initializer:
            if self.whole or not is_large(tensor):
                proto.graph.initializer.append(tensor)
            else:
                self._add_tensor(tensor.name, None, DTYPES[tensor.data_type], tensor.dims)
        proto.graph.initializer.extend(self.tensors)
        inferred = self.model.inference
        typed = inferred.typed_graph and self._build_typed_graph(inferred.typed_graph)
        values = {**inferred.type_protos, **self.types}
        return replace(
            self.model,
            structure=proto,
            heavy=None,
            inference=InferenceResult(values, typed, inferred.notes),
        )

    def _build_typed_graph(self, graph: GraphProto) -> GraphProto:
        """Return the graph that has inferred types with the new nodes and their types."""
        result = deepcopy(graph)
        del result.node[:]
        result.node.extend(self._iterate_nodes(graph.node))
        for name, kind in self.types.items():
            result.value_info.append(ValueInfoProto(name=name, type=kind))
        return result

    def _iterate_nodes(self, nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
        yield from self.first
        for number, node in enumerate(nodes):
            yield from self.before.get(number, ())
            yield self._rewrite_node(number, node)
            yield from self.after.get(number, ())

    def _rewrite_node(self, number: int, node: NodeProto) -> NodeProto:
        reads, makes = self.reads.get(number, {}), self.makes.get(number, {})
        positions = [i for i in range(len(node.input)) if (number, i) in self.replaced]
        if not reads and not makes and not positions and number not in self.new_node_names:
            return node
        result = deepcopy(node)
        for position, name in enumerate(node.input):
            result.input[position] = self.replaced.get((number, position), reads.get(name, name))
        for position, name in enumerate(node.output):
            result.output[position] = makes.get(name, name)
        result.name = node.name or self.new_node_names.get(number, "")
        return result


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
