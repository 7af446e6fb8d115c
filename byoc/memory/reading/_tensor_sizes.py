"""Sizes of a model's tensors, and the tensors known before it runs.

Extents that a model computes (exporters write `Reshape(x, Concat(Shape(x)[0], 64))`) are inferred here:
ONNX's inference follows values through a few operators only. One pass over the graph infers node by node
and evaluates small tensors that depend on shapes alone with ONNX's reference implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.errors import InputError
from byoc.model import (
    GraphIndex,
    TensorType,
    copy_without,
    get_constant_value,
    get_stated_attributes,
    is_onnx,
    list_symbolic_dims,
    read_type,
    walk_bodies,
    write_type,
)

# Where every extent is known they depend on nothing else.
_OF_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, eq=False)
class TensorSizes:
    """The tensors of a graph; `source` names the model in messages."""

    index: GraphIndex
    source: str

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The known types, with extents that follow from others."""
        return infer_extents(self.index)

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose outputs are known before the model runs, given all extents."""
        index = self.index
        found, known = set(index.constant_nodes), set[str]()
        for number, node in enumerate(index.nodes):
            if number in found or not is_onnx(node) or node.op_type in RANDOM_OPERATORS:
                continue
            if any(True for _ in walk_bodies(node)):
                continue
            reads = index.reads[number]
            if node.op_type not in _OF_SHAPES and (
                not known.intersection(reads)
                or not all(name in known or index.is_constant(name) for name in reads)
            ):
                continue
            found.add(number)
            known.update(node.output)
        return frozenset(found)

    def is_constant(self, name: str) -> bool:
        """Tell whether a tensor is stored, or computed from stored tensors alone."""
        return self.index.is_constant(name) or self.index.producers.get(name) in self.constant_nodes

    def count_elements(self, name: str) -> int:
        """Return the number of elements. Raises InputError as `count_bytes` does."""
        return self._known_type(name).elements or 0

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a tensor, not rounded.

        Raises InputError for an unknown extent, and for strings, sequences, maps and optionals.
        """
        return self._known_type(name).bytes or 0

    def _known_type(self, name: str) -> TensorType:
        kind = self.types.get(name)
        if kind is None and name in self.index.type_protos:
            value = (self.index.type_protos[name].WhichOneof("value") or "value").removesuffix("_type")
            raise InputError(f"{self.source}: '{name}' is a {value}, whose bytes only a run can tell")
        if kind is not None and kind.dtype == "string":
            raise InputError(f"{self.source}: '{name}' holds strings, whose bytes only a run can tell")
        if kind is None or kind.elements is None:
            said = "of an unknown type" if kind is None else str(kind)
            raise InputError(f"{self.source}: '{name}' is {said}: {self._suggest_dims(kind)}")
        return kind

    def _suggest_dims(self, kind: TensorType | None) -> str:
        dims = [dim for dim in (kind.shape or ()) if isinstance(dim, str)] if kind else []
        named = list_symbolic_dims(self.index.proto)
        wanted = [dim for dim in dict.fromkeys(dims) if dim in named] or named
        if not wanted:
            return "an extent is not known before the model runs, and no --dim NAME=SIZE settles it"
        asked = " ".join(f"--dim {dim}=SIZE" for dim in wanted)
        return f"an extent is not known, which {asked} may settle"


Array = NDArray[Any]

_MOST_ELEMENTS = 1024
RANDOM_OPERATORS = frozenset({"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"})
"""Operators that make other outputs of the same inputs each time."""


def infer_extents(index: GraphIndex) -> dict[str, TensorType]:
    """Return the types of a graph's tensors, with the extents that follow from other extents."""
    types = dict(index.types)
    if all(kind.elements is not None for kind in types.values()):
        return types
    values: dict[str, Array] = {}
    for node in index.nodes:
        if not is_onnx(node) or any(True for _ in walk_bodies(node)):
            continue
        given = {
            name: value
            for name in node.input
            if (value := _known_value(index, values, name)) is not None
        }
        if any(_is_unknown(types, name) for name in node.output if name):
            for name, kind in _infer_types(index, node, types, given).items():
                if name in node.output and _is_unknown(types, name):
                    types[name] = kind
        values.update(_compute_values(index, node, types, given))
    return types


def with_inferred_extents(index: GraphIndex) -> GraphIndex:
    """Return an index of the same nodes with the types of `infer_extents`.

    Stored tensors are constants there, even those a caller may override. The index itself is returned if
    nothing changes.
    """
    types = infer_extents(index)
    stored = {tensor.name for tensor in index.graph.initializer}
    defaults = (
        [v.name for v in index.graph.input if v.name in stored] if index.has_default_inputs else []
    )
    if not defaults and types == index.types:
        return index
    values = {**index.type_protos, **{name: write_type(kind) for name, kind in types.items()}}
    if not defaults or index.body is not None:
        return replace(index, type_protos=values)
    proto = copy_without(index.proto, "input")
    proto.graph.input.extend(v for v in index.graph.input if v.name not in stored)
    return replace(index, proto=proto, type_protos=values)


def _is_unknown(types: Mapping[str, TensorType], name: str) -> bool:
    return name not in types or types[name].elements is None


def _known_value(index: GraphIndex, values: Mapping[str, Array], name: str) -> Array | None:
    if not name or name in values:
        return values.get(name)
    return get_constant_value(index, name) if index.is_constant(name) else None


def _infer_types(
    index: GraphIndex, node: NodeProto, types: Mapping[str, TensorType], given: Mapping[str, Array]
) -> dict[str, TensorType]:
    """Infer the types of a node's outputs by ONNX from the types and values of its inputs."""
    schema = index.get_schema(node)
    if schema is None or schema.onnx_schema is None:
        return {}
    if any(name and name not in types for name in node.input):
        return {}
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema.onnx_schema,
            node,
            {name: write_type(types[name]) for name in node.input if name},
            {name: numpy_helper.from_array(value, name) for name, value in given.items()},
            opset_imports=list(index.proto.opset_import),
            ir_version=index.proto.ir_version,
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}  # what is known of it stays what it was
    kinds = {name: read_type(kind) for name, kind in found.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _compute_values(
    index: GraphIndex, node: NodeProto, types: Mapping[str, TensorType], given: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the values of a node's outputs if they are small and follow from shapes alone."""
    if node.op_type == "Shape" and not _is_unknown(types, node.input[0]):
        extents = np.array(types[node.input[0]].shape or (), np.int64)
        part = get_stated_attributes(node)
        return {node.output[0]: extents[part.get("start", 0) : part.get("end")]}
    if node.op_type == "Size" and not _is_unknown(types, node.input[0]):
        return {node.output[0]: np.array(types[node.input[0]].elements, np.int64)}
    if node.op_type in RANDOM_OPERATORS or not node.input:
        return {}
    if not all(name in given or not name for name in node.input):
        return {}
    if any(_is_unknown(types, n) or (types[n].elements or 0) > _MOST_ELEMENTS for n in node.output if n):
        return {}
    return _evaluate_node(index, node, [given[name] for name in dict.fromkeys(node.input) if name])


def _evaluate_node(index: GraphIndex, node: NodeProto, inputs: Sequence[Array]) -> dict[str, Array]:
    names = [name for name in dict.fromkeys(node.input) if name]
    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "one",
        [onnx.ValueInfoProto(name=name) for name in names],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    model = helper.make_model(
        graph, opset_imports=index.proto.opset_import, ir_version=index.proto.ir_version
    )
    try:
        with np.errstate(all="ignore"):  # a division by zero here is one when it runs
            made = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    except Exception:  # an operator that the reference implementation lacks, or wrong attributes
        return {}
    return {name: np.asarray(value) for name, value in zip(outputs, made, strict=True)}
