"""The open dimensions of a model's inputs: sizes, shapes, relations and ranges from the user."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from onnx import ModelProto, TensorShapeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError, suggest_nearest
from byoc.model._inference._extents import (
    evaluate_dim,
    list_dim_names,
    parse_dim,
    substitute_dim,
    subtract_dims,
)
from byoc.model._tensor_data import Dim, TensorType
from byoc.model._walk import walk_dims, walk_value_infos
from byoc.support import Flag, Syntax, declare_field

# Exporters write these for every dimension that they have no name for.
_EMPTY_NAMES = frozenset({"", "?", "-1", "None", "unk", "unknown", "dynamic"})
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_HYPHEN_OR_QUOTED = re.compile(r"('[^']*')|-")
_NUMBER = re.compile(r"-?[0-9]+")
_MAX_SIZE = 2**63 - 1
_EXPECTED = "a size is written as 4, a relation as past+seq, a range as 1..64"


@dataclass(frozen=True)
class Dimensions:
    """The sizes, relations, ranges and shapes that a user gives for open dimensions.

    `dims` gives dimensions by name: a size (`4` or `"4"`), a relation (`"past+seq"`), or a range of
    sizes to plan for (`"1..2048"`), which stays open. `shapes` gives whole inputs: extents, names, or
    None for an extent that stays as it is. A dimension without a name is called `input[axis]`.
    """

    dims: Mapping[str, int | str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[Dim]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything is given."""
        return bool(self.dims or self.shapes)


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
        ends = _RANGE.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
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
    for each in equations:
        if isinstance(each.meaning, int) and not 0 <= each.meaning <= _MAX_SIZE:
            raise InputError(f"{each.origin}: a size is at least 0 and less than 2**63")
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
    for _ in range(len(equations) + 1):  # each round but the last finds a size
        for each in equations:
            name, size = _find_size(each, sizes)
            if size is None:
                continue
            if size < 0:
                raise InputError(f"{each.origin}: dimension {name} would be {size}")
            if sizes.setdefault(name, size) != size:
                raise InputError(
                    f"{each.origin}: dimension {name} would be {size}, but it is {sizes[name]} "
                    f"by {origins[name]}"
                )
            origins.setdefault(name, each.origin)
    relations: dict[str, _Equation] = {}
    for each in equations:
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
    (name,) = open_names
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
    for name in known:
        if not name.isidentifier() and text != name:
            text = text.replace(name, f"'{name}'")
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


# The options that say what open dimensions are, the same for every verb that loads a model.


def _record_dims(dims: Mapping[str, int | str] | None) -> dict[str, int | str]:
    return dict(dims or {})


def _record_shapes(shapes: Mapping[str, Sequence[Dim]] | None) -> dict[str, list[Dim]] | None:
    return {name: list(shape) for name, shape in shapes.items()} if shapes else None


@dataclass(frozen=True, kw_only=True)
class DimensionOptions:
    """The sizes, relations, ranges and shapes that a user gives for a model's open dimensions."""

    dims: Mapping[str, int | str] | None = declare_field(
        None,
        "open dimensions by name: a size, a relation such as `past+seq`, or a range such as `1..2048` "
        "to plan for, which stays open. One without a name is called `input[axis]`.",
        Flag(
            "What an open dimension is: batch=1, total=past+seq, or the range seq=1..2048 to plan for.",
            Syntax.DIMS,
            ("--dim",),
            "NAME=SIZE",
        ),
        _record_dims,
    )
    shapes: Mapping[str, Sequence[Dim]] | None = declare_field(
        None,
        "whole inputs by name: their extents, names for them, or None for one that stays as it is.",
        Flag(
            "The shape of an input, such as x=1,3,640,640; ? for an extent that stays as it is.",
            Syntax.SHAPES,
            ("--shape",),
            "INPUT=EXTENTS",
        ),
        _record_shapes,
    )


VARIANT_NAME = "[A-Za-z][A-Za-z0-9_]{0,39}"
"""The pattern of variants' names, which are parts of the names of files and of functions."""


@dataclass(frozen=True)
class Variant:
    """A variant of a bundle: its name, the dimensions and the rule files that are its own.

    Without `rules` it has those of all. Variants with the same dimensions are alternatives: they take
    the same inputs on other accelerators, and one of them is chosen when the bundle is loaded. A bundle
    without variants has a single one, whose name is empty. One that is `automatic` was made
    without being asked for, to serve a model with open dimensions: its sizes were chosen, or it has none
    and takes the others. `component` is the name of its model in a package, whose files all lie in one
    folder; empty in a bundle.
    """

    name: str = ""
    dims: Mapping[str, int | str] = field(default_factory=dict)
    automatic: bool = False
    rules: tuple[str, ...] = ()
    component: str = ""

    def __str__(self) -> str:
        """Return it as people read it: `decode (sequence_length=1)`."""
        own = [f"{name}={said}" for name, said in self.dims.items()]
        own += [f"rules={name}" for name in self.rules]
        return f"{self.name} ({', '.join(own)})" if own else self.name

    def name_file(self, name: str) -> str:
        """Return the name of a file of this variant: `decode.model.onnx` for `model.onnx`."""
        return ".".join(filter(None, (self.component, self.name, name)))

    def name_region(self, name: str) -> str:
        """Return the name of a region of this variant, which no other variant's region has."""
        return "_".join(filter(None, (name, self.name, self.component)))


ONLY_VARIANT = Variant()
"""The variant of a bundle without variants."""


def read_recorded_dimensions(recorded: Mapping[str, Any], variant: Variant = ONLY_VARIANT) -> Dimensions:
    """Return the dimensions that a manifest records for a variant. Raises ValueError for others."""
    dims, shapes = recorded.get("dims") or {}, recorded.get("shapes") or {}
    if not isinstance(dims, dict) or not all(isinstance(said, (int, str)) for said in dims.values()):
        raise ValueError("dims is not sizes by name")
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise ValueError("shapes is not lists of extents by name")
    return Dimensions({**dims, **variant.dims}, shapes)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(dim is None or isinstance(dim, (int, str)) for dim in value)


# The sizes of open dimensions that a plan counts with.


@dataclass(frozen=True)
class PlannedSizes:
    """The sizes of open dimensions that a plan counts with.

    `sizes` has them by name, `ranges` the least and the largest size of those that the user gave as a
    range. Sizes of the other names were chosen by what the dimensions seem to be, and by what the model
    asks for; `reasons` says for some what that is.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, int]:
        """The sizes that the user did not give."""
        return {name: size for name, size in self.sizes.items() if name not in self.ranges}

    def describe(self) -> str:
        """Return the sizes that the user did not give, with their reasons."""
        told = {name: f" ({reason})" for name, reason in self.reasons.items()}
        return ", ".join(f"{name} = {size}{told.get(name, '')}" for name, size in self.chosen.items())


NOTHING_OPEN = PlannedSizes()
"""The planned sizes of a model without open dimensions."""
