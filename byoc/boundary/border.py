"""What a target wants of the tensors that cross its border, and which tensors those of a region are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import TypeProto

from byoc.graph.layout import Layout


@dataclass(frozen=True)
class Wants:
    """What a target wants: how images lie, who converts, and the dtype that it computes in.

    `activations` is None where images stay as ONNX has them. `convert` says who quantizes and casts.
    `compute` is `float16` or `bfloat16` where regions are computed in that, None for as the model says.
    """

    activations: Layout | None = None
    convert: Literal["host", "device"] = "host"
    compute: str | None = None


@dataclass(frozen=True)
class Border:
    """A region of an outlined model, and what is known of the tensors around it.

    `spatial` names the images (`byoc.graph.spatial`), `types` gives types, both by the names of the
    graph that the region was cut from.
    """

    region: str
    domain: str
    wants: Wants
    spatial: frozenset[str]
    types: Mapping[str, TypeProto]
