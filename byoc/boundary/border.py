"""The target's requirements on boundary tensors, and the regions that they apply to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import TypeProto

from byoc.graph.layout import TensorLayout


@dataclass(frozen=True)
class BoundaryFormat:
    """The form in which a target takes boundary tensors.

    `activations` is the layout of images, None for ONNX's own. `convert` says who quantizes and casts.
    `compute` is `float16` or `bfloat16` if regions compute in that type, None to follow the model.
    """

    activations: TensorLayout | None = None
    convert: Literal["host", "device"] = "host"
    compute: str | None = None


@dataclass(frozen=True)
class RegionBoundary:
    """A region of an outlined model, and the facts known about the tensors around it.

    `spatial` names the images (see `byoc.graph.spatial`), `types` gives types, both by the names of the
    graph that the region was cut from.
    """

    region: str
    domain: str
    format: BoundaryFormat
    spatial: frozenset[str]
    types: Mapping[str, TypeProto]
