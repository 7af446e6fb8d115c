"""The options that say what open dimensions are, the same for every verb that loads a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from byoc.model._dimensions import Dimensions
from byoc.model._tensor_types import Dim
from byoc.support import DIMS_FLAG, SHAPES_FLAG, declare_field


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
        DIMS_FLAG,
        _record_dims,
    )
    shapes: Mapping[str, Sequence[Dim]] | None = declare_field(
        None,
        "whole inputs by name: their extents, names for them, or None for one that stays as it is.",
        SHAPES_FLAG,
        _record_shapes,
    )


VARIANT_NAME = "[A-Za-z][A-Za-z0-9_]{0,39}"
"""The pattern of variants' names, which are parts of the names of files and of functions."""


@dataclass(frozen=True)
class Variant:
    """A variant of a bundle: its name, and the dimensions that are its own.

    A bundle without variants has a single one, whose name is empty. One that is `automatic` was made
    without being asked for, to serve a model with open dimensions: its sizes were chosen, or it has none
    and takes the others.
    """

    name: str = ""
    dims: Mapping[str, int | str] = field(default_factory=dict)
    automatic: bool = False

    def __str__(self) -> str:
        """Return it as people read it: `decode (sequence_length=1)`."""
        sizes = ", ".join(f"{name}={said}" for name, said in self.dims.items())
        return f"{self.name} ({sizes})" if sizes else self.name

    def name_file(self, name: str) -> str:
        """Return the name of a file of this variant: `decode.model.onnx` for `model.onnx`."""
        return f"{self.name}.{name}" if self.name else name

    def name_region(self, name: str) -> str:
        """Return the name of a region of this variant, which no other variant's region has."""
        return f"{name}_{self.name}" if self.name else name


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
