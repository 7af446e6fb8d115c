"""The options that say what open dimensions are, the same for every verb that loads a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byoc.model._dimensions import Dimensions
from byoc.model._tensor_data import Dim
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
        record_none=False,
    )


def read_recorded_dimensions(recorded: Mapping[str, Any]) -> Dimensions:
    """Return the dimensions that a manifest records. Raises ValueError for anything else."""
    dims, shapes = recorded.get("dims") or {}, recorded.get("shapes") or {}
    if not isinstance(dims, dict) or not all(isinstance(said, (int, str)) for said in dims.values()):
        raise ValueError("dims is not sizes by name")
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise ValueError("shapes is not lists of extents by name")
    return Dimensions(dims, shapes)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(dim is None or isinstance(dim, (int, str)) for dim in value)
