"""The contract of a boundary tensor: what the host hands over is what the region takes, and back.

Today a contract is dtype and shape. The host's side is what was inferred on the model as the user gave
it; the region's side is inferred anew from the region's own model, so a tensor wired to the wrong place
shows here and not on the hardware.
"""

import onnx

from byoc.errors import ByocError
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.types import Dim, TensorType


class ContractError(ByocError):
    """The two sides of a boundary disagree: a defect of byoc's own, never of the input."""


def check_contracts(region: onnx.ModelProto, host: GraphIndex) -> None:
    """Raise ContractError unless a region's inputs and outputs agree with the host's view of them.

    `region` is a region's stand-alone model, `host` the index of the model that it was cut from.
    """
    inside = _inferred(region)
    for value in (*region.graph.input, *region.graph.output):
        mine, theirs = inside.get(value.name), host.types.get(value.name)
        if mine is None or theirs is None or not _agree(mine, theirs):
            raise ContractError(
                f"region {region.graph.name}: the host has '{value.name}' as "
                f"{theirs or 'unknown'}, the region as {mine or 'unknown'}"
            )


def _inferred(region: onnx.ModelProto) -> dict[str, TensorType]:
    """Return the types in a region by inference alone: what it states of its outputs is left out."""
    bare = onnx.ModelProto()
    bare.CopyFrom(region)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    return dict(GraphIndex(inferred, stated_types(inferred)).types)


def _agree(one: TensorType, other: TensorType) -> bool:
    if one.dtype != other.dtype:
        return False
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(map(_same, one.shape, other.shape))


def _same(one: Dim, other: Dim) -> bool:
    """Return whether two extents can be equal; symbolic ones are named anew by each inference."""
    return not (isinstance(one, int) and isinstance(other, int)) or one == other
