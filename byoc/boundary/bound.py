"""The boundary stage: convert boundary tensors to the dtypes and layouts that targets take."""

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
    """A partitioned model whose boundary tensors are converted.

    `values` gives the types of all inserted tensors, in the graphs and in the regions' functions, and
    `origins` the user's tensor whose content each one holds. `notes` are sentences for the user.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def bound(model: ModelProto, borders: Sequence[Border], folder: Path | None = None) -> Bounded:
    """Convert the boundary tensors of an outlined model, which is edited in place.

    `borders` has one entry for each region of the model, in any order; `folder` is the directory of
    external data. Raises InputError if a region is to compute in a type that the model's operator set
    lacks.
    """
    edit = Editing(model)
    cast(edit, borders, folder)
    tidy(edit, borders)
    arrange(edit, borders)
    fewer(edit, borders)
    return Bounded(edit.finish(), edit.values, edit.origins, tuple(edit.notes))
