"""Open dimensions of a model: which there are, what they are given to be, and where unknown types begin.

Where a shape is not known, nor are most shapes behind it. A user can settle the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from weakref import WeakKeyDictionary

from onnx import ModelProto, NodeProto, TensorShapeProto, TypeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError, suggest_nearest
from byoc.model._dimensions import Dimensions
from byoc.model._graph_index import GraphIndex
from byoc.model._heavy_weights import replace_weights
from byoc.model._inference._extents import (
    evaluate_dim,
    list_dim_names,
    parse_dim,
    substitute_dim,
    subtract_dims,
)
from byoc.model._inference._shape_inference import clear_output_shapes, infer_types
from byoc.model._tensor_data import Dim, TensorType, read_type
from byoc.model._walk import (
    describe_node,
    get_node_name,
    is_onnx,
    walk_dims,
    walk_graphs,
    walk_value_infos,
)

# Exporters write these for every dimension that they have no name for.
_EMPTY_NAMES = frozenset({"", "?", "-1", "None", "unk", "unknown", "dynamic"})
_RANGE = re.compile(r"([0-9]+) *\.\. *([0-9]+)")
_HYPHEN_OR_QUOTED = re.compile(r"('[^']*')|-")
_NUMBER = re.compile(r"-?[0-9]+")
_MAX_SIZE = 2**63 - 1
_BOUNDS = "a size is at least 0 and less than 2**63"
_EXPECTED = "a size is written as 4, a relation as past+seq, a range as 1..64"


@dataclass(frozen=True)
class FixedModel:
    """A model in which given dimensions have their sizes.

    `ranges` has the least and the largest size of dimensions given as a range; these stay open.
    """

    proto: ModelProto
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def list_open_dims(proto: ModelProto) -> list[str]:
    """Return the names of the open dimensions of the graph inputs, in order.

    One without a name of its own is called `input[axis]`. Inputs with a default are left out.
    """
    stored = {tensor.name for tensor in proto.graph.initializer}
    names: dict[str, None] = {}
    for value in proto.graph.input:
        for axis, dim in enumerate(() if value.name in stored else walk_dims(value.type)):
            if not _is_fixed(dim):
                names[_name_dim(value.name, axis, dim.dim_param)] = None
    return list(names)


def name_open_dims(proto: ModelProto) -> None:
    """Name the open dimensions of the graph inputs that have no name, in place: `input[axis]`."""
    for value in proto.graph.input:
        for axis, dim in enumerate(walk_dims(value.type)):
            if not _is_fixed(dim):
                dim.dim_param = _name_dim(value.name, axis, dim.dim_param)


def name_extents(name: str, kind: TensorType) -> TensorType:
    """Return the type of an input whose open extents have names, as `name_open_dims` gives them."""
    if kind.shape is None:
        return kind
    dims = enumerate(kind.shape)
    shape = (dim if isinstance(dim, int) else _name_dim(name, axis, dim or "") for axis, dim in dims)
    return TensorType(kind.dtype, tuple(shape))


def fix_dims(proto: ModelProto, given: Dimensions) -> FixedModel:
    """Return a copy in which dimensions are as the user says, in bodies and functions, too.

    Raises InputError for an input, a dimension or a name in a relation that is not there, for a shape of
    another rank, a size below 0, a range that ends before it begins, and for sizes that contradict each
    other or the model.
    """
    ranges, equations = _read_given(proto, given)
    meanings = _solve(equations)
    for name in ranges:
        if name in meanings:
            origin = f"dimension {name}={given.dims[name]}"
            raise InputError(f"{origin}: it is {meanings[name]} by what else was given")
    result = deepcopy(proto)
    for value in result.graph.input:
        for axis, dim in enumerate(walk_dims(value.type)):
            name = _name_dim(value.name, axis, dim.dim_param)
            if not _is_fixed(dim) and name in meanings:
                _write_dim(dim, meanings[name])
    for value in walk_value_infos(result):
        for dim in walk_dims(value.type):
            if dim.dim_param not in _EMPTY_NAMES:
                _write_dim(dim, substitute_dim(parse_dim(dim.dim_param), meanings))
    return FixedModel(result, ranges)


@dataclass(frozen=True, slots=True)
class _Equation:
    """A name, its meaning (the size or expression that it equals), and the option that says so."""

    name: str
    meaning: int | str
    origin: str


def _read_given(
    proto: ModelProto, given: Dimensions
) -> tuple[dict[str, tuple[int, int]], list[_Equation]]:
    """Return the ranges by name, and the equations, that a user gives."""
    known = list_open_dims(proto)
    equations = [
        equation for name, shape in given.shapes.items() for equation in _read_shape(proto, name, shape)
    ]
    # A shape may give dimensions new names.
    new_names = (name for each in equations for name in sorted(list_dim_names(each.meaning)))
    names = dict.fromkeys((*known, *new_names))
    ranges: dict[str, tuple[int, int]] = {}
    for name, value in given.dims.items():
        origin = f"dimension {name}={value}"
        _check_name(name, names, f"no input has a dimension named '{name}'")
        ends = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
        if ends is None:
            meaning = _read_extent(value, origin, names)
            for inner in sorted(list_dim_names(meaning)):
                _check_name(
                    inner, names, f"{origin}: no input has a dimension named '{inner}'", _EXPECTED
                )
            equations.append(_Equation(name, meaning, origin))
            continue
        ranges[name] = int(ends[1]), int(ends[2])
        if ranges[name][0] > ranges[name][1]:
            raise InputError(f"{origin}: the range ends before it begins")
        if ranges[name][1] > _MAX_SIZE:
            raise InputError(f"{origin}: {_BOUNDS}")
    for each in equations:
        if isinstance(each.meaning, int) and not 0 <= each.meaning <= _MAX_SIZE:
            raise InputError(f"{each.origin}: {_BOUNDS}")
    return ranges, equations


def _check_name(name: str, known: Collection[str], problem: str, expected: str = "") -> None:
    if name not in known:
        listed = f"open dimensions: {', '.join(known)}" if known else "no input has an open dimension"
        hint = suggest_nearest(name, known)
        raise InputError("; ".join(filter(None, (f"{problem}{hint}", expected, listed))))


def _read_shape(proto: ModelProto, name: str, shape: Sequence[Dim]) -> Iterator[_Equation]:
    inputs = {value.name: value for value in proto.graph.input}
    origin = f"shape {name}={','.join('?' if dim is None else str(dim) for dim in shape)}"
    if name not in inputs:
        listed = ", ".join(inputs)
        raise InputError(f"{origin}: no such input{suggest_nearest(name, inputs)}; inputs: {listed}")
    kind = inputs[name].type.tensor_type
    if not kind.HasField("shape"):
        raise InputError(f"{origin}: the model does not say how many dimensions '{name}' has")
    if len(kind.shape.dim) != len(shape):
        raise InputError(f"{origin}: '{name}' has {len(kind.shape.dim)} dimensions, not {len(shape)}")
    for axis, (dim, wanted) in enumerate(zip(kind.shape.dim, shape, strict=True)):
        own = dim.dim_value if _is_fixed(dim) else _name_dim(name, axis, dim.dim_param)
        if wanted is None or wanted == own:
            continue
        if isinstance(own, int):
            raise InputError(f"{origin}: dimension {axis} of '{name}' is {own} in the model")
        yield _Equation(own, _read_extent(wanted, origin, ()), origin)


def _solve(equations: Sequence[_Equation]) -> dict[str, Dim]:
    """Return the meaning of each name: a size if it has one, else an expression of open names.

    Raises InputError where two equations contradict each other, or relations go round in a circle.
    """
    sizes: dict[str, int] = {}
    origins: dict[str, str] = {}
    for _ in range(len(equations) + 1):  # an equation finds one size at most, and the last round checks
        for each in equations:
            name, size = _find_size(each, sizes)
            if size is None:
                continue
            if not 0 <= size <= _MAX_SIZE:
                raise InputError(f"{each.origin}: dimension {name} would be {size}")
            if sizes.setdefault(name, size) != size:
                raise InputError(
                    f"{each.origin}: dimension {name} would be {size}, but it is {sizes[name]} "
                    f"by {origins[name]}"
                )
            origins.setdefault(name, each.origin)
    relations: dict[str, _Equation] = {}
    for each in equations:
        left = sorted(name for name in list_dim_names(each.meaning) if name not in sizes)
        if each.name in sizes and left:  # a model cannot say so, thus nothing would hold sizes to it
            raise InputError(
                f"{each.origin}: dimension {each.name} is {sizes[each.name]} by {origins[each.name]}, "
                f"which does not tell the size of {', '.join(left)}: give it, too"
            )
        if each.name not in sizes and relations.setdefault(each.name, each).meaning != each.meaning:
            other = relations[each.name].origin
            raise InputError(f"{each.origin}: {other} gives dimension {each.name}, too")
    meanings: dict[str, Dim] = dict(sizes)
    for name in relations:
        meanings[name] = _follow(name, relations, sizes, ())
    return meanings


def _find_size(each: _Equation, sizes: Mapping[str, int]) -> tuple[str, int | None]:
    """Return a name and the size that an equation gives it, None where it gives none."""
    open_names = [name for name in list_dim_names(each.meaning) if name not in sizes]
    if not open_names:
        return each.name, evaluate_dim(each.meaning, sizes)
    if len(open_names) > 1 or each.name not in sizes:
        return each.name, None
    # If the open name is one of the terms of a sum, its size is what the other terms leave.
    (name,) = open_names
    if name in list_dim_names(subtract_dims(each.meaning, name)):
        return each.name, None
    rest = evaluate_dim(subtract_dims(sizes[each.name], each.meaning), {**sizes, name: 0})
    if rest is None or evaluate_dim(each.meaning, {**sizes, name: rest}) != sizes[each.name]:
        return each.name, None
    return name, rest


def _follow(
    name: str, relations: Mapping[str, _Equation], sizes: Mapping[str, int], path: tuple[str, ...]
) -> Dim:
    """Return the meaning of a name without the names that have meanings of their own.

    `path` has the names on the way here. Raises InputError where the name is among them.
    """
    if name in path:
        raise InputError(f"{relations[name].origin}: the relations go round in a circle")
    meaning = relations[name].meaning
    inner: dict[str, Dim] = dict(sizes)
    for each in list_dim_names(meaning):
        if each in relations:
            inner[each] = _follow(each, relations, sizes, (*path, name))
    return substitute_dim(meaning, inner)


def _read_extent(given: int | str, origin: str, known: Collection[str]) -> int | str:
    """Return a size or an expression; names that need quotes in one, such as `x[0]`, get them."""
    if isinstance(given, int):
        return given
    text = given.strip()
    others = sorted((name for name in known if not name.isidentifier()), key=len, reverse=True)
    if others and text not in known:
        # In quotes already, or one of these names: the longest, since one may be a part of another.
        named = re.compile("|".join(["'[^']*'", *map(re.escape, others)]))
        text = named.sub(lambda match: f"'{match[0].strip(chr(39))}'", text)
    if not _NUMBER.fullmatch(text) and text not in known:  # here a hyphen is a minus
        text = _HYPHEN_OR_QUOTED.sub(lambda match: match[1] or " - ", text)
    found = int(text) if _NUMBER.fullmatch(text) else parse_dim(text)
    opaque = found == text and not text.isidentifier() and text not in known
    if found is None or (opaque and list_dim_names(found) == {text}):
        raise InputError(f"{origin}: '{given}' is no size, relation or range; {_EXPECTED}")
    return found


def _is_fixed(dim: TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _name_dim(name: str, axis: int, own: str) -> str:
    return f"{name}[{axis}]" if own in _EMPTY_NAMES else own


def _write_dim(dim: TensorShapeProto.Dimension, size: Dim) -> None:
    if isinstance(size, int):
        dim.dim_value = size
    elif size is not None:
        dim.dim_param = size


# Types that hold at run time, whatever the file states: inferred from the inputs and constants
# alone.
#
# A partitioned model states no other shapes. Where onnxruntime cannot infer a type, behind a
# function for instance, it computes with the stated one, and refuses a model in which that does not
# fit.

CertainTypes = Mapping[GraphIndex, Mapping[str, TypeProto]]
"""The certain types of each graph of a model, bodies included, by its index."""


def find_certain_types(root: GraphIndex) -> CertainTypes:
    """Return the certain types of each graph: those of a model that states none beyond its inputs.

    The types in `root` plan; they may follow from stated ones.
    """
    if root.certain:
        return {index: index.type_protos for index in root.walk()}
    pairs = zip(root.walk(), type_certainly(root).walk(), strict=True)
    return {index: other.type_protos for index, other in pairs}


def type_certainly(root: GraphIndex) -> GraphIndex:
    """Return an index of the same nodes whose types are certain: the given one, if its are.

    It is of a model without weights, and has no typed graph where inference fails.
    """
    if root.certain:
        return root
    bare = replace_weights(root.proto, "value_info")
    name_open_dims(bare)
    for graph in walk_graphs(bare.graph):
        del graph.value_info[:]
        clear_output_shapes(graph)
    found = infer_types(bare, {})
    return GraphIndex(bare, found.type_protos, found.typed_graph)


_INTEGERS = frozenset({"int64", "int32"})


@dataclass(frozen=True, slots=True)
class TypeOrigin:
    """Why the types behind a tensor are not known (`cause`, a sentence), and what settles it.

    `remedy` says it, empty where nothing does; `flags` are those of the command line that it is made of.
    `names` are the nodes and tensors that the sentence quotes.
    """

    tensor: str
    cause: str
    remedy: str
    flags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return for instance `dimension N of input 'x' is not fixed (--dim N=SIZE)`."""
        return f"{self.cause} ({self.remedy})" if self.remedy else self.cause


def find_type_origin(index: GraphIndex, tensors: Sequence[str]) -> TypeOrigin | None:
    """Return the origin of the first of some tensors whose type is not fully known, None if all are.

    A tensor without a known rank, extent or dtype comes before one with open dimensions. In a body the
    origin may lie in a graph around it.
    """
    found = _get_origins(index)
    vague = next((found[name] for name in tensors if name in found), None)
    if vague is not None:
        return vague
    return next((origin for name in tensors for origin in _find_open_dims(index, name)), None)


_ORIGINS: WeakKeyDictionary[GraphIndex, Mapping[str, TypeOrigin]] = WeakKeyDictionary()


def _get_origins(index: GraphIndex) -> Mapping[str, TypeOrigin]:
    if index not in _ORIGINS:
        _ORIGINS[index] = _find_origins(index)
    return _ORIGINS[index]


def _find_origins(index: GraphIndex) -> dict[str, TypeOrigin]:
    """Return the origin of each tensor with a type that is not known, in topological order.

    Values matter, too: the shape that a Reshape takes from the Shape of an unknown tensor is itself of
    a known type. So integers computed from an unknown shape carry its origin along.
    """
    named = frozenset(list_open_dims(index.proto))
    found = dict(_list_outer_origins(index, named))
    carried: dict[str, TypeOrigin] = {}
    for node, reads in zip(index.nodes, index.reads, strict=True):
        before = next((found[name] for name in reads if name in found), None)
        computed = before or next((carried[name] for name in reads if name in carried), None)
        for name in node.output:
            if not name:
                continue
            if _is_vague(index, name, named):
                found[name] = computed or _make_node_origin(index, node, name)
            elif computed is not None and index.get_dtype(name) in _INTEGERS:
                carried[name] = computed
    return found


def _list_outer_origins(index: GraphIndex, named: frozenset[str]) -> Iterator[tuple[str, TypeOrigin]]:
    """Yield the inputs of a graph whose types are not known, and in a body the captured tensors."""
    outer = index.outer
    around = _get_origins(outer) if outer is not None else {}
    for name in index.captured_names:
        if name in around:
            yield name, around[name]
    given = _map_body_inputs(index)
    for name in index.inputs:
        if not _is_vague(index, name, named):
            continue
        if outer is None:
            yield name, _make_input_origin(index, name)
        elif given.get(name) in around:
            yield name, around[given[name]]
        else:
            cause = f"the shape of '{name}', an input of a body, is not known"
            yield name, TypeOrigin(name, cause, "state it in the body", names=(name,))


def _map_body_inputs(index: GraphIndex) -> dict[str, str]:
    """Return the outer tensor that each input of a body starts with, in a Loop or a Scan."""
    if index.outer is None:
        return {}
    for number, bodies in index.outer.bodies.items():
        if any(body.index is index for body in bodies):
            names = [value.name for value in index.graph.input]
            return dict(zip(names, index.outer.nodes[number].input, strict=False))
    return {}


def _make_input_origin(index: GraphIndex, name: str) -> TypeOrigin:
    shape = index.get_shape(name)
    remedy = f"--shape {name}=EXTENTS"
    if shape is None:
        return TypeOrigin(name, f"the rank of input '{name}' is not known", remedy, (remedy,), (name,))
    axis = next(axis for axis, dim in enumerate(shape) if not isinstance(dim, int))
    cause = f"dimension {axis} of input '{name}' has neither size nor name"
    return TypeOrigin(name, cause, remedy, (remedy,), (name,))


def _is_vague(index: GraphIndex, name: str, named: frozenset[str]) -> bool:
    """Return whether a rank, an extent or the dtype of a tensor is not known, even by name."""
    shape = index.get_shape(name)
    return shape is None or any(_is_unknown(dim, named) for dim in shape)


def _is_unknown(dim: Dim, named: frozenset[str]) -> bool:
    if isinstance(dim, int):
        return False
    return dim is None or not list_dim_names(dim) <= named


def _find_open_dims(index: GraphIndex, name: str) -> Iterator[TypeOrigin]:
    """Yield the open dimensions of graph inputs that the shape of a tensor depends on."""
    names = {each for dim in index.get_shape(name) or () for each in _list_names(dim)}
    for value in index.proto.graph.input if names else ():
        kind = read_type(value.type)
        for dim in (kind.shape or ()) if kind is not None else ():
            for each in sorted(_list_names(dim) & names):
                cause = f"dimension {each} of input '{value.name}' is not fixed"
                remedy = _suggest_size(index, each)
                yield TypeOrigin(value.name, cause, remedy, (f"--dim {each}=SIZE",), (value.name,))


def _suggest_size(index: GraphIndex, *dims: str) -> str:
    """Return the flags that fix open dimensions; of ranges, that these leave them open."""
    flags = " ".join(f"--dim {dim}=SIZE" for dim in dims)
    ranges = index.planned.ranges
    given = [f"{dim}={ranges[dim][0]}..{ranges[dim][1]}" for dim in dims if dim in ranges]
    told = f"range {given[0]} leaves it" if len(given) == 1 else f"ranges {' '.join(given)} leave them"
    return f"{flags}, since the {told} open" if given else flags


# Operators that make as much as the values say that they read, whatever the shapes of these are.
_BY_VALUE = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression", "StringSplit"})
# Of a dimension in a trial, where no plan counts with one: as good as any.
_SIZE = 2


def _make_node_origin(index: GraphIndex, node: NodeProto, name: str) -> TypeOrigin:
    """Return the origin of a tensor of unknown shape that a node makes of what is known.

    Where sizes of the model's open dimensions settle it, these are the remedy. Where it depends on
    values, nothing is.
    """
    cause = f"the shape of '{name}', which {describe_node(node)} makes, is not known"
    names = (name, get_node_name(node))
    dims = _find_settling_dims(index, node, name)
    if dims:
        flags = tuple(f"--dim {dim}=SIZE" for dim in dims)
        return TypeOrigin(name, cause, _suggest_size(index, *dims), flags, names)
    if node.op_type in _BY_VALUE and is_onnx(node):
        return TypeOrigin(name, f"{cause}: it depends on values", "", names=names)
    kind = index.type_protos.get(name)
    if kind is not None and not kind.HasField("tensor_type"):
        return TypeOrigin(name, f"{cause}: it is no tensor", "", names=names)
    return TypeOrigin(name, cause, "state it as value_info of the model", names=names)


def _find_settling_dims(index: GraphIndex, node: NodeProto, name: str) -> tuple[str, ...]:
    """Return open dimensions whose sizes make the shape of a main graph's tensor known; none if none."""
    if index.outer is not None:
        return ()
    opened = tuple(dim for dim in list_open_dims(index.proto) if dim.isidentifier())
    extents = (dim for made in node.input for dim in index.get_shape(made) or ())
    read = {each for dim in extents for each in _list_names(dim)}
    near = tuple(dim for dim in opened if dim in read)
    for dims in dict.fromkeys((near, opened)):
        if dims and name in _find_fixed(index, dims):
            return dims
    return ()


_FIXED: WeakKeyDictionary[GraphIndex, dict[tuple[str, ...], frozenset[str]]] = WeakKeyDictionary()


def _find_fixed(root: GraphIndex, dims: tuple[str, ...]) -> frozenset[str]:
    """Return the tensors of a main graph that have a known shape where some dimensions have sizes."""
    known = _FIXED.setdefault(root, {})
    if dims not in known:
        sizes = {dim: root.planned.sizes.get(dim, _SIZE) for dim in dims}
        try:
            bare = replace_weights(fix_dims(replace_weights(root.proto), Dimensions(sizes)).proto)
            found = infer_types(bare, {}).type_protos
        except InputError:  # the model has no such sizes
            found = {}
        kinds = {name: read_type(proto) for name, proto in found.items()}
        known[dims] = frozenset(
            name
            for name, kind in kinds.items()
            if kind is not None
            and kind.shape is not None
            and all(isinstance(dim, int) for dim in kind.shape)
        )
    return known[dims]


def _list_names(dim: Dim) -> frozenset[str]:
    return list_dim_names(dim) if isinstance(dim, str) else frozenset()
