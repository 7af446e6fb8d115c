"""Caches of a fixed length: a model that makes its cache longer by a Concat, rewritten.

Such a model reads a cache of any length, its *past*, and gives it back with some new rows behind it. In
the static form the cache has one length before and after. An input that no caller gives, the *mask*,
says which rows hold anything: those of the past and the new ones.

- New rows are added to the zeros that stand where they belong: `present = past + mark * new`.
- Small tensors of integers that the graph makes of the length of the past are known as expressions of
  it. An operator that takes one for an extent gets the expression of the cache's length; one that
  computes with it, such as positions, gets that of the number of filled rows, which the mask says.
- A Softmax over the cache has minus infinity added behind the rows that hold anything: masks of the
  model may not say where that is, and nothing is known of scores that they are to outweigh.

That the results are then those of the model is not assumed: the static form whose cache is full computes
what the model does, node by node, and that a longer cache changes nothing is proven as for any padding.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TensorShapeProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    Dim,
    Dimensions,
    EditableGraph,
    Model,
    NameAllocator,
    StatePair,
    add_dims,
    build_node,
    copy_without,
    describe_node,
    evaluate_dim,
    find_state_pairs,
    get_stated_attributes,
    is_onnx,
    list_bodies,
    list_dim_names,
    parse_dim,
    prepare_model,
    substitute_dim,
    to_numpy_dtype,
    walk_dims,
    walk_value_infos,
)
from byoc.padding._padded_graph import OPSET_OF_ONE_AXIS, PaddedGraph
from byoc.padding._padding_rule import PaddingRule

_EXTENT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Reshape": (1,),
    "Split": (1,),
    "Tile": (1,),
}
"""The inputs of operators that are extents, or numbers of elements."""

Array = NDArray[np.int64]


@dataclass(frozen=True)
class _Cut:
    """A part of an axis that a Slice takes; `count` entries where it begins behind the past.

    `before` is the extent of the axis.
    """

    axis: int
    before: Dim
    start: Dim
    end: Dim
    step: Dim
    count: int = 0


@dataclass(eq=False)
class PastLengths:
    """Makes numbers of the length of the past; `nodes` are those that they are computed by.

    `rows` are added to the past in each call, and `mask` is the input that says which are filled.
    """

    graph: PaddedGraph
    past: str
    rows: int
    mask: str
    names: NameAllocator
    nodes: list[NodeProto] = field(default_factory=list)
    _made: dict[tuple[object, ...], str] = field(default_factory=dict)
    _lines: dict[Dim, tuple[int, int]] = field(default_factory=dict)

    def rewrite(self, number: int) -> Iterator[NodeProto]:
        """Yield the nodes in the place of a node. Raises InputError where it is not understood."""
        node = self.graph.index.nodes[number]
        if node.op_type == "Constant" or all(map(self._is_known, filter(None, node.output))):
            yield node
            return
        if list_bodies(node):
            raise InputError(f"{describe_node(node)}: has bodies")
        if not any(self._is_known(name) for name in node.input if name):
            yield node
            return
        special = {"Slice": self._rewrite_slice, "Range": self._rewrite_range}
        if is_onnx(node) and node.op_type in special:
            yield from special[node.op_type](node)
            return
        extents = _EXTENT_INPUTS.get(node.op_type, ()) if is_onnx(node) else ()
        changed = deepcopy(node)
        for position, name in enumerate(node.input):
            if name and self._is_known(name):
                changed.input[position] = self._make(node, name, is_extent=position in extents)
        yield changed

    def _is_known(self, name: str) -> bool:
        """Return whether a tensor is of integers that follow from extents, and not stored."""
        index = self.graph.index
        maker = index.producers.get(name)
        if maker is None or index.nodes[maker].op_type == "Constant":
            return False
        return self.graph.find_elements(name) is not None

    def _make(self, node: NodeProto, name: str, is_extent: bool) -> str:
        """Return a tensor in the place of a known one."""
        shape = tuple(int(dim) for dim in self.graph.get_shape(name) or () if isinstance(dim, int))
        elements = self.graph.find_elements(name) or []
        return self._compute(node, elements, shape, self.graph.get_dtype(name), is_extent)

    def _compute(
        self, node: NodeProto, elements: list[Dim], shape: tuple[int, ...], dtype: str, is_extent: bool
    ) -> str:
        """Return a tensor of expressions of the past, computed of the cache's length or of the mask."""
        factors, offsets = self._split(node, elements)
        if is_extent:
            offsets = offsets - factors * self.rows
        if not factors.any():
            return self._store(offsets.reshape(shape), dtype)
        length = self._get_length() if is_extent else self._get_past()
        if not shape:
            length = self._add_node("Squeeze", length)
        scaled = self._add_node("Mul", length, self._store(factors.reshape(shape), "int64"))
        found = self._add_node("Add", scaled, self._store(offsets.reshape(shape), "int64"))
        return found if dtype == "int64" else self._cast(found, dtype)

    def _split(self, node: NodeProto, elements: list[Dim]) -> tuple[Array, Array]:
        """Return the factors and offsets of expressions that are linear in the past."""
        pairs = np.array([self._fit_line(node, dim) for dim in elements], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _fit_line(self, node: NodeProto, dim: Dim) -> tuple[int, int]:
        """Return the factor and the offset of an expression, at all lengths that the past may have."""
        if isinstance(dim, int):
            return 0, dim
        if dim not in self._lines:
            sizes = range(self.graph.sizes[self.past] - self.rows + 1)
            values = [evaluate_dim(dim, {self.past: size}) for size in sizes]
            first, second = (values * 2)[:2]
            if (
                first is None
                or second is None
                or values != [first + (second - first) * n for n in sizes]
            ):
                raise InputError(f"{describe_node(node)}: {dim} does not grow evenly with {self.past}")
            self._lines[dim] = (second - first, first)
        return self._lines[dim]

    def _rewrite_range(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Range up to the length of the cache, from a start that does not depend on it."""
        changed = deepcopy(node)
        for position, name in enumerate(node.input):
            if self._is_known(name):
                elements = self.graph.find_elements(name) or []
                if position != 1 and any(map(self._depends, elements)):
                    raise InputError(f"{describe_node(node)}: it starts at {elements[0]}, or steps so")
                changed.input[position] = self._make(node, name, is_extent=True)
        yield changed

    def _rewrite_slice(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Slice up to the length of the cache, and a Gather of rows that begin behind it.

        The beginning of a table, as long as the cache, is gathered, too: its extent is the cache's then,
        and not the lesser of it and the table's.
        """
        data, kept = node.input[0], []
        for cut in self._list_cuts(node):
            if self._depends(cut.start):
                rows: list[Dim] = [add_dims(cut.start, offset) for offset in range(cut.count)]
                indices = self._compute(node, rows, (cut.count,), "int64", is_extent=False)
            elif isinstance(cut.before, int) and self._depends(cut.end) and self._is_whole(node, cut):
                indices = self._get_places()
            else:
                kept.append(cut)
                continue
            made = self.names.new_tensor(f"{node.output[0]}_rows")
            name = self.names.new_node(made)
            yield build_node("Gather", [data, indices], [made], name=name, axis=cut.axis)
            data = made
        if not kept:
            yield build_node("Identity", [data], node.output, name=node.name)
            return
        columns = zip(*((cut.start, cut.end, cut.axis, cut.step) for cut in kept), strict=True)
        numbers = [self._compute(node, list(c), (len(kept),), "int64", is_extent=True) for c in columns]
        yield build_node("Slice", [data, *numbers], node.output, name=node.name)

    def _list_cuts(self, node: NodeProto) -> Iterator[_Cut]:
        """Yield the cuts of a Slice, axis by axis. Raises InputError where one is not understood."""
        shapes = [self.graph.get_shape(name) for name in (node.input[0], node.output[0])]
        numbers = [self.graph.find_elements(name) if name else [] for name in node.input[1:]]
        if None in shapes or None in numbers:
            raise InputError(f"{describe_node(node)}: what it cuts is not known")
        before, after = (shape or () for shape in shapes)
        starts, ends, axes, steps = (found or [] for found in [*numbers, [], []][:4])
        for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis = int((axes[position] if axes else position) or 0) % len(before)
            step = steps[position] if steps else 1
            sign = evaluate_dim(start, {self.past: 1})
            first = add_dims(before[axis], start) if sign is not None and sign < 0 else start
            if not any(map(self._depends, (before[axis], after[axis], first))):
                yield _Cut(axis, before[axis], first, end, step)
                continue
            if step != 1 or (self._depends(first) and self._depends(after[axis])):
                told = f"{after[axis]} entries from {first} on, by steps of {step}"
                raise InputError(f"{describe_node(node)}: it takes {told}")
            count = after[axis]
            number = count if self._depends(first) and isinstance(count, int) else 0
            yield _Cut(axis, before[axis], first, add_dims(first, count), 1, number)

    def _is_whole(self, node: NodeProto, cut: _Cut) -> bool:
        """Return whether a part of an axis is as long as the cache, from the beginning on."""
        return cut.start == 0 and self._fit_line(node, cut.end) == (1, self.rows)

    def _depends(self, dim: Dim) -> bool:
        return self.past in list_dim_names(dim)

    def _get_past(self) -> str:
        """Return the number of rows of the past, int64[1]: those of the mask without the new ones."""
        if ("past",) not in self._made:
            filled = self._add_node("ReduceSum", self._cast(self.mask, "int64"), keepdims=1)
            less = self._add_node("Sub", filled, self._store(np.array([self.rows]), "int64"))
            self._made["past",] = self._add_node("Max", less, self._store(np.array([0]), "int64"))
        return self._made["past",]

    def _get_length(self) -> str:
        """Return the length of the cache, int64[1]."""
        if ("length",) not in self._made:
            self._made["length",] = self._add_node("Shape", self.mask)
        return self._made["length",]

    def _get_places(self) -> str:
        """Return 0, 1, ... up to the length of the cache, int64."""
        if ("places",) not in self._made:
            length = self._add_node("Squeeze", self._get_length())
            zero, one = (self._store(np.array(value), "int64") for value in (0, 1))
            self._made["places",] = self._add_node("Range", zero, length, one)
        return self._made["places",]

    def make_mark(self, dtype: str, behind: int) -> str:
        """Return 1 where a new row belongs, else 0.

        The extents are the length of the cache, that of the new rows if they are several, and ones for
        `behind` further axes, of which new rows that are several have one.
        """
        key = ("mark", dtype, behind)
        if key not in self._made:
            places = self._get_places()
            new = self._add_node("Add", self._get_past(), self._store(np.arange(self.rows), "int64"))
            column = self._store(np.array([1]), "int64")
            equal = self._add_node("Equal", self._add_node("Unsqueeze", places, column), new)
            filled = self._add_node("Unsqueeze", self.mask, column)
            mark = self._cast(self._add_node("And", equal, filled), dtype)
            if behind > 1:
                mark = self._add_node("Unsqueeze", mark, self._store(np.arange(2, behind + 1), "int64"))
            elif not behind:
                mark = self._add_node("Squeeze", mark, column)
            self._made[key] = mark
        return self._made[key]

    def make_guard(self, dtype: str) -> str:
        """Return 0 where the cache is filled, and minus infinity behind; as long as the cache."""
        key = ("guard", dtype)
        if key not in self._made:
            numbers = [self._store(np.array(value), dtype) for value in (0.0, -np.inf)]
            self._made[key] = self._add_node("Where", self.mask, *numbers)
        return self._made[key]

    def _cast(self, name: str, dtype: str) -> str:
        return self._add_node("Cast", name, to=DTYPE_NUMBERS[dtype])

    def _store(self, value: NDArray[np.generic], dtype: str) -> str:
        array = value.astype(to_numpy_dtype(dtype))
        key = ("stored", dtype, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = self._add_node("Constant", value=numpy_helper.from_array(array))
        return self._made[key]

    def _add_node(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = self.names.new_tensor(f"cache_{operator.lower()}")
        made = build_node(operator, list(inputs), [name], **attributes)  # type: ignore[arg-type]
        made.name = self.names.new_node(name)
        self.nodes.append(made)
        return name


# Caches of a fixed length: a model that makes its cache longer by a Concat, rewritten.


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


def list_cache_lengths(model: Model) -> list[str]:
    """Return the open dimensions along which caches grow, in the order of the inputs.

    Raises InputError where no cache grows, or one grows otherwise than by a Concat.
    """
    found = list(dict.fromkeys(each.past for each in _list_growing(model)))
    if not found:
        raise InputError("no input is a cache that a Concat makes longer along an open dimension")
    return found


def find_growing_dims(model: Model) -> tuple[str, str, Dim]:
    """Return the open dimension along which caches grow, that of what they grow to, and by how much.

    The second is the one that an input has and outputs state, empty where there is none. Raises
    InputError where no cache grows, or caches do along several dimensions, or by unequal numbers.
    """
    past, *others = list_cache_lengths(model)
    if others:
        several = " and ".join(sorted([past, *others]))
        raise InputError(f"caches grow along {several}: they are to grow along one")
    growing = list(_list_growing(model))
    shapes = [(model.index.get_shape(each.cache.new), each.cache.axis) for each in growing]
    rows = {shape[axis] if shape is not None else None for shape, axis in shapes}
    if len(rows) != 1 or None in rows:
        raise InputError(f"by how many rows '{growing[0].cache.pair.past}' grows is not known")
    named = {dim.dim_param for value in model.structure.graph.input for dim in walk_dims(value.type)}
    totals = [each.total for each in growing if isinstance(each.total, str)]
    own = [total for total in totals if total in named and list_dim_names(total) == {total}]
    return past, own[0] if own else "", rows.pop()


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
