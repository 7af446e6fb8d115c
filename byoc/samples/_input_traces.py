"""Tracing of a model's inputs to the operators that read their numbers, behind reshapes and casts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx.inliner
from onnx import NodeProto

from byoc.errors import InputError
from byoc.model import (
    Dim,
    GraphIndex,
    TensorType,
    get_input,
    get_stated_types,
    infer_types,
    name_extents,
    name_open_dims,
    replace_weights,
)

# Operators whose first output holds numbers of the first input, or of all inputs.
_MOVING_OPERATORS = frozenset(
    [
        *("Cast", "CastLike", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Expand", "Tile", "Slice", "Gather", "GatherElements", "GatherND", "Split", "Pad"),
        *("DepthToSpace", "SpaceToDepth", "Compress", "ReverseSequence", "Trilu"),
    ]
)
_JOINING_OPERATORS = frozenset({"Concat"})


@dataclass(frozen=True, eq=False)
class Use:
    """A node that reads the numbers of an input, in place `position` of its own inputs."""

    graph: GraphIndex
    node: NodeProto
    position: int

    @property
    def key(self) -> tuple[str, int]:
        """The operator and the place, such as `("Gather", 1)`."""
        return self.node.op_type, self.position

    def get_shape(self, position: int) -> tuple[Dim, ...] | None:
        """Return the shape of one of the node's inputs, None if its rank is not known."""
        return self.graph.get_shape(get_input(self.node, position))


@dataclass(frozen=True, eq=False)
class TracedInputs:
    """The inputs of a model that need a value: their types, and who reads their numbers.

    Open extents without a name are called `input[axis]`. `index` is one of the model with its functions
    inlined and without large weights.
    """

    index: GraphIndex
    types: Mapping[str, TensorType | None]
    uses: Mapping[str, tuple[Use, ...]]


def trace_inputs(index: GraphIndex) -> TracedInputs:
    """Find out who reads the inputs of a model. Inputs with a default are left out."""
    defaults = {tensor.name for tensor in index.proto.graph.initializer}
    names = [name for name in index.inputs if name not in defaults]
    known = index.types
    types = {name: name_extents(name, known[name]) if name in known else None for name in names}
    inner = _make_plain_index(index, types)
    found: dict[str, list[Use]] = {name: [] for name in names}
    _collect_uses(inner, {name: (name,) for name in names}, found)
    return TracedInputs(inner, types, {name: tuple(uses) for name, uses in found.items()})


def _make_plain_index(index: GraphIndex, types: Mapping[str, TensorType | None]) -> GraphIndex:
    """Return an index of the model without functions, whose open extents have names."""
    if not index.proto.functions and all(types[name] == index.types.get(name) for name in types):
        return index
    proto = replace_weights(index.proto)
    name_open_dims(proto)
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        result = infer_types(proto, get_stated_types(proto))
    except (InputError, RuntimeError, ValueError):
        return index
    return GraphIndex(proto, result.type_protos, result.typed_graph)


def _collect_uses(
    graph: GraphIndex, outer: Mapping[str, tuple[str, ...]], found: Mapping[str, list[Use]]
) -> None:
    """Add the uses in a graph and its bodies; `outer` has the inputs that known tensors come from."""
    sources = dict(outer)
    for number, node in enumerate(graph.nodes):
        for position, name in enumerate(node.input):
            for source in sources.get(name, ()):
                found[source].append(Use(graph, node, position))
        moved = tuple(dict.fromkeys(s for name in _list_moved(node) for s in sources.get(name, ())))
        if moved:
            sources.update((name, moved) for name in node.output if name)
        for body in graph.bodies.get(number, ()):
            _collect_uses(body.index, sources, found)


def _list_moved(node: NodeProto) -> Collection[str]:
    if node.op_type in _JOINING_OPERATORS:
        return node.input
    return node.input[:1] if node.op_type in _MOVING_OPERATORS else ()
