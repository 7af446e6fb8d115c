"""Extents that must be equal, or multiples of a number, for a model's operators to fit together."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import gcd, lcm, prod

import onnx.inliner
from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model import (
    Dim,
    GraphIndex,
    TensorType,
    add_dims,
    evaluate_dim,
    get_constant_value,
    get_input,
    get_stated_types,
    infer_types,
    list_dim_names,
    name_extents,
    name_open_dims,
    replace_weights,
    subtract_dims,
)

# Tracing of a model's inputs to the operators that read their numbers, behind reshapes and casts.

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


Shape = tuple[Dim, ...]

_BROADCASTING = frozenset(
    [
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "And", "Or", "Xor", "PRelu"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ]
)
_WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool", "QLinearConv", "ConvInteger"})
# Normalizations: the axis whose extent is that of the scale (input 1).
_SCALED_AXES = {
    "LayerNormalization": -1,
    "SimplifiedLayerNormalization": -1,
    "RMSNormalization": -1,
    "BatchNormalization": 1,
    "InstanceNormalization": 1,
    "GroupNormalization": 1,
}


@dataclass(eq=False)
class SizeRelations:
    """Relations between the open dimensions of a model's inputs.

    `meanings` maps names to what they equal: a number, a name or an expression. `multiples` maps names
    to a number that divides them. `least` has pairs of an extent and its least size, since the window of
    a convolution or a pool has to fit into it.
    """

    meanings: dict[str, Dim] = field(default_factory=dict)
    multiples: dict[str, int] = field(default_factory=dict)
    least: list[tuple[Dim, int]] = field(default_factory=list)

    def has_room(self, sizes: Mapping[str, int]) -> bool:
        """Return whether each window fits, as far as is known, at sizes of all names."""
        extents = ((evaluate_dim(dim, sizes), least) for dim, least in self.least)
        return all(size is None or size >= least for size, least in extents)

    def resolve(self, dim: Dim, sizes: dict[str, int]) -> int | None:
        """Return the number that an extent is at sizes of the free names, None if it is not known."""
        names = dict(sizes)
        pending = [dim]
        for _ in range(len(self.meanings) + 1):
            missing = [n for each in pending for n in list_dim_names(each) if n not in names]
            if not missing:
                break
            pending = [self.meanings[name] for name in missing if name in self.meanings]
            for name in missing:
                size = evaluate_dim(self.meanings.get(name), names)
                if size is not None:
                    names[name] = size
            pending += [dim]
        return evaluate_dim(dim, names)

    def equate(self, one: Dim, other: Dim) -> None:
        """Record that two extents are equal, if that gives a name a meaning."""
        one, other = self._reduce(one), self._reduce(other)
        if one is None or other is None or one == other:
            return
        if not _is_name(one):
            one, other = other, one
        if isinstance(one, str) and _is_name(one):
            self._define(one, other)
            return
        difference = subtract_dims(one, other)
        for name in sorted(list_dim_names(difference)):
            for solved in (subtract_dims(name, difference), add_dims(name, difference)):
                if solved is not None and name not in list_dim_names(solved):
                    self._define(name, solved)
                    return

    def _define(self, name: str, meaning: Dim) -> None:
        """Record the meaning of a name that has none, unless the name occurs in it."""
        if name not in self.meanings and name not in self.list_all_names(meaning):
            self.meanings[name] = meaning

    def _reduce(self, dim: Dim) -> Dim:
        while isinstance(dim, str) and dim in self.meanings:
            dim = self.meanings[dim]
        return dim

    def list_all_names(self, dim: Dim) -> set[str]:
        """Return the names in an extent, and those in what they stand for."""
        found: set[str] = set()
        pending = [dim]
        while pending:
            for name in list_dim_names(pending.pop()) - found:
                found.add(name)
                pending.append(self.meanings.get(name))
        return found


def _is_name(dim: Dim) -> bool:
    return isinstance(dim, str) and list_dim_names(dim) <= {dim}


def find_relations(traced: TracedInputs) -> SizeRelations:
    """Return the relations between open dimensions that the operators of a model require."""
    found = SizeRelations()
    open_names = {
        name
        for kind in traced.types.values()
        for dim in (kind.shape if kind and kind.shape else ())
        for name in list_dim_names(dim)
    }
    if not open_names:
        return found
    graphs = list(traced.index.walk())
    for rule in (_list_equal, _list_broadcast):
        for graph in graphs:
            for node in graph.nodes:
                for one, other in rule(graph, node):
                    if (list_dim_names(one) | list_dim_names(other)) & open_names:
                        found.equate(one, other)
    for graph in graphs:
        for node in graph.nodes:
            if node.op_type == "Reshape":
                _note_reshape(graph, node, found, open_names)
            elif node.op_type in _WINDOWED:
                found.least += _list_least(graph, node)
    return found


def list_met_extents(graph: GraphIndex, node: NodeProto) -> Iterator[tuple[Dim, Dim]]:
    """Yield extents that meet in a node: they are equal, or one is 1 and broadcast."""
    yield from _list_equal(graph, node)
    yield from _list_broadcast(graph, node)


def _list_least(graph: GraphIndex, node: NodeProto) -> Iterator[tuple[Dim, int]]:
    """Yield open extents that a window slides over, and its extents without the padding."""
    shape, attributes = graph.get_shape(get_input(node, 0)), graph.get_attributes(node)
    weights = graph.get_shape(get_input(node, 1)) if "Conv" in node.op_type else None
    window = attributes.get("kernel_shape") or (weights or ())[2:]
    if not shape or len(shape) != len(window) + 2 or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return
    count = len(window)
    pads = attributes.get("pads") or [0] * (2 * count)
    dilations = attributes.get("dilations") or [1] * count
    for axis, (dim, size) in enumerate(zip(shape[2:], window, strict=True)):
        if isinstance(dim, str) and isinstance(size, int):
            yield dim, (size - 1) * dilations[axis] + 1 - pads[axis] - pads[axis + count]


def _list_equal(graph: GraphIndex, node: NodeProto) -> Iterator[tuple[Dim, Dim]]:
    """Yield extents that must be equal."""
    shapes = [graph.get_shape(name) if name else None for name in node.input]
    first = shapes[0] if shapes else None
    second = shapes[1] if len(shapes) > 1 else None
    if node.op_type in ("Concat", "Einsum"):
        yield from _list_joined(graph, node, shapes)
        return
    if not first or not second:
        return
    match node.op_type:
        case "MatMul" | "MatMulInteger" | "FusedMatMul":
            yield first[-1], second[-2 if len(second) > 1 else -1]
        case "Gemm" if len(first) == len(second) == 2:
            attributes = graph.get_attributes(node)
            yield (
                first[0 if attributes.get("transA") else 1],
                second[1 if attributes.get("transB") else 0],
            )
        case "Conv" | "ConvInteger" | "FusedConv" if len(first) > 1 and isinstance(second[1], int):
            yield first[1], second[1] * int(graph.get_attributes(node).get("group", 1))
        case "ConvTranspose" if len(first) > 1:
            yield first[1], second[0]
        case "LSTM" | "GRU" | "RNN" if len(first) == len(second) == 3:
            yield from _list_recurrent(graph, node, shapes)
        case name if name in _SCALED_AXES and len(first) > 1:
            yield first[_SCALED_AXES[name]], second[-1]


def _list_recurrent(
    graph: GraphIndex, node: NodeProto, shapes: list[Shape | None]
) -> Iterator[tuple[Dim, Dim]]:
    """Yield equal extents of X [sequence, batch, input], W, R and the initial states."""
    x, weights, recurrent = shapes[0], shapes[1], shapes[2] if len(shapes) > 2 else None
    assert x is not None
    assert weights is not None
    yield x[2], weights[2]
    swapped = bool(graph.get_attributes(node).get("layout"))
    lengths = shapes[4] if len(shapes) > 4 else None
    if lengths:
        yield lengths[0], x[0 if swapped else 1]
    for state in shapes[5:7]:
        if state and len(state) == 3:
            yield state[0 if swapped else 1], x[0 if swapped else 1]
            yield state[1 if swapped else 0], weights[0]
            if recurrent:
                yield state[2], recurrent[2]


def _list_joined(
    graph: GraphIndex, node: NodeProto, shapes: list[Shape | None]
) -> Iterator[tuple[Dim, Dim]]:
    """Yield equal extents of the inputs of a Concat or an Einsum."""
    attributes = graph.get_attributes(node)
    if node.op_type == "Concat":
        ranked = [shape for shape in shapes if shape]
        axis = int(attributes.get("axis", 0))
        for other in ranked[1:]:
            if len(other) == len(ranked[0]):
                but = axis % len(other)
                yield from (
                    (a, b) for i, (a, b) in enumerate(zip(ranked[0], other, strict=True)) if i != but
                )
        return
    letters: dict[str, Dim] = {}
    terms = str(attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    for term, shape in zip(terms, shapes, strict=False):
        if shape and len(shape) == len(term):
            for letter, dim in zip(term, shape, strict=True):
                yield letters.setdefault(letter, dim), dim


def _list_broadcast(graph: GraphIndex, node: NodeProto) -> Iterator[tuple[Dim, Dim]]:
    """Yield extents that meet by broadcasting: one is 1, or both are equal."""
    if node.op_type not in _BROADCASTING:
        return
    shapes = [shape for name in node.input if (shape := graph.get_shape(name)) is not None]
    for i, one in enumerate(shapes):
        for other in shapes[i + 1 :]:
            yield from (
                (a, b) for a, b in zip(reversed(one), reversed(other), strict=False) if 1 not in (a, b)
            )


def _note_reshape(
    graph: GraphIndex, node: NodeProto, found: SizeRelations, open_names: Iterable[str]
) -> None:
    """Take note of what a Reshape to a constant shape asks of the number of elements."""
    shape = graph.get_shape(get_input(node, 0))
    target = get_constant_value(graph, get_input(node, 1))
    if shape is None or target is None or any(dim is None for dim in shape):
        return
    wanted = [int(size) for size in target.ravel()]
    kept = [shape[axis] for axis, size in enumerate(wanted) if size == 0 and axis < len(shape)]
    left = list(shape)
    for dim in kept:
        left.remove(dim)
    fixed = prod(dim for dim in left if isinstance(dim, int))
    names = [dim for dim in left if isinstance(dim, str)]
    count = prod(size for size in wanted if size > 0)
    free = [name for name in names if name in open_names and name not in found.meanings]
    if not fixed or not free:
        return
    if -1 not in wanted and len(names) == 1 and count % fixed == 0:
        found.equate(names[0], count // fixed)
        return
    need = count // gcd(count, fixed)
    if need > 1:
        found.multiples[free[-1]] = lcm(found.multiples.get(free[-1], 1), need)
