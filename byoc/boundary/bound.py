"""Bounding: what crosses between host and regions gets the dtype and layout that the target wants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    `values` has the types of all tensors that were added, in the graphs and in the regions' functions.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]


def bound(model: ModelProto, borders: Sequence[Border]) -> Bounded:
    """Return an outlined model with its borders converted; the model is edited in place.

    `borders` has one for each region of the model, in any order.
    """
    edit = Editing(model)
    cast(edit, borders)
    tidy(edit, borders)
    arrange(edit, borders)
    fewer(edit, borders)
    return Bounded(edit.finish(), edit.values)
