"""An entry of a cache as one file: what it holds, and a code that only the cache's owner can make.

The file is a line that names the format, the length of a header (8 bytes, little endian), the header,
its code, and the blobs. The header is JSON: the entry's key, its facts, a number that no other entry
has, the size and code of each blob. The header's code is an HMAC-SHA-256 (RFC 2104) by the key of this
machine; those of blobs, which are large, are Poly1305 (RFC 8439), each by a key of its own that is
derived from it and the number. So what anybody else wrote, a byte that changed, and an entry under the
name of another are all recognized.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from byoc.errors import InputError
from byoc.trust import MachineKey

_FORMAT = b"onnx-byoc cache entry 2\n"
_LENGTH_BYTES = 8
_CODE_BYTES = 32
_MAX_HEADER_BYTES = 1 << 28


class DamagedEntryError(InputError):
    """A file is not an entry, not of this user, or was changed after it was written."""


@dataclass(frozen=True, eq=False)
class CacheEntry:
    """A result: facts, which are JSON, and blobs."""

    facts: Mapping[str, Any]
    blobs: Sequence[bytes] = ()


def write_entry(path: Path, key: str, entry: CacheEntry, owner: MachineKey) -> int:
    """Write an entry to a new file; return the file's bytes.

    Raises OSError, and MissingRuntimeError without the package `cryptography`.
    """
    once = secrets.token_hex(_CODE_BYTES)
    blobs = [
        [len(blob), _make_blob_code(blob, once, number, owner)]
        for number, blob in enumerate(entry.blobs)
    ]
    described = {"key": key, "facts": dict(entry.facts), "once": once, "blobs": blobs}
    header = json.dumps(described, sort_keys=True).encode()
    start = _FORMAT + len(header).to_bytes(_LENGTH_BYTES, "little") + header
    with path.open("xb") as file:
        for part in (start, _make_code(header, owner), *entry.blobs):
            file.write(part)
        return file.tell()


def read_entry(file: IO[bytes], key: str, owner: MachineKey) -> CacheEntry:
    """Read an entry from an open file.

    Raises DamagedEntryError unless `owner` wrote it under `key`, MissingRuntimeError as `write_entry`.
    """
    header = _read_header(file, owner)
    if header["key"] != key:
        raise DamagedEntryError("it is the entry of another key")
    blobs = []
    for number, (size, code) in enumerate(header["blobs"]):
        blob = file.read(size)
        if not hmac.compare_digest(_make_blob_code(blob, header["once"], number, owner), code):
            raise DamagedEntryError("its content is not as it was written")
        blobs.append(blob)
    if file.read(1):
        raise DamagedEntryError("something stands behind its end")
    return CacheEntry(header["facts"], tuple(blobs))


def read_facts(file: IO[bytes], owner: MachineKey) -> Mapping[str, Any]:
    """Read the facts of an entry without its blobs. Raises DamagedEntryError."""
    facts: Mapping[str, Any] = _read_header(file, owner)["facts"]
    return facts


def _read_header(file: IO[bytes], owner: MachineKey) -> Mapping[str, Any]:
    if file.read(len(_FORMAT)) != _FORMAT:
        raise DamagedEntryError("it is not an entry")
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    if not hmac.compare_digest(file.read(_CODE_BYTES), _make_code(header, owner)):
        raise DamagedEntryError("it was not written with the key of this machine")
    found: Mapping[str, Any] = json.loads(header)  # of this user: as `write_entry` made it
    return found


def _make_blob_code(blob: bytes, once: str, number: int, owner: MachineKey) -> str:
    return owner.make_data_code(f"{once} {number} {len(blob)}".encode(), blob).hex()


def _make_code(header: bytes, owner: MachineKey) -> bytes:
    return owner.make_code(_FORMAT + hashlib.sha256(header).digest())
