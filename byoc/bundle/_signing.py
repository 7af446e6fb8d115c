"""Signatures on disk: `signature.json` beside a manifest or a `program.json`, which does not list it."""

import stat
from pathlib import Path

from byoc.errors import InputError, MissingRuntimeError
from byoc.trust import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE_FILE,
    SignedKind,
    make_signature,
    open_or_create_key,
    remember_written,
)


def sign_folder(folder: Path, digest: bytes, sign: bool = True, kind: SignedKind = "bundle") -> str:
    """Write the signature of a complete folder by the key of this machine, unless told not to.

    `digest` is the SHA-256 of its manifest or `program.json`. Returns why it is not signed, as a
    sentence; empty if it is, or was not to be.
    """
    remember_written(digest)
    if not sign:
        return ""
    try:
        content = make_signature(digest, open_or_create_key(), kind)
    except (InputError, MissingRuntimeError) as error:
        return f"the {kind} is not signed: {error}"
    (folder / SIGNATURE_FILE).write_bytes(content)
    return ""


def read_signature(folder: Path) -> bytes | None:
    """Return the content of a folder's signature, cut where it is too long; None where there is none."""
    path = folder / SIGNATURE_FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would not end
            return b""
        with path.open("rb") as file:
            return file.read(MAX_SIGNATURE_BYTES + 1)
    except OSError:
        return None
