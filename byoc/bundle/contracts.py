"""Contracts in a manifest: what crosses each region's border, as JSON and back."""

from typing import Annotated, Literal

from pydantic import Field

from byoc.boundary.contract import Contract
from byoc.graph.types import DTYPES, TensorType
from byoc.yamlfile import Strict

_Dim = Annotated[int, Field(ge=0)] | str | None


class TypeEntry(Strict):
    """A tensor's dtype and shape; an extent that may vary is a name or null, no shape at all is null."""

    dtype: Literal[tuple(DTYPES.values())] = Field(  # type: ignore[valid-type]
        description="The type of its elements."
    )
    shape: tuple[_Dim, ...] | None = Field(description="Its extents.")


class ContractEntry(Strict):
    """A tensor that crosses or is stored in a region; the fields are those of `Contract`."""

    tensor: str = Field(description="Its name in the user's model.")
    name: str = Field(description="Its name in the region's model, as an input, output or initializer.")
    inner: str = Field(description="Its name there once byoc's own conversions are undone.")
    type: TypeEntry = Field(description="What it is as it crosses.")
    logical: TypeEntry = Field(description="What it is in the user's model.")
    layout: str = Field(description="As it crosses, such as NHWC; empty where it lies as ONNX has it.")
    scale: tuple[float, ...] | None = Field(
        description="Real value = (stored - zero point) * scale; null where it is not quantized."
    )
    zero_point: tuple[int, ...] | None = Field(description="As many as there are scales.")
    axis: int | None = Field(
        description="The dimension of `logical` that has a scale for each element; null for one scale."
    )
    converts: dict[str, Literal["host", "device", "model"]] = Field(
        description="Who converts it: under `layout`, `quantize` and `cast`, as far as it differs."
    )


def as_entry(contract: Contract) -> ContractEntry:
    """Return a contract as it stands in the manifest."""
    return ContractEntry(
        tensor=contract.tensor,
        name=contract.name,
        inner=contract.inner,
        type=_type_entry(contract.type),
        logical=_type_entry(contract.logical),
        layout=contract.layout,
        scale=contract.scale,
        zero_point=contract.zero_point,
        axis=contract.axis,
        converts=dict(contract.converts),
    )


def as_contract(entry: ContractEntry) -> Contract:
    """Return the contract that stands in a manifest; the inverse of `as_entry`."""
    return Contract(
        tensor=entry.tensor,
        name=entry.name,
        inner=entry.inner,
        type=TensorType(entry.type.dtype, entry.type.shape),
        logical=TensorType(entry.logical.dtype, entry.logical.shape),
        layout=entry.layout,
        scale=entry.scale,
        zero_point=entry.zero_point,
        axis=entry.axis,
        converts=dict(entry.converts),
    )


def _type_entry(kind: TensorType) -> TypeEntry:
    return TypeEntry(dtype=kind.dtype, shape=kind.shape)
