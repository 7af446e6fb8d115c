"""The description of a region in an EPContext node of byoc's own provider: what a driver is told of it.

It is read in C (byoc/onnxrt/provider/region_description.c), so it is no JSON; docs/epcontext.md has its
bytes. All numbers are little-endian.
"""

import hashlib
import struct
from pathlib import Path

import onnx
from onnx import TensorProto

from byoc.boundary.contracts import TensorContract
from byoc.bundle._manifest import RegionEntry, describe_file, entry_to_contract
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits, walk_tensors, write_raw_bytes

MAGIC = b"BYOCREGN"
VERSION = 1  # of the layout in `byoc_driver.h`; drivers refuse another
_HEADER = struct.Struct("<8s6I")  # magic, version, bytes in all, files, texts, inputs, outputs


MODEL_TEXT = "byoc.model"
"""The text by which a driver that is made of regions' models knows the model of a region."""


def hash_region_model(folder: Path, entry: RegionEntry) -> str:
    """Return the SHA-256, in hex, of a region's model in a bundle's folder and of its constants."""
    path = folder / entry.model
    content = path.read_bytes()
    digest = hashlib.sha256(content)
    for tensor in walk_tensors(onnx.load_from_string(content)):
        if tensor.data_location == TensorProto.EXTERNAL:
            write_raw_bytes(tensor, path.parent, digest.update)
    return digest.hexdigest()


def describe_region(folder: Path, entry: RegionEntry, of_model: bool = False) -> bytes:
    """Return the description of a region whose artifact is in a bundle's folder.

    With `of_model` it has `MODEL_TEXT`, by which a driver that is made of regions' models finds the
    region. Raises InputError for a tensor that does not cross to a driver: of extents that are not all
    known, of text, or of elements of less than a byte.
    """
    inputs = [_encode_tensor(entry.name, each) for each in map(entry_to_contract, entry.inputs)]
    outputs = [_encode_tensor(entry.name, each) for each in map(entry_to_contract, entry.outputs)]
    files = [_encode_file(folder, name, path) for name, path in sorted(entry.artifact_files.items())]
    made = {MODEL_TEXT: hash_region_model(folder, entry)} if of_model else {}
    metadata = sorted({**entry.artifact_metadata, **made}.items())
    texts = [_encode_text(key) + _encode_text(value) for key, value in metadata]
    names = _encode_text(entry.codegen) + _encode_text(entry.name)
    content = b"".join([names, *files, *texts, *inputs, *outputs])
    counts = (len(files), len(texts), len(inputs), len(outputs))
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size + len(content), *counts) + content


def _encode_file(folder: Path, name: str, path: str) -> bytes:
    found = describe_file(folder / path)
    content = struct.pack("<Q", found.bytes) + bytes.fromhex(found.sha256)
    return _encode_text(name) + _encode_text(path) + content


def _encode_tensor(region: str, contract: TensorContract) -> bytes:
    tensor = contract.type
    what = f"region {region}: '{contract.name}'"
    if tensor.shape is None or tensor.elements is None:
        raise InputError(f"{what}: its extents are not all known, which a driver needs")
    if tensor.dtype == "string" or count_bits(tensor.dtype) % 8:
        raise InputError(f"{what}: {tensor.dtype} does not cross to a driver")
    shape = [extent for extent in tensor.shape if isinstance(extent, int)]
    numbers = struct.pack(f"<2I{len(shape)}q", DTYPE_NUMBERS[tensor.dtype], len(shape), *shape)
    return _encode_text(contract.name) + numbers


def _encode_text(text: str) -> bytes:
    """Return a text, its length before it and a zero behind it. Raises InputError for a zero inside."""
    content = text.encode()
    if b"\0" in content:
        raise InputError(f"a text of an artifact has a zero byte: {text[:40]!r}")
    return struct.pack("<I", len(content)) + content + b"\0"
