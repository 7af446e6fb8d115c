"""The open dimensions of a model's inputs as users give them: sizes, shapes, relations and ranges.

`_open_dims.py` puts them into a model. Nothing here needs onnx, nor does the help of verbs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from byoc._dataclasses import dataclass, field
from byoc.support import Flag, Syntax, declare_field

Dim = int | str | None
"""An extent: a number, the name or expression of an open one, or None where it is unknown."""


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
