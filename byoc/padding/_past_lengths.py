"""Numbers that a graph makes of the length of the past, in the static form of its caches.

Small tensors of integers are known as expressions of that length. Where an operator takes one for an
extent, it gets the expression of the cache's length; where it computes with it, that of the number of
filled rows, which the mask says.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    Dim,
    NameAllocator,
    add_dims,
    build_node,
    describe_node,
    evaluate_dim,
    is_onnx,
    list_bodies,
    list_dim_names,
    to_numpy_dtype,
)
from byoc.padding._padded_graph import PaddedGraph

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
