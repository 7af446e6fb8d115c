"""Writing of a region that a pass rewrote, and the checks that it is still the same region."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, TensorProto

from byoc.boundary.contracts import TensorContract
from byoc.bundle._original_weights import WeightFile
from byoc.bundle._writing import save_model
from byoc.codegen import Region, read_region
from byoc.errors import InputError
from byoc.model import GraphIndex, TensorLayout, check_model, copy_without, is_large, read_raw_bytes
from byoc.passes import find_interface_change


def write_rewritten(
    region: Region, rewritten: ModelProto, path: Path, layout: TensorLayout | None, weights: WeightFile
) -> Region:
    """Write the rewritten model of a region, weights in memory, to a path beside the region's.

    Weights that are as before stay where they are; new ones are added to `weights`, and those that
    nothing reads are left out. `layout` is that of the target's convolution weights. Raises InputError,
    with the end of a sentence, when the model is not valid, or not of the same inputs and outputs.
    """
    problem = find_interface_change(region.model, rewritten)
    if problem:
        raise InputError(problem)
    try:
        check_model(rewritten)
    except InputError as error:
        raise InputError(f"what it makes is {error}") from None
    save_model(_share_weights(region, rewritten, weights), path)
    made = read_region(path, region.name, region.target, weights=layout)
    for one, other in (*zip(region.inputs, made.inputs), *zip(region.outputs, made.outputs)):  # noqa: B905
        if one.inner != other.inner or not one.view.is_same(other.view):
            raise InputError(f"it changes the conversion of '{one.tensor}' at the boundary")
    known = {contract.name: contract for contract in region.constants}
    constants = tuple(_keep_name(contract, known) for contract in made.constants)
    return replace(made, inputs=region.inputs, outputs=region.outputs, constants=constants)


def _keep_name(contract: TensorContract, known: Mapping[str, TensorContract]) -> TensorContract:
    """Return the contract of a constant with the user's name of the tensor, where that is known."""
    before = known.get(contract.name)
    return contract if before is None else replace(contract, tensor=before.tensor)


def _share_weights(region: Region, rewritten: ModelProto, weights: WeightFile) -> ModelProto:
    """Return a model whose large weights are in the weight file of the region's folder."""
    folder, index = region.path.parent, GraphIndex(rewritten, {})
    stored = {tensor.name: tensor for tensor in region.model.graph.initializer}
    result = copy_without(rewritten, "initializer")
    with weights:
        for tensor in rewritten.graph.initializer:
            if not index.is_used(tensor.name):
                continue
            before = stored.get(tensor.name)
            if before is not None and _is_same(before, tensor, folder):
                result.graph.initializer.append(before)
            elif is_large(tensor):
                result.graph.initializer.append(weights.add(tensor, None))
            else:
                result.graph.initializer.append(tensor)
    return result


def _is_same(stored: TensorProto, tensor: TensorProto, folder: Path) -> bool:
    if (stored.data_type, list(stored.dims)) != (tensor.data_type, list(tensor.dims)):
        return False
    if stored.data_type == TensorProto.STRING:
        return stored.string_data == tensor.string_data
    return read_raw_bytes(stored, folder) == read_raw_bytes(tensor, None)
