"""The identity of a region as a hash, and regions identical but for names or constants.

Networks repeat blocks, which are then compiled once. Two regions are identical when renaming tensors,
nodes and symbolic extents turns one into the other: nodes in order, attributes, types, composites,
contracts, and the constants' bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.contracts import TensorContract
from byoc.codegen._region import Region
from byoc.model import (
    COMPOSITE_KEY,
    PURPOSE_KEY,
    Dim,
    ExternalData,
    TensorType,
    find_external_data,
    list_bodies,
    walk_graphs,
    walk_tensors,
    write_raw_bytes,
)

# The identity of a region as one hash, names included: of the same hash, they compile to the same.
#
# Of the model counts everything but its name, documentation, provenance, and where in which file a
# constant lies. Of the contracts counts everything.

METADATA_KEYS = (PURPOSE_KEY, COMPOSITE_KEY)
"""The metadata of a node that a codegen may read; the rest is provenance."""

# The digests of a region's constants, by name.
_CONSTANTS: "WeakKeyDictionary[Region, dict[str, bytes]]" = WeakKeyDictionary()
_REGIONS: "WeakKeyDictionary[Region, bytes]" = WeakKeyDictionary()


_Location = tuple[ExternalData, int, int]
"""A file, an offset and a length, and when the file was written and changed."""


@dataclass(frozen=True)
class _RegionFolder:
    """The data that regions of one folder share: files of constants by name.

    `digests` are those of constants that were read: regions of several variants have the same.
    """

    path: Path
    files: dict[str, Path] = field(default_factory=dict)
    digests: dict[_Location, bytes] = field(default_factory=dict)

    def find_location(self, tensor: TensorProto) -> _Location | None:
        """Return the location of a constant in its file, None for one in the region's model."""
        external = find_external_data(tensor, self.path, self.files)
        if external is None:
            return None
        written = external.path.stat()
        return external, written.st_mtime_ns, written.st_ctime_ns


# The folder that was read last; a bundle has all its regions in one.
_FOLDERS: list[_RegionFolder] = []


def digest_regions(regions: Sequence[Region]) -> str:
    """Return a SHA-256 in hex of regions that are compiled in one call, without their own names."""
    digest = hashlib.sha256()
    for region in regions:
        if region not in _REGIONS:
            _REGIONS[region] = _digest_region(region)
        digest.update(_REGIONS[region])
    return digest.hexdigest()


def digest_places(regions: Sequence[Region]) -> str:
    """Return a SHA-256 in hex of where the constants of regions lie: files, offsets, lengths."""
    places = [
        [(name, data.path.name, data.offset, data.length) for name, data in found.items()]
        for found in (region.external_data for region in regions)
    ]
    return hashlib.sha256(repr(places).encode(errors="replace")).hexdigest()


def digest_constant(tensor: TensorProto, region: Region) -> bytes:
    """Return a digest of the bytes of a constant in a region's main graph."""
    known = _CONSTANTS.setdefault(region, {})
    if tensor.name not in known:
        known[tensor.name] = _digest_tensor(tensor, region)
    return known[tensor.name]


def _digest_region(region: Region) -> bytes:
    model = ModelProto(ir_version=region.model.ir_version)
    model.opset_import.extend(region.model.opset_import)
    model.functions.extend(region.model.functions)
    model.graph.CopyFrom(region.model.graph)
    model.graph.name = ""
    inside = [tensor for tensor in walk_tensors(model) if tensor.data_location == TensorProto.DEFAULT]
    for tensor in inside:
        tensor.ClearField("external_data")  # which says nothing of it, but could pass for a hash
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            _replace_data(tensor, digest_constant(tensor, region))
    for tensor in walk_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _replace_data(tensor, _digest_tensor(tensor, region))
        tensor.doc_string = ""
    bodies = [body for f in model.functions for node in f.node for body in list_bodies(node)]
    for graph in (inner for outer in (model.graph, *bodies) for inner in walk_graphs(outer)):
        _drop_provenance(graph)
    for function in model.functions:
        _drop_provenance(function)
    digest = hashlib.sha256(region.target.encode() + b"\0")
    digest.update(model.SerializeToString(deterministic=True))
    for side in (region.inputs, region.outputs, region.constants):
        digest.update(f"{list(map(_sort_conversions, side))!r}\n".encode(errors="replace"))
    digest.update(repr(region.composites).encode(errors="replace"))
    digest.update(digest_samples(region))
    return digest.digest()


def digest_samples(region: Region) -> bytes:
    """Return a digest of the samples of a region, empty without any."""
    digest = hashlib.sha256()
    for sample in region.samples():
        for value in sample.values():
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.digest() if region.samples_file is not None else b""


def _replace_data(tensor: TensorProto, digest: bytes) -> None:
    """Put the hash of its data in the place of where in which file a tensor lies."""
    del tensor.external_data[:]
    tensor.external_data.add(key="sha256", value=digest.hex())
    tensor.data_location = TensorProto.DEFAULT


def _sort_conversions(contract: TensorContract) -> TensorContract:
    return replace(contract, converts=dict(sorted(contract.converts.items())))


def _drop_provenance(owner: GraphProto | FunctionProto) -> None:
    values = [*owner.value_info]
    if isinstance(owner, GraphProto):
        values += [*owner.input, *owner.output]
    owner.doc_string = ""
    _keep_metadata(owner)
    for value in values:
        _keep_metadata(value)
        value.doc_string = ""
    for node in owner.node:
        _keep_metadata(node)
        node.doc_string = ""
        for attribute in node.attribute:
            attribute.doc_string = ""


def _keep_metadata(owner: GraphProto | FunctionProto | NodeProto | ValueInfoProto) -> None:
    kept = sorted(
        (entry.key, entry.value) for entry in owner.metadata_props if entry.key in METADATA_KEYS
    )
    del owner.metadata_props[:]
    for key, value in kept:
        owner.metadata_props.add(key=key, value=value)


def _digest_tensor(tensor: TensorProto, region: Region) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        return hashlib.sha256(b"".join(b"%d:%b" % (len(s), s) for s in tensor.string_data)).digest()
    folder = _find_folder(region)
    location = folder.find_location(tensor)
    known = None if location is None else folder.digests.get(location)
    if known is not None:
        return known
    sha256 = hashlib.sha256()
    write_raw_bytes(tensor, folder.path, sha256.update, folder.files)
    digest = sha256.digest()
    if location is not None:
        folder.digests[location] = digest
    return digest


def _find_folder(region: Region) -> _RegionFolder:
    path = region.path.parent
    found = next((each for each in _FOLDERS if each.path == path), None)
    if found is None:
        found = _RegionFolder(path)
        _FOLDERS[:] = [found]
    return found


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
