"""The effect of conversion nodes at a boundary, and paths of them to the user's tensors.

Scales are read from QuantizeLinear and DequantizeLinear, layouts from Transpose and Reshape. The marks
of byoc's own nodes only say that byoc inserted them, and for what kind of conversion.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    CAST,
    DTYPES,
    IMAGE,
    LAYOUT,
    TENSOR_KEY,
    BoundaryNames,
    Dim,
    GraphIndex,
    TensorLayout,
    TensorType,
    find_constant_value,
    get_constant_value,
    get_input,
    get_metadata,
    get_purpose,
    get_stated_attributes,
    is_inserted,
    is_quantize,
    read_tensor_types,
    read_type,
)

# Axis terms: the position of each axis of a tensor, or block of an axis, after Transposes and
# Reshapes.
#
# Each dimension of a packed tensor is an `AxisTerm`: an axis of the plain tensor (size 0; whole, or
# the rest of it after blocks are split off), or a block of an axis. Layouts are written in the
# notation of `byoc.model._layouts`, but are derived here independently of it, so that an error in
# either one is detected.

UNKNOWN_LAYOUT = "?"
"""The layout of a contract whose conversion steps lead to no layout that has a name."""


class AxisTerm(NamedTuple):
    """A dimension of a packed tensor: an axis of the plain tensor, or a block of `size` elements."""

    axis: int
    size: int = 0


class AxisStep(NamedTuple):
    """A Transpose (`order`), or a Reshape (`order` is None) with the shapes before and after it."""

    order: tuple[int, ...] | None
    before: tuple[Dim, ...] = ()
    after: tuple[Dim, ...] = ()


class AxisTerms(tuple[AxisTerm, ...]):
    """The dimensions of a packed tensor in order; as text, in the notation of rule files."""

    __slots__ = ()

    @classmethod
    def of_plain(cls, rank: int) -> Self:
        """Return the terms of a tensor in ONNX's own layout."""
        return cls(AxisTerm(axis) for axis in range(rank))

    @classmethod
    def parse(cls, layout: str, rank: int) -> Self | None:
        """Parse a layout in the notation of rule files; None if it is not a layout of images."""
        if not layout:
            return cls.of_plain(rank)
        terms, size = [], ""
        for letter in layout:
            if letter.isdigit():
                size += letter
            elif letter.upper() in IMAGE:
                terms.append(AxisTerm(IMAGE.index(letter.upper()), int(size or 0)))
                size = ""
            else:
                return None
        return cls(terms)

    def __str__(self) -> str:
        """Return the layout in the notation of rule files; empty for the plain layout.

        A layout outside that notation (another rank than 4, an axis after a block) is described by its
        axes: `axes 0, 2, 1`.
        """
        if self == self.of_plain(len(self)):
            return ""
        axes = max(term.axis for term in self) + 1
        if axes != len(IMAGE):
            return "axes " + ", ".join(f"{axis}" + f" by {size}" * bool(size) for axis, size in self)
        return "".join(f"{size}{IMAGE[axis].lower()}" if size else IMAGE[axis] for axis, size in self)

    def apply(self, step: AxisStep) -> Self | None:
        """Return the terms after a step from these before it, or None if it belongs to no layout."""
        kind = type(self)
        if step.order is not None:
            return kind(self[i] for i in step.order) if len(step.order) == len(self) else None
        groups = _match_dims(step.before, step.after)
        if groups is None or len(self) != len(groups):
            return self._merge_blocks(step)
        terms_after: list[AxisTerm] = []
        for term, (_, *others) in zip(self, groups, strict=True):
            sizes = [step.after[i] for i in others]  # numbers, or the dimensions would not match
            terms_after.append(term)
            terms_after += [AxisTerm(term.axis, size) for size in sizes if isinstance(size, int)]
        return kind(terms_after)

    def revert(self, step: AxisStep) -> Self | None:
        """Return the terms before a step from these after it, or None if it belongs to no layout."""
        if step.order is None:
            return self.apply(AxisStep(None, step.after, step.before))
        if len(step.order) != len(self):
            return None
        return type(self)(self[step.order.index(dim)] for dim in range(len(self)))

    def _merge_blocks(self, step: AxisStep) -> Self | None:
        """Return the terms after a Reshape that joins blocks with the axis they were split off from."""
        groups = _match_dims(step.after, step.before)
        if groups is None or len(self) != len(step.before):
            return None
        terms_after: list[AxisTerm] = []
        for group in groups:
            first, *others = (self[dim] for dim in group)
            if any(term.axis != first.axis or not term.size for term in others):
                return None
            terms_after.append(AxisTerm(first.axis, first.size * prod(term.size for term in others)))
        return type(self)(terms_after)

    def pack(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the shape of a plain tensor in the layout; extents are rounded up to whole blocks."""
        found: list[Dim] = []
        for axis, size in self:
            dim = shape[axis]
            blocks = prod(term.size for term in self if term.axis == axis and term.size)
            found.append(
                size or (-(-dim // blocks) if isinstance(dim, int) else dim if blocks == 1 else None)
            )
        return tuple(found)

    def unpack(self, shape: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """Return the plain shape of a transposed tensor, or None if the layout has blocks."""
        if len(shape) != len(self) or any(term.size for term in self):
            return None
        return tuple(shape[self.index(AxisTerm(axis))] for axis in range(len(self)))


def _match_dims(whole: Sequence[Dim], split: Sequence[Dim]) -> tuple[tuple[int, ...], ...] | None:
    """Return for each dimension of one shape the dimensions of another into which it is split."""
    groups: list[tuple[int, ...]] = []
    at = 0
    for dim in whole:
        if at >= len(split):
            return None
        inner, product = [at], split[at]
        at += 1
        while isinstance(dim, int) and isinstance(product, int) and product < dim and at < len(split):
            following = split[at]
            if not isinstance(following, int):
                return None
            inner.append(at)
            product *= following
            at += 1
        if isinstance(dim, int) and isinstance(product, int) and product != dim:
            return None
        groups.append(tuple(inner))
    return tuple(groups) if at == len(split) else None


@dataclass(frozen=True)
class Scales:
    """The quantization that a node of byoc's or the user's applies to a tensor.

    `axis` is the dimension that has a scale for each index, None if one scale holds for the tensor.
    """

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None
    is_own: bool


def scale_fields(scales: Scales | None) -> dict[str, Any]:
    """Return the fields of a contract that state a quantization, empty without one."""
    if scales is None:
        return {}
    return {"scale": scales.scale, "zero_point": scales.zero_point, "axis": scales.axis}


def find_type(types: Mapping[str, TypeProto], name: str) -> TensorType | None:
    """Return the type of a tensor by its name, or None if it is not known."""
    return read_type(types[name]) if name in types else None


def find_producer(index: GraphIndex, name: str) -> tuple[GraphIndex, NodeProto | None]:
    """Return the node that makes a tensor, or None, and the index of the graph that the node is in."""
    while name not in index.producers and index.outer is not None:
        index = index.outer
    number = index.producers.get(name)
    return index, None if number is None else index.nodes[number]


def read_scales(index: GraphIndex, node: NodeProto, folder: Path | None) -> Scales | None:
    """Return the quantization of a QuantizeLinear or DequantizeLinear, or None if it is not constant.

    `folder` is the directory of external data, which may hold the scales of many channels.
    """
    scale = find_constant_value(index, node.input[1], folder)
    if scale is None:
        return None
    attributes = get_stated_attributes(node)
    zero_name = get_input(node, 2)
    zero = (
        find_constant_value(index, zero_name, folder) if zero_name else np.zeros(scale.shape, np.uint8)
    )
    if zero is None:
        return None
    quantized = node.output[0] if is_quantize(node) else node.input[0]
    stated = DTYPES[attributes.get("output_dtype", TensorProto.UINT8)]
    dtype = index.get_dtype(zero_name or quantized) or stated
    axis = None
    if scale.ndim and scale.size > 1:
        axis = int(attributes.get("axis", 1))
        tensor = index.types.get(node.input[0]) or index.types.get(node.output[0])
        if axis < 0 and tensor is not None and tensor.shape is not None:
            axis += len(tensor.shape)
    return Scales(
        dtype,
        tuple(map(float, scale.ravel())),
        tuple(int(number) for number in zero.ravel()),
        axis,
        is_inserted(node),
    )


# A layout is made by the first two; the others make whole blocks, in a wider dtype where there is no Pad
# for their own, and cut them off again.
_LAYOUT_OPS = ("Transpose", "Reshape")
_ELEMENT_OPS = ("Cast", "Pad", "Slice", "Identity")

TensorTypes = Mapping[str, TensorType]


def is_conversion(node: NodeProto) -> bool:
    """Return whether byoc inserted a node to change the layout or float type of its first input."""
    if get_purpose(node) == LAYOUT:
        return node.op_type in (*_LAYOUT_OPS, *_ELEMENT_OPS)
    return get_purpose(node) == CAST and node.op_type == "Cast"


def includes_cast(steps: Sequence[NodeProto]) -> bool:
    """Return whether one of the conversions changes the float type."""
    return any(get_purpose(node) == CAST for node in steps)


def layout_after(
    index: GraphIndex,
    steps: Sequence[NodeProto],
    terms: AxisTerms | None,
    known: TensorTypes,
) -> AxisTerms | None:
    """Return the layout after some nodes from the one before, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for step in _axis_steps(index, steps, known):
        terms = terms.apply(step) if terms is not None and step is not None else None
    return terms


def layout_before(
    index: GraphIndex,
    steps: Sequence[NodeProto],
    terms: AxisTerms | None,
    known: TensorTypes,
) -> AxisTerms | None:
    """Return the layout before some nodes from the one after, or None if there is no such layout.

    `known` gives by name the types of tensors that `index` may know less about.
    """
    for step in reversed(_axis_steps(index, steps, known)):
        terms = terms.revert(step) if terms is not None and step is not None else None
    return terms


def find_shape(index: GraphIndex, name: str, known: TensorTypes) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor according to an index, completed from `known`."""
    found, stated_type = (each.get(name) for each in (index.types, known))
    shape, stated = (None if kind is None else kind.shape for kind in (found, stated_type))
    if shape is None or stated is None or len(shape) != len(stated):
        return stated if shape is None else shape
    pairs = zip(shape, stated, strict=True)
    return tuple(own_dim if isinstance(own_dim, int) else stated_dim for own_dim, stated_dim in pairs)


def find_rank(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes, *, before: bool
) -> int | None:
    """Return the rank before the first of some nodes, or after the last, or None if it is unknown."""
    ordered = steps if before else steps[::-1]
    node = next((node for node in ordered if node.op_type in _LAYOUT_OPS), None)
    if node is None:
        return None
    # Between the ends of all the nodes and those of this one, the rank is the same.
    names = (step.input[0] if before else step.output[0] for step in (ordered[0], node))
    shapes = (find_shape(index, name, known) for name in names)
    order = get_stated_attributes(node).get("perm")
    found = order or next((shape for shape in shapes if shape is not None), None)
    return None if found is None else len(found)


def _axis_steps(
    index: GraphIndex, steps: Sequence[NodeProto], known: TensorTypes
) -> list[AxisStep | None]:
    """Return the axis step of each node that makes a layout, None where it is not known."""
    return [_axis_step(index, node, known) for node in steps if node.op_type in _LAYOUT_OPS]


def _axis_step(index: GraphIndex, node: NodeProto, known: TensorTypes) -> AxisStep | None:
    """Return the axis step of a Transpose or Reshape, or None if it is not known."""
    shape = find_shape(index, node.input[0], known)
    if node.op_type == "Transpose":
        order = get_stated_attributes(node).get("perm", reversed(range(len(shape or ()))))
        return AxisStep(tuple(order))
    target_shape = get_constant_value(index, node.input[1])
    if target_shape is None or shape is None:
        return None
    behind = [int(dim) or (shape[i] if i < len(shape) else None) for i, dim in enumerate(target_shape)]
    return AxisStep(None, shape, tuple(behind))


# Paths on the host from a boundary tensor to the user's tensor that it is a form of.
#
# The user's own Transposes make further forms of a tensor, which are related here as well. Both
# need what is known of the user's model.


@dataclass(frozen=True, eq=False)
class RegionContext:
    """Facts about a region that the partitioned model does not contain.

    `user_index` is that of the graph that the region was cut from, and `interface` names the tensors
    that crossed the boundary there. `added` gives the types of tensors that the boundary stage inserted,
    and `origins` the user's tensors whose content they hold (see `byoc.boundary.convert`). `weights` is
    the weight layout of the region's target.
    """

    user_index: GraphIndex | None = None
    interface: BoundaryNames | None = None
    added: Mapping[str, TypeProto] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    weights: TensorLayout | None = None

    @property
    def user_types(self) -> Mapping[str, TypeProto]:
        """The types of the user's tensors by name; empty if they are not known."""
        return self.user_index.type_protos if self.user_index is not None else {}

    @property
    def stated_types(self) -> Mapping[str, TypeProto]:
        """The types that conversions rely on, including those that only the user's model states."""
        return {**self.added, **self.user_types}

    @cached_property
    def known_types(self) -> Mapping[str, TensorType]:
        """The types of `stated_types`, without sequences, maps and optionals."""
        return read_tensor_types(self.stated_types)


@dataclass(frozen=True)
class ConversionPath:
    """The path on the host from a boundary tensor, which the region knows as `inner`.

    `tensors` are those on the path, the boundary tensor first; `steps` the conversions in the order of
    execution; `outer_steps` those of them between the scales that were found and the boundary.
    `seeks_scales` is whether scales that are found still apply to the boundary tensor, that is, no node
    on the path has changed them.
    """

    inner: str
    tensors: tuple[str, ...]
    steps: tuple[NodeProto, ...] = ()
    scales: Scales | None = None
    outer_steps: tuple[NodeProto, ...] = ()
    seeks_scales: bool = True

    @property
    def end(self) -> str:
        """The tensor at the current end of the path."""
        return self.tensors[-1]

    @property
    def is_backward(self) -> bool:
        """Whether the path leads against the order of execution; False if it has no step."""
        if not self.steps:
            return False
        reads, makes = self.steps[0].input[0], self.steps[0].output[0]
        return self.tensors.index(makes) < self.tensors.index(reads)

    def extend(self, name: str) -> "ConversionPath":
        """Return the path extended to a tensor."""
        return replace(self, tensors=(*self.tensors, name))


def find_origin(users: GraphIndex | None, name: str) -> str:
    """Return the user's tensor before byoc's own quantization of the planned model."""
    while users is not None:
        users, node = find_producer(users, name)
        if node is None or not is_inserted(node):
            return name
        name = node.input[0]
    return name


def find_user_name(users: GraphIndex | None, name: str) -> str:
    """Return the user's name of a tensor that byoc's own QuantizeLinear of the planned model reads."""
    index = users
    while index is not None:
        readers = (index.nodes[number] for number in index.consumers.get(name, ()))
        user_name = next((get_metadata(node, TENSOR_KEY) for node in readers if is_inserted(node)), "")
        if user_name:
            return user_name
        index = index.outer
    return name


def relate_layouts(users: GraphIndex | None, one: str, other: str) -> AxisTerms | None:
    """Return the layout of the second tensor in the axes of the first, or None if they are unrelated.

    Two tensors are related if both are made of one tensor by Transposes alone.
    """
    if users is None:
        return None
    first_chain = _transpose_chain(users, find_origin(users, one))
    second_chain = _transpose_chain(users, find_origin(users, other))
    common = next((name for name in second_chain if name in first_chain), None)
    if common is None:
        return None
    from_one, from_other = first_chain[common], second_chain[common]
    # Dimension i of a tensor is dimension order[i] of the common one.
    if len(from_one) != len(from_other):
        return None
    return AxisTerms(AxisTerm(from_one.index(dim)) for dim in from_other)


def _transpose_chain(users: GraphIndex, name: str) -> Mapping[str, tuple[int, ...]]:
    """Return the tensors that a tensor is a transposed form of, with its order of dimensions in each."""
    rank = users.get_rank(name)
    if rank is None:
        return {}
    order = tuple(range(rank))
    found = {name: order}
    index, node = find_producer(users, name)
    while node is not None and node.op_type == "Transpose":
        turn = get_stated_attributes(node).get("perm", list(reversed(range(len(order)))))
        order = tuple(turn[dim] for dim in order)
        name = find_origin(users, node.input[0])
        found[name] = order
        index, node = find_producer(index, name)
    return found
