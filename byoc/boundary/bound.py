"""Bounding: what crosses between host and regions gets the dtype and layout that the target wants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TypeProto

from byoc.boundary.border import Border, Wants
from byoc.boundary.casts import cast
from byoc.boundary.edit import Editing
from byoc.boundary.layouts import arrange
from byoc.boundary.quantized import tidy
from byoc.boundary.transposes import fewer

__all__ = ["Border", "Bounded", "Wants", "bound"]


@dataclass(frozen=True)
class Bounded:
    """A model whose regions are given what their targets want.

    `values` has the types of all tensors that were added, in the graphs and in the regions' functions,
    `origins` the user's tensor whose content each holds; `notes` are sentences worth telling the user.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def bound(model: ModelProto, borders: Sequence[Border], folder: Path | None = None) -> Bounded:
    """Return an outlined model with its borders converted; the model is edited in place.

    `borders` has one for each region of the model, in any order; `folder` is where the model's external
    data lies. Raises InputError when a region is to compute in a type that the model's operator set
    does not have.
    """
    edit = Editing(model)
    cast(edit, borders, folder)
    tidy(edit, borders)
    arrange(edit, borders)
    fewer(edit, borders)
    return Bounded(edit.finish(), edit.values, edit.origins, tuple(edit.notes))
