"""Caches of a fixed length: a model that makes its cache longer by a Concat, rewritten.

Such a model reads a cache of any length, its *past*, and gives it back with some new rows behind it. In
the static form the cache has one length before and after. An input that no caller gives, the *mask*,
says which rows hold anything: those of the past and the new ones.

- New rows are added to the zeros that stand where they belong: `present = past + mark * new`.
- What the graph computes of the length of the past, such as positions, counts the mask; what makes
  extents of it takes those of the cache (`byoc.padding._past_lengths`).
- A Softmax over the cache has minus infinity added behind the rows that hold anything: masks of the
  model may not say where that is, and nothing is known of scores that they are to outweigh.

That the results are then those of the model is not assumed: the static form whose cache is full computes
what the model does, node by node, and that a longer cache changes nothing is proven as for any padding.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from onnx import NodeProto, TensorProto, TensorShapeProto, helper

from byoc.errors import InputError
from byoc.model import (
    Dim,
    Dimensions,
    EditableGraph,
    Model,
    StatePair,
    build_node,
    copy_without,
    describe_node,
    find_state_pairs,
    get_stated_attributes,
    is_onnx,
    parse_dim,
    prepare_model,
    substitute_dim,
    walk_dims,
    walk_value_infos,
)
from byoc.padding._padded_graph import OPSET_OF_ONE_AXIS, PaddedGraph
from byoc.padding._padding_rule import PaddingRule
from byoc.padding._past_lengths import PastLengths

CACHE_LENGTH = "cache_length"
"""The dimension of a static form that is the length of its cache."""

_MASK = "cache_mask"


@dataclass(frozen=True, eq=False)
class StaticCaches:
    """A model in its static form, whose cache is open along `CACHE_LENGTH`.

    `past` is the dimension of the original that was the length of the past, `total` the one that was
    that of the present, empty where no input has it; `rows` is the number of new rows in a call. `axes`
    has the axis of each input that is a cache, and `mask` is the name of the mask.
    """

    model: Model
    past: str
    total: str
    rows: int
    axes: Mapping[str, int]
    mask: str

    def load(self, sizes: Mapping[str, int | str]) -> Model:
        """Return it with some dimensions at a size, the others open."""
        model = self.model
        given = Dimensions(dict(sizes))
        result = prepare_model(model.structure, model.source, model.folder, given, model.heavy)
        return replace(result, variable=model.variable)

    def complete_rule(self, rule: PaddingRule) -> PaddingRule:
        """Return a rule for the static form in which the length of the past is what may be smaller."""
        filled = {CACHE_LENGTH: f"{self.past} + {self.rows}"}

        def translate(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(substitute_dim(dim, filled) for dim in shape)

        inputs = {
            name: replace(
                each,
                shape=translate(each.shape),
                value=0 if name in self.axes else each.value,  # new rows are added to it
                room=self.rows if name in self.axes else 0,
                made=name == self.mask,
            )
            for name, each in rule.inputs.items()
        }
        return replace(
            rule,
            dims={self.past: rule.dims[CACHE_LENGTH] - self.rows},
            inputs=inputs,
            outputs={name: translate(shape) for name, shape in rule.outputs.items()},
            equal={self.total: f"{self.past} + {self.rows}"} if self.total else {},
        )


@dataclass(frozen=True)
class GrowingCache:
    """A cache that a Concat makes longer: its pair, the Concat's number and axis, and the new rows."""

    pair: StatePair
    number: int
    axis: int
    new: str


@dataclass(frozen=True)
class _Growing:
    """A cache that grows: the dimension of its past, and what its output is called along it."""

    cache: GrowingCache
    past: str
    total: Dim


def _list_growing(model: Model) -> Iterator[_Growing]:
    """Yield the caches of a model whose past is open along the axis of the Concat that grows them.

    Raises InputError for one whose past is open, and which is made in another way.
    """
    index = model.index
    stated = {value.name: value.type for value in model.structure.graph.output}
    for pair in find_state_pairs(model.structure):
        shape = index.get_shape(pair.past) or ()
        cache = _find_concat(model, pair)
        if cache is None:
            if all(isinstance(dim, int) for dim in shape):
                continue
            raise InputError(f"'{pair.present}' is not made by a Concat behind '{pair.past}'")
        past = shape[cache.axis] if cache.axis < len(shape) else None
        if isinstance(past, int):
            continue
        if past is None:
            raise InputError(f"the length of '{pair.past}' has no name")
        dims = list(walk_dims(stated[pair.present]))
        total = parse_dim(dims[cache.axis].dim_param) if cache.axis < len(dims) else None
        yield _Growing(cache, past, total)


def _find_concat(model: Model, pair: StatePair) -> GrowingCache | None:
    """Return the Concat of two parts, the past and new rows, that makes the present of a pair."""
    index = model.index
    number = index.producers.get(_skip_identities(model, pair.present))
    if number is None:
        return None
    node = index.nodes[number]
    if not is_onnx(node) or node.op_type != "Concat" or len(node.input) != 2:
        return None
    if _skip_identities(model, node.input[0]) != pair.past:
        return None
    rank = len(index.get_shape(pair.past) or ())
    axis = int(get_stated_attributes(node)["axis"])
    return GrowingCache(pair, number, axis % rank, node.input[1]) if rank else None


def _skip_identities(model: Model, name: str) -> str:
    """Return the tensor that a tensor is, behind Identities and Concats of one part."""
    index = model.index
    while (number := index.producers.get(name)) is not None:
        node = index.nodes[number]
        is_plain = node.op_type == "Identity" or (node.op_type == "Concat" and len(node.input) == 1)
        if not is_onnx(node) or not is_plain:
            break
        name = node.input[0]
    return name


def find_growing_dims(model: Model) -> tuple[str, str, Dim]:
    """Return the open dimension along which caches grow, that of what they grow to, and by how much.

    The second is the one that an input has and outputs state, empty where there is none. Raises
    InputError where no cache grows, or caches do along several dimensions, or by unequal numbers.
    """
    growing = list(_list_growing(model))
    past = {each.past for each in growing}
    if len(past) != 1:
        raise InputError(
            f"caches grow along {' and '.join(sorted(past))}: they are to grow along one"
            if past
            else "no input is a cache that a Concat makes longer along an open dimension"
        )
    shapes = [(model.index.get_shape(each.cache.new), each.cache.axis) for each in growing]
    rows = {shape[axis] if shape is not None else None for shape, axis in shapes}
    if len(rows) != 1 or None in rows:
        raise InputError(f"by how many rows '{growing[0].cache.pair.past}' grows is not known")
    named = {dim.dim_param for value in model.structure.graph.input for dim in walk_dims(value.type)}
    total = next(
        (each.total for each in growing if isinstance(each.total, str) and each.total in named), ""
    )
    return past.pop(), total, rows.pop()


def make_static(model: Model, past: str, total: str, length: int) -> StaticCaches:
    """Return the static form of a model that is open along the length of its past, and no other.

    The cache is to be `length` long.

    Raises InputError where a node is not understood that reads the length of the past.
    """
    if model.index.opsets.get("", 1) < OPSET_OF_ONE_AXIS:
        raise InputError(f"its opset is older than {OPSET_OF_ONE_AXIS}")
    caches = [each.cache for each in _list_growing(model)]
    _, _, count = find_growing_dims(model)
    if not isinstance(count, int):
        raise InputError(f"caches grow by {count} rows in a call, which has to be a number")
    if count >= length:
        raise InputError(f"caches of {length} rows have no room for {count} new ones and a past")
    rewriting = _Rewriting(model, past, count, length, caches)
    return StaticCaches(
        rewriting.make_model(),
        past,
        total,
        count,
        {cache.pair.past: cache.axis for cache in caches},
        rewriting.mask,
    )


@dataclass(eq=False)
class _Rewriting:
    """The rewriting of one model."""

    model: Model
    past: str
    rows: int
    length: int
    caches: list[GrowingCache]
    mask: str = field(init=False)

    def __post_init__(self) -> None:
        graph = PaddedGraph(self.model, {self.past: self.length}, least=0)
        self.editable = EditableGraph.of_index(self.model.index)
        self.names = self.editable.names
        self.mask = self.names.new_tensor(_MASK)
        self.lengths = PastLengths(graph, self.past, self.rows, self.mask, self.names)
        self.graph = graph

    def make_model(self) -> Model:
        """Return the model, checked and typed. Raises InputError."""
        model = self.model
        for number, node in enumerate(model.index.nodes):
            nodes = list(self._rewrite(number, node))
            if nodes != [node]:
                self.editable.replace(number, *nodes)
        self.editable.insert_first(*self.lengths.nodes)
        self.editable.drop_unread()
        proto = copy_without(model.structure, "value_info")
        self.editable.write_to(proto.graph)
        proto.graph.input.append(
            helper.make_tensor_value_info(self.mask, TensorProto.BOOL, [CACHE_LENGTH])
        )
        caches = {cache.pair.past for cache in self.caches}
        filled: dict[str, Dim] = {self.past: f"{CACHE_LENGTH} - {self.rows}"}
        for value in walk_value_infos(proto):
            for dim in walk_dims(value.type):
                if dim.dim_param:
                    own = {self.past: CACHE_LENGTH} if value.name in caches else filled
                    _write_dim(dim, substitute_dim(parse_dim(dim.dim_param), own))
        for value in proto.graph.output:  # what inference finds is certain
            for dim, known in zip(
                walk_dims(value.type), self.graph.get_shape(value.name) or (), strict=False
            ):
                _write_dim(dim, substitute_dim(known, filled))
        made = prepare_model(proto, model.source, model.folder, heavy=model.heavy)
        return replace(made, variable=model.variable)

    def _rewrite(self, number: int, node: NodeProto) -> Iterator[NodeProto]:
        cache = next((cache for cache in self.caches if cache.number == number), None)
        if cache is not None:
            return self._write_rows(cache)
        return self._guard(node) if self._attends(number) else self.lengths.rewrite(number)

    def _write_rows(self, cache: GrowingCache) -> Iterator[NodeProto]:
        """Yield nodes that add new rows to a cache, where the mask of the filled ones ends."""
        node, dtype = self.model.index.nodes[cache.number], self.graph.get_dtype(cache.new)
        rank = len(self.graph.get_shape(cache.new) or ())
        if dtype not in {"float32", "float16", "float64", "bfloat16"}:
            raise InputError(f"{describe_node(node)} joins {dtype}, not floats")
        if self.rows > 1 and cache.axis != rank - 2:
            raise InputError(
                f"{describe_node(node)} joins several rows along axis {cache.axis} of {rank}"
            )
        mark = self.lengths.make_mark(dtype, rank - 1 - cache.axis)
        name = node.output[0]
        rows = self.names.new_tensor(f"{name}_rows")
        operator = "Mul" if self.rows == 1 else "MatMul"
        yield build_node(operator, [mark, cache.new], [rows], name=self.names.new_node(rows))
        yield build_node("Add", [cache.pair.past, rows], [name], name=node.name)

    def _attends(self, number: int) -> bool:
        """Return whether a node is a Softmax over an axis as long as the cache, as far as is known."""
        node = self.model.index.nodes[number]
        if not is_onnx(node) or node.op_type != "Softmax":
            return False
        shape = self.model.index.get_shape(node.input[0]) or ()
        axis = int(get_stated_attributes(node).get("axis", -1))
        return bool(shape) and axis % len(shape) == len(shape) - 1 and not isinstance(shape[-1], int)

    def _guard(self, node: NodeProto) -> Iterator[NodeProto]:
        dtype, name = self.graph.get_dtype(node.input[0]), node.output[0]
        scores = self.names.new_tensor(f"{name}_scores")
        inputs = [node.input[0], self.lengths.make_guard(dtype)]
        yield build_node("Add", inputs, [scores], name=self.names.new_node(scores))
        guarded = deepcopy(node)
        guarded.input[0] = scores
        yield guarded


def _write_dim(dim: TensorShapeProto.Dimension, meaning: Dim) -> None:
    if isinstance(meaning, int):
        dim.dim_value = meaning
    elif meaning is not None:
        dim.dim_param = meaning
