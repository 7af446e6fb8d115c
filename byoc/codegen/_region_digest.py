"""The identity of a region as one hash, names included: of the same hash, they compile to the same.

Of the model counts everything but its name, documentation, provenance, and where in which file a
constant lies. Of the contracts counts everything. Digests of constants, which are large, are codes by
the key of this machine: other machines, and a machine whose key changed, have others.
"""

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from byoc.boundary.contracts import TensorContract
from byoc.codegen._region import Region
from byoc.errors import ByocError, MissingRuntimeError
from byoc.model import (
    COMPOSITE_KEY,
    PURPOSE_KEY,
    ExternalData,
    find_external_data,
    list_bodies,
    walk_graphs,
    walk_tensors,
    write_raw_bytes,
)
from byoc.trust import SECRET_BYTES, DataCode, MachineKey, read_key

METADATA_KEYS = (PURPOSE_KEY, COMPOSITE_KEY)
"""The metadata of a node that a codegen may read; the rest is provenance."""

# The digests of a region's constants, by name.
_CONSTANTS: "WeakKeyDictionary[Region, dict[str, bytes]]" = WeakKeyDictionary()
_REGIONS: "WeakKeyDictionary[Region, bytes]" = WeakKeyDictionary()
_OWN_KEY = MachineKey(secrets.token_bytes(SECRET_BYTES))


_Location = tuple[ExternalData, int, int]
"""A file, an offset and a length, and when the file was written and changed."""


@dataclass(frozen=True)
class _RegionFolder:
    """The data that regions of one folder share: this machine's key, files of constants by name.

    `digests` are those of constants that were read: regions of several variants have the same.
    """

    path: Path
    key: MachineKey
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
    try:  # one `once` for all, since the codes are hashed before anybody sees them
        code: DataCode = folder.key.begin_data_code(b"constant")
    except MissingRuntimeError:
        code = _Sha256Code()
    write_raw_bytes(tensor, folder.path, code.update, folder.files)
    digest = code.finalize()
    if location is not None:
        folder.digests[location] = digest
    return digest


def _find_folder(region: Region) -> _RegionFolder:
    """Return the folder of a region; where the machine has no key, its key is one of this process."""
    path = region.path.parent
    found = next((each for each in _FOLDERS if each.path == path), None)
    if found is None:
        key = None
        with suppress(ByocError):
            key = read_key()
        found = _RegionFolder(path, key or _OWN_KEY)
        _FOLDERS[:] = [found]
    return found


class _Sha256Code:
    """A SHA-256 as a DataCode, for where there is no `cryptography`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)

    def finalize(self) -> bytes:
        return self._hash.digest()
