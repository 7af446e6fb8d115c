"""Detection of regions that are identical except for names, or for names and constants.

Networks repeat blocks, which are then compiled once. Two regions are identical when renaming tensors,
nodes and symbolic extents turns one into the other: nodes in order, attributes, types, composites,
contracts, and the constants' bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
)

from byoc.boundary.contracts import TensorContract
from byoc.codegen._region import Region
from byoc.codegen._region_digest import METADATA_KEYS, digest_constant, digest_samples
from byoc.model import Dim, TensorType

_STRUCTURES: "WeakKeyDictionary[Region, str]" = WeakKeyDictionary()


def find_identical(regions: Sequence[Region]) -> dict[str, str]:
    """Map each region that is identical to an earlier one to the name of the first such region.

    Constants are read only for regions that are otherwise identical.
    """
    first: dict[str, str] = {}
    found = {}
    for alike in _group_by_structure(regions):
        for region in alike if len(alike) > 1 else ():
            same = first.setdefault(region_fingerprint(region), region.name)
            if same != region.name:
                found[region.name] = same
    return found


def find_alike(regions: Sequence[Region]) -> dict[str, Region]:
    """Map each region that is as an earlier one but for names and constants to the first such region."""
    return {region.name: alike[0] for alike in _group_by_structure(regions) for region in alike[1:]}


def _group_by_structure(regions: Sequence[Region]) -> Iterable[Sequence[Region]]:
    briefs = [_describe_briefly(region) for region in regions]
    counts = Counter(briefs)  # most regions are told by that alone
    groups: dict[Hashable, list[Region]] = {}
    for region, brief in zip(regions, briefs, strict=True):
        key = brief if counts[brief] == 1 else _find_structure(region)
        groups.setdefault(key, []).append(region)
    return groups.values()


def _describe_briefly(region: Region) -> Hashable:
    """Return operators and types at the boundary, which regions of one structure have in common."""
    operators = tuple((node.domain, node.op_type) for node in region.model.graph.node)
    types = [contract.type for contract in (*region.inputs, *region.outputs)]
    sizes = [
        (kind.dtype, kind.shape and tuple(dim if isinstance(dim, int) else "" for dim in kind.shape))
        for kind in types
    ]
    return region.target, operators, tuple(sizes)


def _find_structure(region: Region) -> str:
    """Return a region's structure, worked out once."""
    if region not in _STRUCTURES:
        _STRUCTURES[region] = region_structure(region) + digest_samples(region).hex()
    return _STRUCTURES[region]


def region_fingerprint(region: Region) -> str:
    """Return a SHA-256 in hex that is equal for identical regions; it covers the constants' bytes."""
    digest = hashlib.sha256(_find_structure(region).encode())
    tensors = {tensor.name: tensor for tensor in region.model.graph.initializer}
    for name in _constant_names(region):
        digest.update(digest_constant(tensors[name], region))
    return digest.hexdigest()


def region_structure(region: Region) -> str:
    """Return a SHA-256 in hex that is equal for regions identical but for their constants' bytes."""
    renaming = CanonicalNames()
    model = ModelProto(ir_version=region.model.ir_version)
    model.opset_import.extend(sorted(region.model.opset_import, key=lambda entry: entry.domain))
    model.functions.extend(sorted(region.model.functions, key=lambda f: (f.domain, f.name)))
    bare = GraphProto()
    bare.input.extend(region.model.graph.input)
    bare.output.extend(region.model.graph.output)
    bare.node.extend(region.model.graph.node)
    bare.value_info.extend(region.model.graph.value_info)
    renaming.rename_graph(bare)
    model.graph.CopyFrom(bare)
    for tensor in region.model.graph.initializer:
        model.graph.initializer.add(
            name=renaming.rename_tensor(tensor.name), data_type=tensor.data_type, dims=tensor.dims
        )
    for sparse in region.model.graph.sparse_initializer:
        copied = model.graph.sparse_initializer.add()
        copied.CopyFrom(sparse)
        copied.values.name = renaming.rename_tensor(sparse.values.name)
    for values in (model.graph.initializer, model.graph.value_info):
        _sort_by_name(values)
    digest = hashlib.sha256(region.target.encode() + b"\0")
    digest.update(model.SerializeToString(deterministic=True))
    constants = {contract.name: contract for contract in region.constants}
    ordered = [constants[name] for name in _constant_names(region) if name in constants]
    for contract in (*region.inputs, *region.outputs, *ordered):
        digest.update(repr(renaming.rename_contract(contract)).encode())
    return digest.hexdigest()


def _constant_names(region: Region) -> list[str]:
    """Return the names of the constants in the order of their first readers."""
    graph = region.model.graph
    stored = {tensor.name for tensor in graph.initializer}
    read = dict.fromkeys(name for node in graph.node for name in node.input if name in stored)
    return [*read, *(tensor.name for tensor in graph.initializer if tensor.name not in read)]


def _sort_by_name(values: object) -> None:
    values.sort(key=lambda value: (len(value.name), value.name))  # type: ignore[attr-defined]


@dataclass
class CanonicalNames:
    """Canonical names, numbered by first appearance."""

    names: dict[str, str] = field(default_factory=lambda: {"": ""})
    dims: dict[str, str] = field(default_factory=lambda: {"": ""})
    user_names: dict[str, str] = field(default_factory=dict)

    def rename_tensor(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def rename_dim(self, name: str) -> str:
        return self.dims.setdefault(name, f"d{len(self.dims)}")

    def rename_graph(self, graph: GraphProto) -> None:
        """Rename everything in a graph, in place."""
        graph.name = graph.doc_string = ""
        self._rename_values(graph.input)
        for tensor in graph.initializer:  # of a body
            tensor.name = self.rename_tensor(tensor.name)
        for node in graph.node:
            self._rename_node(node)
        self._rename_values(graph.output)
        self._rename_values(graph.value_info)

    def rename_contract(self, contract: TensorContract) -> TensorContract:
        return replace(
            contract,
            tensor=self.user_names.setdefault(contract.tensor, f"u{len(self.user_names)}"),
            name=self.rename_tensor(contract.name),
            inner=self.rename_tensor(contract.inner),
            type=self._rename_type(contract.type),
            logical=self._rename_type(contract.logical),
            converts=dict(sorted(contract.converts.items())),
        )

    def _rename_type(self, kind: TensorType) -> TensorType:
        if kind.shape is None:
            return kind
        return TensorType(kind.dtype, tuple(map(self._rename_extent, kind.shape)))

    def _rename_extent(self, dim: Dim) -> Dim:
        return self.rename_dim(dim) if isinstance(dim, str) else dim

    def _rename_node(self, node: NodeProto) -> None:
        node.input[:] = [self.rename_tensor(name) for name in node.input]
        node.output[:] = [self.rename_tensor(name) for name in node.output]
        node.name = node.doc_string = ""
        kept = sorted((e.key, e.value) for e in node.metadata_props if e.key in METADATA_KEYS)
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
        ordered: list[AttributeProto] = sorted(node.attribute, key=lambda attribute: attribute.name)
        del node.attribute[:]
        node.attribute.extend(ordered)
        for attribute in node.attribute:
            attribute.doc_string = ""
            if attribute.HasField("t"):
                attribute.t.name = attribute.t.doc_string = ""
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                self.rename_graph(body)

    def _rename_values(self, values: Iterable[ValueInfoProto]) -> None:
        for value in values:
            value.name = self.rename_tensor(value.name)
            value.doc_string = ""
            del value.metadata_props[:]
            self._rename_type_dims(value.type)

    def _rename_type_dims(self, kind: TypeProto) -> None:
        for dim in kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ():
            if dim.HasField("dim_param"):
                dim.dim_param = self.rename_dim(dim.dim_param)
