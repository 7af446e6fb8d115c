"""A graph at two sizes of its padded dimensions: the ones of the caller, and those of the variant.

In the *unpadded* run a padded dimension has any size from the least, mostly 1, to that of the variant,
in the *padded* run that of the variant. An axis is padded where its extent depends on such a dimension.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    Dim,
    EditableGraph,
    GraphIndex,
    KnownValues,
    Model,
    build_node,
    copy_without,
    evaluate_dim,
    find_constant_value,
    get_operator_name,
    get_stated_attributes,
    is_onnx,
    list_dim_names,
    multiply_dims,
    prepare_model,
    type_certainly,
)

# Zones of padded tensors.


class Part(StrEnum):
    """A part of an axis of the padded run: index 0, what padding added, or the whole."""

    first = "first"
    rest = "rest"
    whole = "whole"


@dataclass(frozen=True)
class Zone:
    """The elements of a tensor whose index along some axes is in a part of them.

    Along any other padded axis it is one of the unpadded run.
    """

    parts: tuple[tuple[int, Part], ...] = ()

    @classmethod
    def of(cls, parts: Mapping[int, Part]) -> "Zone":
        """Return the zone of some parts by axis."""
        return cls(tuple(sorted(parts.items())))

    def get(self, axis: int) -> Part | None:
        """Return the part of an axis, None where it is that of the unpadded run."""
        return dict(self.parts).get(axis)

    def with_part(self, axis: int, part: Part | None) -> "Zone":
        """Return the zone with another part of an axis, None for that of the unpadded run."""
        parts = dict(self.parts)
        parts.pop(axis, None)
        return Zone.of(parts if part is None else {**parts, axis: part})

    def move(self, axes: Mapping[int, int]) -> "Zone":
        """Return the zone of a tensor whose axes these are, by those of this one; others are dropped."""
        return Zone.of({axes[axis]: part for axis, part in self.parts if axis in axes})

    @property
    def is_unpadded(self) -> bool:
        """Whether all its elements are those of the unpadded run."""
        return all(part is Part.first for _, part in self.parts)


UNPADDED = Zone()


_MAX_COMBINATIONS = 20_000  # of sizes that an inequality is tried at

# An expression that grows with each of its names: without minus, remainder, and division by a name.
_GROWING = re.compile(r"(?:[\w\s+*(),.]|//\s*[1-9])+", re.ASCII)

OPSET_OF_ONE_AXIS = 13
"""Before this version a Softmax goes over its axis and all behind it, as one."""

ILL_FORMED = (ArithmeticError, LookupError, TypeError, ValueError)
"""What rules raise for a node whose ranks or attributes are not as its operator has them."""

Shape = tuple[Dim, ...]
Bit = Literal[0, 1]


@dataclass(frozen=True)
class Assumptions:
    """Assumptions on inputs along their last padded axis: the values of padding, and at index 0.

    An input without a value in `fills` is continued with its last entries.
    """

    fills: Mapping[str, Bit] = field(default_factory=dict)
    firsts: Mapping[str, Bit] = field(default_factory=dict)

    def select(self, names: Collection[str]) -> "Assumptions":
        """Return those on some inputs."""
        return Assumptions(
            {name: value for name, value in self.fills.items() if name in names},
            {name: value for name, value in self.firsts.items() if name in names},
        )


@dataclass(frozen=True, eq=False)
class PaddedGraph:
    """The main graph of a model whose open dimensions are padded; `sizes` has the variant's of each.

    `least` is the smallest size that one may have.
    """

    model: Model
    sizes: Mapping[str, int]
    least: int = 1
    _shapes: dict[str, Shape | None] = field(default_factory=dict)
    _simple: dict[str, Dim] = field(default_factory=dict)

    @cached_property
    def index(self) -> GraphIndex:
        """The index of the model's graph; types are asked of `get_shape`, which are certain."""
        return self.model.index

    @cached_property
    def _certain(self) -> GraphIndex:
        return type_certainly(self.model.index)

    @cached_property
    def values(self) -> KnownValues | None:
        """The values of small tensors, as expressions of the dimensions; None where no type is known."""
        if self._certain is self.model.index and self.model.inference.known is not None:
            return self.model.inference.known
        typed = self._certain.typed_graph
        return (
            None
            if typed is None
            else KnownValues.of_graph(typed, self._certain.proto, self.index.opsets)
        )

    def get_shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor in extents that are known, None where one is not."""
        if name not in self._shapes:
            shape = self._certain.get_shape(name)
            known = shape is not None and all(map(self.is_known, shape))
            self._shapes[name] = tuple(map(self.simplify, shape or ())) if known else None
        return self._shapes[name]

    def simplify(self, dim: Dim) -> Dim:
        """Return an extent as a number or a plain dimension where it is that at all sizes there are.

        `min(512, seq)` is `seq` where that is at most 512.
        """
        if isinstance(dim, int) or dim is None or dim in self.sizes:
            return dim
        if dim not in self._simple:
            names = list_dim_names(dim)
            found: Dim = dim
            name = next(iter(names), "")
            if len(names) == 1 and self.sizes[name] <= _MAX_COMBINATIONS:
                own = range(self.least, self.sizes[name] + 1)
                values = [evaluate_dim(dim, {name: size}) for size in own]
                if values == list(own):
                    found = name
                elif len(set(values)) == 1 and values[0] is not None:
                    found = values[0]
            self._simple[dim] = found
        return self._simple[dim]

    def is_known(self, dim: Dim) -> bool:
        """Return whether an extent is a number or an expression of the padded dimensions."""
        return dim is not None and list_dim_names(dim) <= self.sizes.keys()

    def get_dtype(self, name: str) -> str:
        """Return the dtype of a tensor, empty where it is not known."""
        return self._certain.get_dtype(name) or ""

    def is_padded(self, dim: Dim) -> bool:
        """Return whether an extent depends on a padded dimension."""
        return not isinstance(dim, int)

    def count(self, dim: Dim) -> int:
        """Return an extent in the padded run."""
        size = evaluate_dim(dim, self.sizes)
        assert size is not None
        return size

    def find_elements(self, name: str) -> list[Dim] | None:
        """Return the elements of a small integer tensor as expressions, None unless all are known."""
        if self.values is None:
            return None
        found = self.values.find_elements(name)
        if found is None or not all(map(self.is_known, found)):
            return None
        return list(map(self.simplify, found))

    def read_constant(self, name: str) -> NDArray[Any] | None:
        """Return the value of a stored tensor, or of a small constant; None for any other."""
        _ = self.model.proto  # heavy weights are read once they are needed
        return find_constant_value(self.index, name, self.model.folder)

    def list_sizes(self, names: Sequence[str]) -> Iterator[dict[str, int]] | None:
        """Return all sizes of some dimensions in the unpadded run, None if they are too many."""
        ranges = [range(self.least, self.sizes[name] + 1) for name in names]
        if prod(map(len, ranges)) > _MAX_COMBINATIONS:
            return None
        return ({**self.sizes, **dict(zip(names, each, strict=True))} for each in product(*ranges))

    def is_largest_padded(self, dim: Dim) -> bool:
        """Return whether an extent of the unpadded run is at most that of the padded one, proven."""
        if isinstance(dim, int) or dim in self.sizes or (dim and _GROWING.fullmatch(dim)):
            return True
        sizes = self.list_sizes(sorted(list_dim_names(dim)))
        if sizes is None:
            return False
        largest = evaluate_dim(dim, self.sizes)
        found = [evaluate_dim(dim, each) for each in sizes]
        return largest is not None and all(e is not None and 0 <= e <= largest for e in found)


@dataclass(frozen=True, eq=False)
class PaddedNode:
    """A node of a padded graph, as the rules ask about it."""

    graph: PaddedGraph
    number: int

    @cached_property
    def node(self) -> NodeProto:
        """The node itself."""
        return self.graph.index.nodes[self.number]

    @property
    def operator(self) -> str:
        """The operator as rule files spell it."""
        return get_operator_name(self.node)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes in effect."""
        return self.graph.index.get_attributes(self.node)

    @property
    def opset(self) -> int:
        """The version of the operator's domain."""
        return self.graph.index.get_opset(self.node)

    def get_input(self, position: int) -> str:
        """Return the name of an input, empty where it is left out."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def get_shape(self, position: int) -> Shape:
        """Return the shape of an input. Raises NotAlignedError where it is not known."""
        return require_shape(self.graph, self.get_input(position))

    def get_output_shape(self, position: int = 0) -> Shape:
        """Return the shape of an output. Raises NotAlignedError where it is not known."""
        return require_shape(self.graph, self.node.output[position])

    def list_padded(self, position: int) -> list[int]:
        """Return the padded axes of an input. Raises NotAlignedError where they are not known."""
        return [axis for axis, dim in enumerate(self.get_shape(position)) if self.graph.is_padded(dim)]

    def find_elements(self, position: int) -> list[Dim] | None:
        """Return the elements of a small integer input, None where they are not known."""
        name = self.get_input(position)
        return self.graph.find_elements(name) if name else None

    def read_axes(self, position: int) -> list[int] | None:
        """Return the axes that the attribute or, in later versions, an input gives; None for none."""
        given = self.attributes.get("axes")
        if given is None and self.get_input(position):
            found = self.find_elements(position)
            if found is None or not all(isinstance(axis, int) for axis in found):
                raise NotAlignedError("its axes are not known")
            given = found
        return None if given is None else [int(axis) for axis in given]

    def has_output(self, position: int) -> bool:
        """Return whether an output is there and used."""
        names = self.node.output
        return (
            position < len(names) and bool(names[position]) and self.graph.index.is_used(names[position])
        )


class NotAlignedError(Exception):
    """A result that is not proven to be independent of padding; the message says why.

    `by_value` says that another value behind an input might help.
    """

    def __init__(self, reason: str, by_value: bool = False) -> None:
        super().__init__(reason)
        self.by_value = by_value


def require_shape(graph: PaddedGraph, name: str) -> Shape:
    """Return the shape of a tensor. Raises NotAlignedError where it is not known."""
    shape = graph.get_shape(name)
    if shape is None:
        raise NotAlignedError(f"the extents of '{name}' are not known as expressions of open dimensions")
    return shape


# Maps of axes from outputs to inputs, for nodes that move elements without changing them.


@dataclass(frozen=True)
class AxisGroup:
    """Neighbouring axes of an input that become neighbouring axes of an output, in the same order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def group_axes(graph: PaddedGraph, before: Shape, after: Shape) -> list[AxisGroup]:
    """Return the smallest groups of axes with the same number of elements, for a Reshape.

    Padded axes that are not alone in theirs have to come first on both sides, so that what the
    unpadded run has is the beginning of the group. Axes of extent 1 are left out. Raises
    NotAlignedError where that is not so, or the shapes cannot be brought together.
    """
    groups: list[AxisGroup] = []
    pairs = [[(axis, dim) for axis, dim in enumerate(shape) if dim != 1] for shape in (before, after)]
    left, right = (iter(each) for each in pairs)
    while True:
        taken = _take_group(left, right)
        if taken is None:
            return groups
        for part in taken:
            for position, (_, dim) in enumerate(part):
                if graph.is_padded(dim) and position:
                    raise NotAlignedError(f"it joins an axis of {dim} to one before it")
        padded = [any(graph.is_padded(dim) for _, dim in part) for part in taken]
        if padded[0] != padded[1]:
            raise NotAlignedError("it reshapes an axis whose extent depends on the size")
        groups.append(AxisGroup(*(tuple(axis for axis, _ in part) for part in taken)))


_Axis = tuple[int, Dim]


def _take_group(left: Iterator[_Axis], right: Iterator[_Axis]) -> tuple[list[_Axis], list[_Axis]] | None:
    """Take axes of either side until both have the same number of elements; None at the end."""
    first, second = next(left, None), next(right, None)
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise NotAlignedError("its shapes have different numbers of elements")
    parts = [first], [second]
    counts: list[Dim] = [first[1], second[1]]
    while counts[0] != counts[1]:
        if None in counts:
            raise NotAlignedError("its shapes cannot be compared")
        side = _choose_side(*counts)
        following = next((left, right)[side], None)
        if following is None:
            raise NotAlignedError("its shapes cannot be compared")
        parts[side].append(following)
        counts[side] = multiply_dims(counts[side], following[1])
    return parts


def _choose_side(a: Dim, b: Dim) -> int:
    """Return the side that has fewer elements: the one that divides the other."""
    if isinstance(a, int) and isinstance(b, int):
        return 0 if a < b else 1
    if isinstance(a, int) or isinstance(b, int):
        return 0 if isinstance(a, int) else 1
    assert a is not None
    assert b is not None
    return 0 if len(str(a)) <= len(str(b)) else 1


def map_moved_axes(view: PaddedNode) -> Mapping[int, int]:
    """Return the axis of input 0 that each axis of the output is, for nodes that move elements.

    Axes without a counterpart are left out. Raises NotAlignedError where the axes are not known.
    """
    before, after = view.get_shape(0), view.get_output_shape()
    match view.operator:
        case "Transpose":
            order = view.attributes.get("perm") or range(len(before))[::-1]
            return dict(enumerate(int(axis) for axis in order))
        case "Unsqueeze":
            added = view.read_axes(1)
            if added is None:
                raise NotAlignedError("its axes are not known")
            new = {axis % len(after) for axis in added}
            return dict(
                zip((a for a in range(len(after)) if a not in new), range(len(before)), strict=True)
            )
        case "Squeeze":
            dropped = view.read_axes(1)
            if dropped is None:
                if any(map(view.graph.is_padded, before)):
                    raise NotAlignedError(
                        "it drops every axis of extent 1, and a padded one may be that"
                    )
                dropped = [axis for axis, dim in enumerate(before) if dim == 1]
            old = {axis % len(before) for axis in dropped}
            return dict(enumerate(axis for axis in range(len(before)) if axis not in old))
        case "Reshape" | "Flatten":
            return {group.outputs[0]: group.inputs[0] for group in group_axes(view.graph, before, after)}
        case "Expand" | "Tile":
            offset = len(after) - len(before)
            same = (axis for axis, dim in enumerate(before) if dim == after[axis + offset] and dim != 1)
            return {axis + offset: axis for axis in same}
    return {axis: axis for axis in range(len(before))}


# Rows of a mask by numbers of elements: `Gather(Flatten(mask), row * length + place)`.

_OPSET_OF_AXES_AS_INPUT = 13


def gather_rows_by_place(model: Model) -> Model:
    """Return a model in which a mask `[rows, length]` is gathered by places, and not flattened before.

    torch's older exporter numbers the elements of the flattened mask to take `mask[row, place]` of all
    rows, and in a longer mask the same element has another number. Nodes are changed only where all rows
    are taken, in order, and each place is within the length. Without any it is the model itself.
    """
    if model.index.opsets.get("", 1) < _OPSET_OF_AXES_AS_INPUT:
        return model
    graph = PaddedGraph(model, {})
    editable = EditableGraph.of_index(model.index)
    changed: set[str] = set()
    for number, node in enumerate(model.index.nodes):
        found = _find_mask_and_places(graph, node)
        if found is None:
            continue
        mask, places = found
        rank = len(graph.index.get_shape(places) or ())
        gathered, rows, first, last = (
            editable.names.new_tensor(f"{node.output[0]}_{part}") for part in ("by", "rows", "1", "n")
        )
        editable.replace(
            number,
            build_node("Constant", [], [first], value=numpy_helper.from_array(np.array([1]))),
            build_node("Constant", [], [last], value=numpy_helper.from_array(np.array([rank]))),
            build_node("Gather", [mask, places], [gathered], axis=1),  # [rows, 1, ..., length]
            build_node("Squeeze", [gathered, first], [rows]),
            build_node("Unsqueeze", [rows, last], node.output, name=node.name),
        )
        changed.add(node.output[0])
    for number, node in enumerate(model.index.nodes if changed else ()):
        inner = _find_maker(graph, node.input[0], "Reshape") if node.op_type == "Reshape" else None
        extents = _list_elements(graph, node.input[1]) if inner is not None else None
        if inner is not None and inner.input[0] in changed and extents and 0 not in extents:
            whole = deepcopy(node)  # not as one row in between
            whole.input[0] = inner.input[0]
            editable.replace(number, whole)
    if not changed:
        return model
    editable.drop_unread()
    proto = copy_without(model.structure, "value_info")
    editable.write_to(proto.graph)
    made = prepare_model(proto, model.source, model.folder, heavy=model.heavy)
    return replace(made, variable=model.variable)


def _find_mask_and_places(graph: PaddedGraph, node: NodeProto) -> tuple[str, str] | None:
    """Return the mask and the places that a Gather of a flattened mask takes; None for any other."""
    if not is_onnx(node) or node.op_type != "Gather" or get_stated_attributes(node).get("axis", 0) != 0:
        return None
    flat, numbers = (
        _find_maker(graph, node.input[0], "Flatten"),
        _find_maker(graph, node.input[1], "Add"),
    )
    if flat is None or numbers is None or get_stated_attributes(flat).get("axis", 1) != 2:
        return None
    shape = graph.index.get_shape(flat.input[0]) or ()
    for places, scaled in (numbers.input, reversed(numbers.input)):
        is_inner = len(shape) == 2 and _is_counted(graph, places, shape[1])
        scaling = _find_maker(graph, scaled, "Mul") if is_inner else None
        for rows, length in (scaling.input, reversed(scaling.input)) if scaling is not None else ():
            extents, other = (graph.index.get_shape(name) or () for name in (rows, places))
            is_outer = len(extents) == len(other) and {*extents[1:], *other[:-1]} == {1}
            if is_outer and _list_elements(graph, length) == [shape[1]] and extents[0] == shape[0]:
                count = shape[0]
                if isinstance(count, int) and _list_elements(graph, rows) == [*range(count)]:
                    return flat.input[0], places
    return None


def _find_maker(graph: PaddedGraph, name: str, operator: str) -> NodeProto | None:
    """Return the node that makes a tensor, None where it is another operator."""
    number = graph.index.producers.get(name)
    node = None if number is None else graph.index.nodes[number]
    return node if node is not None and is_onnx(node) and node.op_type == operator else None


def _list_elements(graph: PaddedGraph, name: str) -> list[Dim] | None:
    """Return the elements of a small tensor at any sizes, None where they are not known."""
    return None if graph.values is None else graph.values.find_elements(name)


def _is_counted(graph: PaddedGraph, name: str, length: Dim) -> bool:
    """Return whether a tensor holds 0, 1, ... up to a length."""
    while (node := _find_maker(graph, name, "Unsqueeze")) is not None:
        name = node.input[0]
    made = _find_maker(graph, name, "Range")
    wanted: list[list[Dim]] = [[0], [length], [1]]
    return made is not None and [_list_elements(graph, each) for each in made.input] == wanted
