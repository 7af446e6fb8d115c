"""Contracts of boundary tensors in a manifest, as JSON and back."""

from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field

from byoc.boundary.contract import TensorContract
from byoc.graph.types import DTYPES, TensorType
from byoc.yamlfile import StrictModel

_Dim = Annotated[int, Field(ge=0)] | str | None


class TypeEntry(StrictModel):
    """A tensor's dtype and shape; a variable extent is a name or null, an unknown shape is null."""

    dtype: Literal[tuple(DTYPES.values())] = Field(  # type: ignore[valid-type]
        description="The element type."
    )
    shape: tuple[_Dim, ...] | None = Field(description="The extents.")


class ContractEntry(StrictModel):
    """A boundary tensor or a stored tensor of a region; the fields are those of `Contract`."""

    tensor: str = Field(description="The name in the user's model.")
    name: str = Field(description="The name in the region's model, as an input, output or initializer.")
    inner: str = Field(description="The name in the region's model inside of byoc's own conversions.")
    type: TypeEntry = Field(description="Its type at the boundary.")
    logical: TypeEntry = Field(description="Its type in the user's model.")
    layout: str = Field(description="The layout at the boundary, such as NHWC; empty for ONNX's.")
    scale: tuple[float, ...] | None = Field(
        description="Real value = (stored - zero point) * scale; null where it is not quantized."
    )
    zero_point: tuple[int, ...] | None = Field(description="As many values as scales.")
    axis: int | None = Field(
        description="The dimension of `logical` that has a scale for each element; null for one scale."
    )
    converts: dict[str, Literal["host", "device", "model"]] = Field(
        description="The side that converts it, by `layout`, `quantize` and `cast`, where needed."
    )


def contract_to_entry(contract: TensorContract) -> ContractEntry:
    """Return the manifest's entry for a contract."""
    return ContractEntry.model_validate(asdict(contract))


def entry_to_contract(entry: ContractEntry) -> TensorContract:
    """Return the contract of a manifest's entry; the inverse of `as_entry`."""
    types = {name: TensorType(**dict(getattr(entry, name))) for name in ("type", "logical")}
    return TensorContract(**{**dict(entry), **types})
