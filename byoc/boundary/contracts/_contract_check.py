"""The contract check: host and region must describe each boundary tensor in the same way.

Each view is read independently: the region view from the region's stand-alone model, the host view from
the graph around the call; types are inferred anew for both. The two must agree on dtype, shape, layout,
scale, zero point and axis. In addition, every tensor with a name of the user's model must have the type
that it has there, on the host and in the regions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import NodeProto, TypeProto

from byoc.boundary.contracts._boundary_nodes import (
    find_type,
    read_scales,
)
from byoc.boundary.contracts._conversion_path import RegionContext, find_origin, find_user_name
from byoc.boundary.contracts._host_view import HostGraph, HostView
from byoc.boundary.contracts._region_view import (
    RegionContracts,
    infer_region_types,
    read_region_contracts,
)
from byoc.boundary.contracts._tensor_contract import ContractError, TensorContract, types_agree
from byoc.model import (
    BoundaryNames,
    GraphIndex,
    extract_call,
    get_stated_types,
    infer_types,
    is_qdq_node,
    read_type,
)


@dataclass(frozen=True, eq=False)
class CheckedRegion:
    """A region whose boundary passed the check: its stand-alone model and its contracts."""

    model: onnx.ModelProto
    contracts: RegionContracts


def check_contracts(
    proto: onnx.ModelProto,
    domains: Iterable[str],
    contexts: Mapping[str, RegionContext] = MappingProxyType({}),
    folder: Path | None = None,
) -> dict[str, CheckedRegion]:
    """Check the contracts of all regions of a partitioned model and return the regions by name.

    `domains` are the domains of the targets. `contexts` gives further facts about regions by name, and
    `folder` is the directory of external data. The model is not changed.

    Raises ContractError, naming the region, the tensor and both views, if host and region disagree.
    """
    inferred = infer_types(proto, get_stated_types(proto))  # through the regions
    host = GraphIndex(proto, inferred.type_protos, inferred.typed_graph)
    domains = set(domains)
    calls = {
        call.op_type: (index, call)
        for index in host.walk()
        for call in index.nodes
        if call.domain in domains
    }
    known = {name: contexts.get(name, RegionContext()) for name in calls}
    models: dict[str, onnx.ModelProto] = {}
    typed: dict[str, GraphIndex] = {}
    read: dict[str, RegionContracts] = {}
    for name, (index, call) in calls.items():
        context = known[name]
        values = {**index.type_protos, **context.added, **context.user_types}
        model = models[name] = extract_call(index, call, values)
        typed[name] = infer_region_types(model)
        contracts = read_region_contracts(model, values, folder, context.weights, typed[name])
        read[name] = _restore_names(contracts, context.interface)
    regions: dict[str, CheckedRegion] = {}
    for name, (index, call) in calls.items():
        around = HostGraph(index, read, known[name], folder)
        regions[name] = CheckedRegion(models[name], _check_region(name, call, read[name], around))
    # Afterwards, since it names what is behind a wrong boundary, and not the boundary.
    graphs = {id(index): (index, known[name]) for name, (index, _) in calls.items()}
    for index, context in graphs.values():
        _check_types("the host", index, context.user_types)
    for name, inside in typed.items():
        _check_types(f"region {name}", inside, known[name].user_types)
    return regions


def _check_types(where: str, index: GraphIndex, users: Mapping[str, TypeProto]) -> None:
    """Raise ContractError if a tensor named in the user's model has another type than it has there."""
    for name, kind in index.type_protos.items():
        here, there = read_type(kind), find_type(users, name)
        if here is not None and there is not None and not types_agree(here, there):
            raise ContractError(f"{where}: '{name}' is {here}, but {there} in the user's model")


def _restore_names(contracts: RegionContracts, names: BoundaryNames | None) -> RegionContracts:
    """Return contracts with the names that tensors had in the user's model when regions were cut out.

    Inside the region a tensor may have another name, that of another form of itself.
    """
    if names is None:
        return contracts
    inputs = _rename_contracts(contracts.inputs, names.inputs)
    return replace(contracts, inputs=inputs, outputs=_rename_contracts(contracts.outputs, names.outputs))


def _rename_contracts(
    contracts: tuple[TensorContract, ...], names: Sequence[str]
) -> tuple[TensorContract, ...]:
    if len(names) != len(contracts):
        return contracts
    pairs = zip(contracts, names, strict=True)
    return tuple(replace(contract, tensor=name) for contract, name in pairs)


def _check_region(
    name: str, call: NodeProto, contracts: RegionContracts, host: HostGraph
) -> RegionContracts:
    """Check the contracts of a region against the host's views; return them completed."""
    data = [outer_name for outer_name in call.input if not host.index.is_constant(outer_name)]
    inputs = [
        _check_tensor(name, contract, [host.view_input(outer_name, contract.tensor)], host)
        for outer_name, contract in zip(data, contracts.inputs, strict=True)
    ]
    outputs = [
        _check_tensor(name, contract, list(host.view_output(outer_name, contract.tensor)), host)
        for outer_name, contract in zip(call.output, contracts.outputs, strict=True)
    ]
    return replace(contracts, inputs=tuple(inputs), outputs=tuple(outputs))


def _check_tensor(
    region: str, contract: TensorContract, views: list[HostView], host: HostGraph
) -> TensorContract:
    """Check a contract against the host's views; return it with the user's name and type."""
    for view in views:
        if not view.is_connected:
            raise ContractError(
                f"region {region}: the host has '{view.tensor}' where the region has '{contract.tensor}'"
            )
        host_view = view.view
        agrees = host_view.agrees(contract.view)
        if not agrees and not view.is_own and _has_differing_scales(host, contract):
            host_view = replace(host_view, scale=None)
        if not host_view.agrees(contract.view):
            raise ContractError(
                f"region {region}: the host has '{contract.name}' as "
                f"{host_view.describe(contract.view)}, the region as {contract.view.describe(host_view)}"
            )
    names = [
        find_origin(host.context.user_index, name)
        for name in (contract.tensor, *(view.tensor for view in views))
    ]
    tensor = next((name for name in names if name in host.context.user_types), names[-1])
    found = find_type(host.context.user_types, tensor) or find_type(host.index.type_protos, tensor)
    converts = dict(contract.converts)
    if any(view.cast for view in views):
        converts["cast"] = "host"
    user_name = find_user_name(host.context.user_index, tensor)
    return replace(contract, tensor=user_name, logical=found or contract.logical, converts=converts)


def _has_differing_scales(host: HostGraph, contract: TensorContract) -> bool:
    """Return whether the user's model quantizes and dequantizes a tensor with different scales."""
    users, name = host.context.user_index, contract.tensor
    if users is None or name not in users.producers:
        return False
    maker = users.nodes[users.producers[name]]
    readers = [users.nodes[i] for i in users.consumers.get(name, ())]
    pairs = [node for node in (maker, *readers) if is_qdq_node(node)]
    return len({read_scales(users, node, host.folder) for node in pairs}) > 1
