"""The contract check: the host's view of a boundary, compared with the region's.

Each view is read independently: the region view from the region's stand-alone model, the host view from
the graph around the call; types are inferred anew for both. The two must agree on dtype, shape, layout,
scale, zero point and axis. In addition, every tensor with a name of the user's model must have the type
that it has there, on the host and in the regions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import NodeProto, TypeProto

from byoc._dataclasses import dataclass, replace
from byoc.boundary.contracts._boundary_nodes import (
    UNKNOWN_LAYOUT,
    AxisTerm,
    AxisTerms,
    ConversionPath,
    RegionContext,
    find_origin,
    find_producer,
    find_rank,
    find_type,
    find_user_name,
    includes_cast,
    is_conversion,
    layout_after,
    layout_before,
    read_scales,
    relate_layouts,
)
from byoc.boundary.contracts._region_view import (
    ContractError,
    RegionContracts,
    TensorContract,
    TensorView,
    infer_region_types,
    read_region_contracts,
    types_agree,
)
from byoc.model import (
    LAYOUT_KEY,
    BoundaryNames,
    GraphIndex,
    TensorType,
    extract_call,
    get_metadata,
    get_stated_types,
    infer_types,
    is_dequantize,
    is_inserted,
    is_onnx,
    is_qdq_node,
    is_quantize,
    read_type,
)

# The host view of a boundary, read from the graph around the call and never from the region.
#
# The form of a region's input is shown by the nodes that made it, back to the last node of the
# user's own. The form of its output is shown by each node that reads it. A neighbouring region is
# represented by its own contract.


@dataclass(frozen=True)
class HostView:
    """The host's view of a boundary tensor, from one place in the graph.

    `tensor` is the tensor found there after byoc's own conversions are reverted, `cast` whether a Cast
    is among these, `is_own` whether the scales come from a node of byoc's. `is_connected` is False if
    that tensor cannot be the region's tensor.
    """

    view: TensorView
    tensor: str
    cast: bool
    is_own: bool
    is_connected: bool


@dataclass(frozen=True)
class HostGraph:
    """A graph that calls regions, and the facts known about it.

    `contracts` holds the contracts of each region by name, read from the region alone; `context` is that
    of the region whose boundary is viewed, and `folder` the directory of external data.
    """

    index: GraphIndex
    contracts: Mapping[str, RegionContracts]
    context: RegionContext
    folder: Path | None

    def view_input(self, name: str, inner: str) -> HostView:
        """Return the host's view of a tensor that a call reads and that the region knows as `inner`."""
        path = ConversionPath(inner, (name,))
        index, node = find_producer(self.index, name)
        while node is not None:
            if self._is_conversion(node, path.end):
                path = replace(path, steps=(node, *path.steps))
            else:
                if is_quantize(node) and path.seeks_scales:
                    scales = read_scales(index, node, self.folder)
                    path = replace(path, scales=scales, outer_steps=path.steps)
                if not (is_qdq_node(node) and is_inserted(node)):
                    break
                path = replace(path, seeks_scales=False)
            path = path.extend(node.input[0])
            index, node = find_producer(index, path.end)
        neighbour = self._neighbour_output(node, path.end)
        terms = self._find_layout(index, path, neighbour, node)
        inner_steps = path.steps[: len(path.steps) - len(path.outer_steps)]
        inner_terms = layout_after(self.index, inner_steps, terms, self.context.known_types)
        boundary = layout_after(self.index, path.outer_steps, inner_terms, self.context.known_types)
        layout = _format_layout(boundary, terms)
        side = TensorView(find_type(self.index.type_protos, name), layout)
        return self._build_view(side, path, neighbour, inner_terms)

    def view_output(self, name: str, inner: str) -> Iterator[HostView]:
        """Yield each reader's view of a region's output that the region knows as `inner`."""
        yield from self._follow_readers(ConversionPath(inner, (name,)))

    def _follow_readers(self, path: ConversionPath) -> Iterator[HostView]:
        if path.end in self.index.outputs:
            yield self._view_end(path)
        for number in self.index.consumers.get(path.end, ()):
            node = self.index.nodes[number]
            for body in self.index.bodies.get(number, ()):
                if path.end in body.index.consumers or path.end in body.index.outputs:
                    yield from replace(self, index=body.index)._follow_readers(path)
            if path.end not in node.input:
                continue
            first = node.input[0] == path.end
            if self._is_region(node):
                for contract in self._neighbour_inputs(node, path.end):
                    yield self._view_end(path, contract)
            elif first and self._is_conversion(node, path.end):
                longer = replace(path, steps=(*path.steps, node)).extend(node.output[0])
                yield from self._follow_readers(longer)
            elif first and is_dequantize(node) and path.seeks_scales:
                scales = read_scales(self.index, node, self.folder)
                further = replace(path, scales=scales, outer_steps=path.steps, seeks_scales=False)
                if is_inserted(node):
                    yield from self._follow_readers(further.extend(node.output[0]))
                else:
                    yield self._view_end(further, node=node)
            else:
                yield self._view_end(path, node=node)

    def _is_conversion(self, node: NodeProto, name: str) -> bool:
        """Return whether a node converts a tensor into another form of itself.

        A Transpose of the user's counts if the name of the tensor is not one of the user's.
        """
        transpose = node.op_type == "Transpose" and is_onnx(node)
        return is_conversion(node) or (transpose and name not in self.context.user_types)

    def _view_end(
        self,
        path: ConversionPath,
        neighbour: TensorContract | None = None,
        node: NodeProto | None = None,
    ) -> HostView:
        """Return the view of an output at the end of a path: at a reader, or at a graph output."""
        terms = self._find_layout(self.index, path, neighbour, node)
        border = layout_before(self.index, path.steps, terms, self.context.known_types)
        side = TensorView(self._boundary_type(path, terms, border), _format_layout(border, terms))
        inner_terms = layout_before(
            self.index, path.steps[len(path.outer_steps) :], terms, self.context.known_types
        )
        return self._build_view(side, path, neighbour, inner_terms)

    def _boundary_type(
        self, path: ConversionPath, terms: AxisTerms | None, border: AxisTerms | None
    ) -> TensorType | None:
        """Return an output's type at the boundary according to the user's tensor made of it."""
        crossing = find_type(self.index.type_protos, path.tensors[0])
        known = find_type(self.context.user_types, path.end)
        if known is None or crossing is None:
            return crossing
        dtype = known.dtype
        if path.scales is not None:
            dtype = path.scales.dtype
        elif includes_cast(path.steps):
            dtype = crossing.dtype
        if known.shape is None or terms is None or border is None:
            return TensorType(dtype, crossing.shape)
        plain = terms.unpack(known.shape)
        return TensorType(dtype, crossing.shape if plain is None else border.pack(plain))

    def _find_layout(
        self,
        index: GraphIndex,
        path: ConversionPath,
        neighbour: TensorContract | None,
        node: NodeProto | None,
    ) -> AxisTerms | None:
        """Return the layout at the end of a path, in the axes of the region's tensor."""
        rank = self._find_rank(index, path)
        if rank is None:
            return None
        if neighbour is not None:
            return _map_axes(
                AxisTerms.parse(neighbour.layout, rank), self._relate(path, neighbour.tensor)
            )
        layout = get_metadata(node, LAYOUT_KEY) if node is not None else ""
        form = (
            AxisTerms.of_plain(rank)
            if not layout or path.end in self.context.user_types
            else self._node_layout(layout, rank)
        )
        return _map_axes(form, self._relate(path, self._find_user_tensor(path.end, node)))

    def _find_rank(self, index: GraphIndex, path: ConversionPath) -> int | None:
        """Return the rank of the tensor at the end of a path, or None if nothing gives it.

        The inputs of a body may have no shape; the steps on the path then give the rank.
        """
        known = find_type(index.type_protos, path.end), find_type(self.context.user_types, path.end)
        for kind in (*known, self.context.known_types.get(path.end)):
            if kind is not None and kind.shape is not None:
                return len(kind.shape)
        return find_rank(self.index, path.steps, self.context.known_types, before=path.is_backward)

    def _find_user_tensor(self, name: str, node: NodeProto | None) -> str:
        """Return the user's tensor that corresponds to a tensor at a node that reads or makes it.

        A node may read another form of the tensor that it read in the user's model; the node is
        therefore looked up there.
        """
        users = self.context.user_index
        if name in self.context.user_types or node is None or users is None:
            return name
        made = next((made for made in node.output if made in users.producers), None)
        original_node = users.nodes[users.producers[made]] if made is not None else None
        if original_node is None or original_node.op_type != node.op_type:
            return name
        pairs = [
            *zip(node.input, original_node.input, strict=False),
            *zip(node.output, original_node.output, strict=False),
        ]
        return next((original for here, original in pairs if here == name), name)

    def _node_layout(self, layout: str, rank: int) -> AxisTerms | None:
        """Return the layout, in the user's axes, of a tensor at a node marked with a layout.

        A node marked with the plain layout holds a tensor that the user has in another layout. If the
        regions use exactly one layout it is that one; otherwise nothing is known.
        """
        terms = AxisTerms.parse(layout, rank)
        if terms != AxisTerms.of_plain(rank):
            return terms
        every = (c for each in self.contracts.values() for c in (*each.inputs, *each.outputs))
        words = {contract.layout for contract in every if contract.layout}
        user_terms = AxisTerms.parse(words.pop(), rank) if len(words) == 1 else None
        if user_terms is None or any(term.size for term in user_terms):
            return None
        return AxisTerms(AxisTerm(user_terms.index(AxisTerm(axis))) for axis in range(rank))

    def _relate(self, path: ConversionPath, name: str) -> AxisTerms | None:
        """Return the layout of another of the user's tensors in the axes of the region's tensor."""
        return relate_layouts(self.context.user_index, path.inner, self.context.origins.get(name, name))

    def _is_connected(self, path: ConversionPath, name: str) -> bool:
        """Return whether a tensor can be the region's tensor; True if this cannot be decided."""
        origins, index = self.context.origins, self.context.user_index
        names = [find_origin(index, origins.get(each, each)) for each in (path.inner, name)]
        apart = names[0] != names[1] and all(each in self.context.user_types for each in names)
        return not apart or self._relate(path, name) is not None

    def _build_view(
        self,
        side: TensorView,
        path: ConversionPath,
        neighbour: TensorContract | None,
        inner_terms: AxisTerms | None,
    ) -> HostView:
        """Build a view; `inner_terms` is the layout at the point where the scales were found."""
        if path.scales is not None:
            axis = path.scales.axis
            if axis is not None and inner_terms is not None and axis < len(inner_terms):
                axis = inner_terms[axis].axis
            side = replace(side, scale=path.scales.scale, zero_point=path.scales.zero_point, axis=axis)
        elif neighbour is not None and path.seeks_scales:
            side = replace(neighbour.view, type=side.type, layout=side.layout)
        ours = path.scales is None or path.scales.is_own
        tensor = path.end if neighbour is None else neighbour.tensor
        wired = self._is_connected(path, tensor)
        return HostView(side, tensor, includes_cast(path.steps), ours, wired)

    def _neighbour_output(self, node: NodeProto | None, name: str) -> TensorContract | None:
        """Return the contract of a neighbouring region's output."""
        if node is None or not self._is_region(node):
            return None
        outputs = self.contracts[node.op_type].outputs
        return outputs[list(node.output).index(name)]

    def _neighbour_inputs(self, node: NodeProto, name: str) -> list[TensorContract]:
        """Return the contracts of a neighbouring region's inputs that are this tensor."""
        data = [outer_name for outer_name in node.input if not self.index.is_constant(outer_name)]
        pairs = zip(data, self.contracts[node.op_type].inputs, strict=True)
        return [contract for outer_name, contract in pairs if outer_name == name]

    def _is_region(self, node: NodeProto) -> bool:
        return node.op_type in self.contracts and node.domain.startswith("byoc.")


def _format_layout(terms: AxisTerms | None, known: AxisTerms | None) -> str | None:
    """Format a layout; None if the layout at the other end of the path is not known."""
    if known is None:
        return None
    return str(terms) if terms is not None else UNKNOWN_LAYOUT


def _map_axes(terms: AxisTerms | None, relation: AxisTerms | None) -> AxisTerms | None:
    """Express terms in other axes, given the layout of their tensor in those axes."""
    if terms is None or relation is None:
        return terms
    return AxisTerms(AxisTerm(relation[axis].axis, size) for axis, size in terms)


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
