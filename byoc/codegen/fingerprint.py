"""Detection of regions that are identical except for names, which are compiled once.

Networks repeat blocks. Two regions are identical when renaming tensors, nodes and symbolic extents turns
one into the other: nodes in order, attributes, types, composites, contracts, and the constants' bytes.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from byoc.boundary.contract import Contract
from byoc.codegen.api import Region
from byoc.graph.composites import METADATA
from byoc.graph.marks import BOUNDARY
from byoc.graph.tensors import write_raw
from byoc.graph.types import Dim, TensorType

_KEPT = (BOUNDARY, METADATA)  # the relevant metadata of a node; the rest is provenance


def identical(regions: Sequence[Region]) -> dict[str, str]:
    """Map each region that is identical to an earlier one to the name of the first such region.

    Constants are read only for regions that are otherwise identical.
    """
    first: dict[str, str] = {}
    found = {}
    structures: dict[str, list[Region]] = {}
    for region in regions:
        structures.setdefault(structure(region), []).append(region)
    for alike in structures.values():
        for region in alike if len(alike) > 1 else ():
            same = first.setdefault(fingerprint(region), region.name)
            if same != region.name:
                found[region.name] = same
    return found


def fingerprint(region: Region) -> str:
    """Return a SHA-256 in hex that is equal for identical regions; it covers the constants' bytes."""
    digest = hashlib.sha256(structure(region).encode())
    tensors = {tensor.name: tensor for tensor in region.model.graph.initializer}
    for name in _constants(region):
        digest.update(_content(tensors[name], region))
    return digest.hexdigest()


def structure(region: Region) -> str:
    """Return a SHA-256 in hex that is equal for regions identical but for their constants' bytes."""
    renaming = _Renaming()
    model = ModelProto(ir_version=region.model.ir_version)
    model.opset_import.extend(sorted(region.model.opset_import, key=lambda entry: entry.domain))
    model.functions.extend(sorted(region.model.functions, key=lambda f: (f.domain, f.name)))
    bare = GraphProto()
    bare.input.extend(region.model.graph.input)
    bare.output.extend(region.model.graph.output)
    bare.node.extend(region.model.graph.node)
    bare.value_info.extend(region.model.graph.value_info)
    renaming.graph(bare)
    model.graph.CopyFrom(bare)
    for tensor in region.model.graph.initializer:
        model.graph.initializer.add(
            name=renaming.name(tensor.name), data_type=tensor.data_type, dims=tensor.dims
        )
    for sparse in region.model.graph.sparse_initializer:
        copied = model.graph.sparse_initializer.add()
        copied.CopyFrom(sparse)
        copied.values.name = renaming.name(sparse.values.name)
    for values in (model.graph.initializer, model.graph.value_info):
        _sort(values)
    digest = hashlib.sha256(region.target.encode() + b"\0")
    digest.update(model.SerializeToString(deterministic=True))
    constants = {contract.name: contract for contract in region.constants}
    ordered = [constants[name] for name in _constants(region) if name in constants]
    for contract in (*region.inputs, *region.outputs, *ordered):
        digest.update(repr(renaming.contract(contract)).encode())
    return digest.hexdigest()


def _constants(region: Region) -> list[str]:
    """Return the names of the constants in the order of their first readers."""
    graph = region.model.graph
    stored = {tensor.name for tensor in graph.initializer}
    read = dict.fromkeys(name for node in graph.node for name in node.input if name in stored)
    return [*read, *(tensor.name for tensor in graph.initializer if tensor.name not in read)]


def _content(tensor: TensorProto, region: Region) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        return hashlib.sha256(b"".join(b"%d:%b" % (len(s), s) for s in tensor.string_data)).digest()
    sink = _Digest()
    write_raw(tensor, region.path.parent, sink)  # type: ignore[arg-type]
    return sink.digest.digest()


@dataclass
class _Digest:
    """A file-like sink that hashes tensors block by block, so that none must fit in memory."""

    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def write(self, block: bytes) -> int:
        self.digest.update(block)
        return len(block)


def _sort(values: object) -> None:
    values.sort(key=lambda value: (len(value.name), value.name))  # type: ignore[attr-defined]


@dataclass
class _Renaming:
    """Canonical names, numbered by first appearance."""

    names: dict[str, str] = field(default_factory=lambda: {"": ""})
    dims: dict[str, str] = field(default_factory=lambda: {"": ""})
    users: dict[str, str] = field(default_factory=dict)

    def name(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def dim(self, name: str) -> str:
        return self.dims.setdefault(name, f"d{len(self.dims)}")

    def graph(self, graph: GraphProto) -> None:
        """Rename everything in a graph, in place."""
        graph.name = graph.doc_string = ""
        self._values(graph.input)
        for tensor in graph.initializer:  # of a body
            tensor.name = self.name(tensor.name)
        for node in graph.node:
            self._node(node)
        self._values(graph.output)
        self._values(graph.value_info)

    def contract(self, contract: Contract) -> Contract:
        return replace(
            contract,
            tensor=self.users.setdefault(contract.tensor, f"u{len(self.users)}"),
            name=self.name(contract.name),
            inner=self.name(contract.inner),
            type=self._type(contract.type),
            logical=self._type(contract.logical),
            converts=dict(sorted(contract.converts.items())),
        )

    def _type(self, kind: TensorType) -> TensorType:
        if kind.shape is None:
            return kind
        return TensorType(kind.dtype, tuple(map(self._extent, kind.shape)))

    def _extent(self, dim: Dim) -> Dim:
        return self.dim(dim) if isinstance(dim, str) else dim

    def _node(self, node: NodeProto) -> None:
        node.input[:] = [self.name(name) for name in node.input]
        node.output[:] = [self.name(name) for name in node.output]
        node.name = node.doc_string = ""
        kept = sorted((e.key, e.value) for e in node.metadata_props if e.key in _KEPT)
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
                self.graph(body)

    def _values(self, values: Iterable[ValueInfoProto]) -> None:
        for value in values:
            value.name = self.name(value.name)
            value.doc_string = ""
            del value.metadata_props[:]
            self._dims(value.type)

    def _dims(self, kind: TypeProto) -> None:
        for dim in kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ():
            if dim.HasField("dim_param"):
                dim.dim_param = self.dim(dim.dim_param)
