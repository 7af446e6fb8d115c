"""Reading of a region's model from disk as a `Region`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from byoc.boundary.contracts import UNKNOWN_LAYOUT, read_region_contracts
from byoc.codegen._region import Region
from byoc.model import GraphIndex, parse_layout

if TYPE_CHECKING:
    from byoc.boundary.contracts import RegionContracts
    from byoc.model import TensorLayout


def read_region(
    path: Path,
    name: str,
    target: str,
    contracts: RegionContracts | None = None,
    weights: TensorLayout | None = None,
) -> Region:
    """Read the region whose model is at a path.

    Without `contracts` they are derived from the model, with `weights` as the layout of its convolution
    weights; the user's names of converted tensors are then unknown.
    """
    proto = onnx.load(path, load_external_data=False)
    found = contracts or _read_contracts(proto, path.parent, weights)
    return Region(
        name=name,
        target=target,
        path=path,
        inputs=found.inputs,
        outputs=found.outputs,
        composites=tuple(node.op_type for node in proto.graph.node if node.domain == f"byoc.{target}"),
        constants=found.constants,
    )


def find_disagreement(model: onnx.ModelProto, folder: Path, contracts: RegionContracts) -> str:
    """Return the first tensor on which contracts and a region's model disagree; "" when they agree.

    `folder` holds the model's external data.
    """
    words = {contract.layout for contract in contracts.constants if contract.layout}
    weights = parse_layout(words.pop()) if len(words) == 1 else None
    found = _read_contracts(model, folder, weights)
    for stated, read in (
        (contracts.inputs, found.inputs),
        (contracts.outputs, found.outputs),
        (contracts.constants, found.constants),
    ):
        if [each.name for each in stated] != [each.name for each in read]:
            names = {each.name for each in stated} ^ {each.name for each in read}
            return min(names, default=read[0].name if read else "")
        for one, other in zip(stated, read, strict=True):
            if one.inner != other.inner or not one.view.is_same(other.view):
                return one.name
    return ""


def _read_contracts(
    proto: onnx.ModelProto, folder: Path, weights: TensorLayout | None
) -> RegionContracts:
    index = GraphIndex.of_model(proto)
    found = read_region_contracts(proto, {}, folder, weights, index)
    if all(contract.layout != UNKNOWN_LAYOUT for contract in (*found.inputs, *found.outputs)):
        return found
    # Types of inner tensors may be missing: infer them.
    return read_region_contracts(proto, {}, folder, weights)
