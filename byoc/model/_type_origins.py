"""Types that hold whatever the file states, and the node or input behind which a type is not known.

Where a shape is not known, nor are most shapes behind it. A user can settle the first of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from onnx import NodeProto, TypeProto

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model._dimensions import Dimensions, fix_dims, list_open_dims, name_open_dims
from byoc.model._graph_index import GraphIndex
from byoc.model._heavy_weights import replace_weights
from byoc.model._inference._extents import list_dim_names
from byoc.model._inference._shape_inference import clear_output_shapes, infer_types
from byoc.model._tensor_data import Dim, read_type
from byoc.model._walk import describe_node, get_node_name, is_onnx, walk_graphs

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


_ORIGINS: "WeakKeyDictionary[GraphIndex, Mapping[str, TypeOrigin]]" = WeakKeyDictionary()


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
    return f"{flags}, since the range {' '.join(given)} leaves it open" if given else flags


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


_FIXED: "WeakKeyDictionary[GraphIndex, dict[tuple[str, ...], frozenset[str]]]" = WeakKeyDictionary()


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
