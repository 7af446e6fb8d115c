"""The contract check: host and region must describe each boundary tensor in the same way.

Each view is read independently: the region view from the region's stand-alone model, the host view from
the graph around the call; types are inferred anew for both. The two must agree on dtype, shape, layout,
scale, zero point and axis. In addition, every tensor with a name of the user's model must have the type
that it has there, on the host and in the regions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import NodeProto, TypeProto

from byoc.boundary.contract import Contract, ContractError, agree
from byoc.boundary.conversions import is_conversion
from byoc.boundary.inside import Contracts, inferred, region_contracts
from byoc.boundary.outside import Host, Told
from byoc.boundary.related import origin, users_name
from byoc.boundary.scales import is_dequantize, is_quantize, read_scales
from byoc.graph.extract import call_model
from byoc.graph.index import GraphIndex, stated_types, tensor_types
from byoc.graph.infer import infer_types
from byoc.graph.interface import Interface
from byoc.graph.layout import Layout
from byoc.graph.types import TensorType, knowledge, read_type


@dataclass(frozen=True, eq=False)
class Known:
    """Facts about a region that the partitioned model does not contain.

    `users` is the index of the graph that the region was cut from, and `border` names the tensors that
    crossed the boundary there. `added` gives the types of tensors that the boundary stage inserted, and
    `origins` the user's tensors whose content they hold (see `byoc.boundary.convert`). `weights` is the
    weight layout of the region's target.
    """

    users: GraphIndex | None = None
    border: Interface | None = None
    added: Mapping[str, TypeProto] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    weights: Layout | None = None

    @property
    def users_types(self) -> Mapping[str, TypeProto]:
        """The types of the user's tensors by name; empty if they are not known."""
        return self.users.certain if self.users is not None else {}

    @property
    def said(self) -> Mapping[str, TypeProto]:
        """The types that conversions rely on, including those that only the user's model states."""
        return {**self.added, **(self.users.values if self.users is not None else {})}


@dataclass(frozen=True, eq=False)
class Checked:
    """A region whose boundary passed the check: its stand-alone model and its contracts."""

    model: onnx.ModelProto
    contracts: Contracts


def check_model(
    proto: onnx.ModelProto,
    domains: Iterable[str],
    known: Mapping[str, Known] = MappingProxyType({}),
    folder: Path | None = None,
) -> dict[str, Checked]:
    """Check the contracts of all regions of a partitioned model and return the regions by name.

    `domains` are the domains of the targets. `known` gives further facts about regions by name, and
    `folder` is the directory of external data. The model is not changed.

    Raises ContractError, naming the region, the tensor and both views, if host and region disagree.
    """
    host = _typed(proto)
    calls = {
        call.op_type: (index, call)
        for index in host.walk()
        for call in index.nodes
        if call.domain in set(domains)
    }
    regions: dict[str, Checked] = {}
    typed: dict[str, GraphIndex] = {}
    for name, (index, call) in calls.items():
        context = known.get(name, Known())
        values = {**index.certain, **context.added, **context.users_types}
        model = call_model(index, call, values)
        _state(model, context.said)
        inside = inferred(model)
        contracts = region_contracts(model, values, folder, context.weights, inside)
        regions[name] = Checked(model, contracts)
        typed[name] = inside
    read = {name: _named(region.contracts, known.get(name, Known())) for name, region in regions.items()}
    for name, (index, call) in calls.items():
        context = known.get(name, Known())
        stated = tensor_types(context.said)
        around = Host(index, read, context.users_types, context.users, context.origins, folder, stated)
        regions[name] = replace(regions[name], contracts=_agreed(name, call, read[name], around))
    # Afterwards, since it names what is behind a wrong border, and not the border.
    graphs = {id(index): (index, known.get(name, Known())) for name, (index, _) in calls.items()}
    for index, context in graphs.values():
        _check_types("the host", index, context.users_types)
    for name, inside in typed.items():
        _check_types(f"region {name}", inside, known.get(name, Known()).users_types)
    return regions


def _typed(proto: onnx.ModelProto) -> GraphIndex:
    """Return the index of a partitioned model with types inferred through its regions."""
    found = infer_types(proto, stated_types(proto))
    return GraphIndex(proto, found.values, found.typed)


def _state(model: onnx.ModelProto, known: Mapping[str, TypeProto]) -> None:
    """State in a region's model, in place, the shapes that conversions inside it rely on.

    Type inference may not find them; without them a blocked layout cannot be read from a Reshape by a
    reader that has the region alone.
    """
    stated = {value.name: value for value in model.graph.value_info}
    boundary = {value.name for value in (*model.graph.input, *model.graph.output)}
    for node in filter(is_conversion, model.graph.node):
        for name in sorted({node.input[0], node.output[0]} & known.keys() - boundary):
            if name not in stated:
                stated[name] = model.graph.value_info.add(name=name)
            if knowledge(stated[name].type) < knowledge(known[name]):
                stated[name].type.CopyFrom(known[name])


def _check_types(where: str, index: GraphIndex, users: Mapping[str, TypeProto]) -> None:
    """Raise ContractError if a tensor named in the user's model has another type than it has there."""
    for name, kind in index.certain.items():
        here, there = read_type(kind), read_type(users[name]) if name in users else None
        if here is not None and there is not None and not agree(here, there):
            raise ContractError(f"{where}: '{name}' is {here}, but {there} in the user's model")


def _named(contracts: Contracts, known: Known) -> Contracts:
    """Return contracts with the names that tensors had in the user's model when regions were cut out.

    Inside the region a tensor may have been renamed to another form of itself since then.
    """
    border = known.border
    if border is None:
        return contracts
    return replace(
        contracts,
        inputs=_with_names(contracts.inputs, border.inputs),
        outputs=_with_names(contracts.outputs, border.outputs),
    )


def _with_names(contracts: tuple[Contract, ...], names: Sequence[str]) -> tuple[Contract, ...]:
    if len(names) != len(contracts):
        return contracts
    pairs = zip(contracts, names, strict=True)
    return tuple(replace(contract, tensor=name) for contract, name in pairs)


def _agreed(name: str, call: NodeProto, contracts: Contracts, host: Host) -> Contracts:
    """Check the contracts of a region against the host's views; return them completed."""
    data = [outer_name for outer_name in call.input if not host.index.is_constant(outer_name)]
    inputs = [
        _both(name, contract, [host.handed(outer_name, contract.tensor)], host)
        for outer_name, contract in zip(data, contracts.inputs, strict=True)
    ]
    outputs = [
        _both(name, contract, list(host.taken(outer_name, contract.tensor)), host)
        for outer_name, contract in zip(call.output, contracts.outputs, strict=True)
    ]
    return replace(contracts, inputs=tuple(inputs), outputs=tuple(outputs))


def _both(region: str, contract: Contract, views: list[Told], host: Host) -> Contract:
    """Check a contract against the host's views; return it with the user's name and type."""
    for view in views:
        if not view.wired:
            raise ContractError(
                f"region {region}: the host has '{view.tensor}' where the region has '{contract.tensor}'"
            )
        host_view = view.side
        if not host_view.agrees(contract.side) and not view.ours and _differs_by_itself(host, contract):
            host_view = replace(host_view, scale=None)
        if not host_view.agrees(contract.side):
            raise ContractError(
                f"region {region}: the host has '{contract.name}' as {host_view.told(contract.side)}, "
                f"the region as {contract.side.told(host_view)}"
            )
    names = [origin(host.users, name) for name in (contract.tensor, *(view.tensor for view in views))]
    tensor = next((name for name in names if name in host.types), names[-1])
    known = read_type(host.types[tensor]) if tensor in host.types else None
    converts = dict(contract.converts)
    if any(view.cast for view in views):
        converts["cast"] = "host"
    logical = known or _logical(host, tensor, contract)
    user_name = users_name(host.users, tensor)
    return replace(contract, tensor=user_name, logical=logical, converts=converts)


def _logical(host: Host, tensor: str, contract: Contract) -> TensorType:
    kind = host.index.certain.get(tensor)
    return (read_type(kind) if kind is not None else None) or contract.logical


def _differs_by_itself(host: Host, contract: Contract) -> bool:
    """Return whether the user's model quantizes and dequantizes a tensor with different scales."""
    users, name = host.users, contract.tensor
    if users is None or name not in users.producer:
        return False
    maker = users.nodes[users.producer[name]]
    readers = [users.nodes[i] for i in users.consumers.get(name, ())]
    pairs = [node for node in (maker, *readers) if is_quantize(node) or is_dequantize(node)]
    found = [read_scales(users, node, host.folder) for node in pairs]
    return any(scales != found[0] for scales in found)
