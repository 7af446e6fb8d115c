"""The boundary stage: convert boundary tensors to the dtypes and layouts that targets take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TypeProto

from byoc.boundary.border import RegionBoundary, BoundaryFormat
from byoc.boundary.casts import cast_regions
from byoc.boundary.edit import ModelEditor
from byoc.boundary.layouts import insert_layouts
from byoc.boundary.quantized import tidy_quantization
from byoc.boundary.transposes import minimize_transposes

__all__ = ["RegionBoundary", "ConvertedModel", "BoundaryFormat", "convert_boundary"]


@dataclass(frozen=True)
class ConvertedModel:
    """A partitioned model whose boundary tensors are converted.

    `values` gives the types of all inserted tensors, in the graphs and in the regions' functions, and
    `origins` the user's tensor whose content each one holds. `notes` are sentences for the user.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def convert_boundary(model: ModelProto, boundaries: Sequence[RegionBoundary], folder: Path | None = None) -> ConvertedModel:
    """Convert the boundary tensors of an outlined model, which is edited in place.

    `borders` has one entry for each region of the model, in any order; `folder` is the directory of
    external data. Raises InputError if a region is to compute in a type that the model's operator set
    lacks.
    """
    edit = ModelEditor(model)
    cast_regions(edit, boundaries, folder)
    tidy_quantization(edit, boundaries)
    insert_layouts(edit, boundaries)
    minimize_transposes(edit, boundaries)
    return ConvertedModel(edit.finish(), edit.values, edit.origins, tuple(edit.notes))
