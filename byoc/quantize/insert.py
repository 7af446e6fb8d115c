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

from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex
from byoc.graph.infer import Inferred
from byoc.graph.load import Model
from byoc.graph.marks import FLOAT, QUANTIZE, TENSOR, mark, note
from byoc.graph.tensors import is_large
from byoc.graph.types import DTYPES, NUMBERS, TensorType, write_type
from byoc.quantize.names import Names
from byoc.quantize.numbers import Params, bias_integers, quantized
from byoc.quantize.schemes import Constant, Schemes, Store
from byoc.quantize.units import Candidate


def inserted(
    model: Model, store: Store, units: Sequence[Candidate], schemes: Schemes, *, whole: bool = True
) -> tuple[Model, Mapping[str, str]]:
    """Return the model with some units quantized, and the new names of their outputs by the old ones.

    If `whole` is False the new weights have no content, which is enough to apply rules to the model. The
    given model is not changed; the float weights remain in the new one.
    """
    return _Inserting(model, store, units, schemes, whole).insert()


@dataclass(eq=False)
class _Inserting:
    """A model under construction; the mappings are by node number of the float model."""

    model: Model
    store: Store
    units: Sequence[Candidate]
    schemes: Schemes
    whole: bool
    first: list[NodeProto] = field(default_factory=list)
    before: dict[int, list[NodeProto]] = field(default_factory=dict)
    after: dict[int, list[NodeProto]] = field(default_factory=dict)
    reads: dict[int, dict[str, str]] = field(default_factory=dict)
    makes: dict[int, dict[str, str]] = field(default_factory=dict)
    replaced: dict[tuple[int, int], str] = field(default_factory=dict)
    tensors: list[TensorProto] = field(default_factory=list)
    types: dict[str, TypeProto] = field(default_factory=dict)
    called: dict[int, str] = field(default_factory=dict)

    def insert(self) -> tuple[Model, Mapping[str, str]]:
        index = self.model.index
        self.names = Names(index)
        renamed: dict[str, str] = {}
        for number in (number for unit in self.units for number in unit.unit.nodes):
            node = index.nodes[number]
            if not node.name:  # after what it makes, as units are called
                self.called[number] = self.names.node(next(name for name in node.output if name))
        for unit in self.units:
            for name in unit.makes:
                renamed[name] = self._made(unit, name)
        entered: dict[str, str] = {}
        for unit in self.units:
            for name in unit.reads:
                if name in renamed:
                    continue
                if name not in entered:
                    entered[name] = self._entering(name)
                for number in unit.unit.nodes:
                    self.reads.setdefault(number, {})[name] = entered[name]
        made: dict[tuple[str, int], str] = {}
        for constant in self.schemes.constants:
            key = constant.name, id(constant.params)
            if key not in made:
                made[key] = self._constant(constant)
            self.replaced[constant.node, constant.position] = made[key]
        return self._model(), renamed

    def _made(self, unit: Candidate, name: str) -> str:
        """Insert a pair after an output of a unit, and return the name of the tensor before the pair."""
        index = self.model.index
        number = index.producer[name]
        raw = self.names.new(f"{name}_float")
        self.makes.setdefault(number, {})[name] = raw
        for inside in unit.unit.nodes:
            self.reads.setdefault(inside, {})[name] = raw
        self._type(raw, name)
        self.after.setdefault(number, []).extend(self._pair(name, raw, name))
        return raw

    def _entering(self, name: str) -> str:
        """Put a pair beside what enters units, and return what it makes."""
        index = self.model.index
        made = self.names.new(f"{name}_dq")
        self._type(made, name)
        pair = self._pair(name, name, made)
        number = index.producer.get(name)
        (self.first if number is None else self.after.setdefault(number, [])).extend(pair)
        return made

    def _pair(self, name: str, source: str, result: str) -> Iterator[NodeProto]:
        params = self.schemes.activations[name]
        middle = self.names.new(f"{name}_q")
        scale = [self._scale(name, params), self._points(name, params)]
        self._type(middle, name, params.dtype)
        for op, read, made in (
            ("QuantizeLinear", source, middle),
            ("DequantizeLinear", middle, result),
        ):
            node = helper.make_node(op, [read, *scale], [made], name=self.names.node(f"{name}_{op}"))
            _with_axis(node, params)
            yield note_of(node, TENSOR, name)

    def _constant(self, constant: Constant) -> str:
        """Insert the DequantizeLinear of a constant before its first reader; return its output."""
        params, name = constant.params, constant.name
        stored = self.names.new(f"{name}_q")
        made = self.names.new(f"{name}_dq")
        tensor_type = self.model.index.types[name]
        shape = tensor_type.shape
        values: NDArray[Any] | None = None
        if self.whole or constant.is_bias:
            floats = self.store.value(name)
            values, shape = _integers(floats, constant), floats.shape
            if constant.is_bias:
                shape = values.shape
        self._store(stored, values, params.dtype, shape)
        points = [] if not np.any(params.zero_point) else [self._points(name, params)]
        node = helper.make_node(
            "DequantizeLinear",
            [stored, self._scale(name, params), *points],
            [made],
            name=self.names.node(f"{name}_DequantizeLinear"),
        )
        _with_axis(node, params)
        note_of(node, FLOAT, name)
        self.types[stored] = write_type(TensorType(params.dtype, shape))
        self.types[made] = write_type(TensorType("float32", shape))
        self.before.setdefault(constant.node, []).append(node)
        return made

    def _store(self, name: str, values: NDArray[Any] | None, dtype: str, shape: Any) -> None:
        if values is None:
            self.tensors.append(TensorProto(name=name, data_type=NUMBERS[dtype], dims=shape))
            return
        kind = helper.tensor_dtype_to_np_dtype(NUMBERS[dtype])
        self.tensors.append(numpy_helper.from_array(values.astype(kind), name))

    def _scale(self, name: str, params: Params) -> str:
        new = self.names.new(f"{name}_scale")
        self.tensors.append(numpy_helper.from_array(params.scale, new))
        self.types[new] = write_type(TensorType("float32", params.scale.shape))
        return new

    def _points(self, name: str, params: Params) -> str:
        new = self.names.new(f"{name}_zero_point")
        self._store(new, params.zero_point, params.dtype, params.zero_point.shape)
        self.types[new] = write_type(TensorType(params.dtype, params.zero_point.shape))
        return new

    def _type(self, new: str, of: str, dtype: str = "float32") -> None:
        tensor_type = self.model.index.types.get(of)
        self.types[new] = write_type(TensorType(dtype, tensor_type.shape if tensor_type else None))

    def _model(self) -> Model:
        source = self.model.proto
        proto = copy_without(source, "node", "initializer")
        proto.graph.node.extend(self._nodes(source.graph.node))
        for tensor in source.graph.initializer:
            if self.whole or not is_large(tensor):
                proto.graph.initializer.append(tensor)
            else:
                self._store(tensor.name, None, DTYPES[tensor.data_type], tensor.dims)
        proto.graph.initializer.extend(self.tensors)
        inferred = self.model.inferred
        typed = inferred.typed and self._typed(inferred.typed)
        values = {**inferred.values, **self.types}
        return replace(self.model, proto=proto, inferred=Inferred(values, typed, inferred.notes))

    def _typed(self, graph: GraphProto) -> GraphProto:
        """Return the graph that has inferred types with the new nodes and their types."""
        result = deepcopy(graph)
        del result.node[:]
        result.node.extend(self._nodes(graph.node))
        for name, kind in self.types.items():
            result.value_info.append(ValueInfoProto(name=name, type=kind))
        return result

    def _nodes(self, nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
        yield from self.first
        for number, node in enumerate(nodes):
            yield from self.before.get(number, ())
            yield self._changed(number, node)
            yield from self.after.get(number, ())

    def _changed(self, number: int, node: NodeProto) -> NodeProto:
        reads, makes = self.reads.get(number, {}), self.makes.get(number, {})
        positions = [i for i in range(len(node.input)) if (number, i) in self.replaced]
        if not reads and not makes and not positions and number not in self.called:
            return node
        result = deepcopy(node)
        for position, name in enumerate(node.input):
            result.input[position] = self.replaced.get((number, position), reads.get(name, name))
        for position, name in enumerate(node.output):
            result.output[position] = makes.get(name, name)
        result.name = node.name or self.called.get(number, "")
        return result


def _with_axis(node: NodeProto, params: Params) -> None:
    if params.axis is not None:
        node.attribute.append(helper.make_attribute("axis", params.axis))


def note_of(node: NodeProto, key: str, name: str) -> NodeProto:
    """Mark a node as quantization by byoc, with the user's name of the tensor; return the node."""
    note(mark(node, QUANTIZE), key, name)
    return node


def _integers(values: NDArray[Any], constant: Constant) -> NDArray[Any]:
    """Return a constant quantized; a bias of one value is repeated for each channel."""
    params = constant.params
    if not constant.is_bias:
        return quantized(values, params)
    if params.scale.ndim and values.size == 1:
        return bias_integers(np.repeat(values.reshape(-1), len(params.scale)), params.scale)
    return bias_integers(values, params.scale)


def renamed_units(index: GraphIndex, unit: Candidate, renamed: Mapping[str, str]) -> set[str]:
    """Return the first output of each of a unit's nodes in the quantized model."""
    firsts = (next(name for name in index.nodes[n].output if name) for n in unit.unit.nodes)
    return {renamed.get(name, name) for name in firsts}
