"""The signature of a bundle or a program, `signature.json`: a key, and what it signed.

Signed are the bytes `onnx-byoc bundle signature 1`, a line end, and the SHA-256 of `manifest.json` as it
stands in the bundle. The manifest has the SHA-256 of every other file, so all of them are covered. Of a
program in C it is `onnx-byoc program signature 1` and `program.json`, which has the SHA-256 of its code.
"""

import json
import re
from typing import Literal

from pydantic import Field, ValidationError

from byoc.errors import InputError
from byoc.support import StrictModel
from byoc.trust._cryptography import is_signature
from byoc.trust._machine_key import MachineKey

SIGNATURE_FILE = "signature.json"
MAX_SIGNATURE_BYTES = 4096
"""The size limit of a signature's file."""
SignedKind = Literal["bundle", "program"]
_KEY = re.compile(r"[0-9a-f]{64}")


class SignatureError(InputError):
    """A signature's file is no signature, or not one of this manifest."""


class SignatureEntry(StrictModel):
    """The content of `signature.json`; key and signature are hex."""

    format: Literal[1]
    algorithm: Literal["ed25519"]
    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")

    def to_bytes(self) -> bytes:
        """Return the file's only valid content."""
        text = json.dumps(self.model_dump(), indent=1, sort_keys=True)
        return f"{text}\n".encode()


def is_key(text: str) -> bool:
    """Return whether a text is a public key: 64 hex digits, in small letters."""
    return bool(_KEY.fullmatch(text))


def make_signature(digest: bytes, key: MachineKey, kind: SignedKind = "bundle") -> bytes:
    """Return the content of `signature.json` for a SHA-256: of a manifest, or of a `program.json`.

    Raises MissingRuntimeError.
    """
    signature = key.sign(_make_message(digest, kind)).hex()
    return SignatureEntry(format=1, algorithm="ed25519", key=key.public, signature=signature).to_bytes()


def _make_message(digest: bytes, kind: SignedKind) -> bytes:
    return f"onnx-byoc {kind} signature 1\n".encode() + digest


def check_signature(content: bytes, digest: bytes, kind: SignedKind = "bundle") -> str:
    """Return the public key that signed the manifest, or the `program.json`, with a SHA-256.

    Raises SignatureError with the end of a sentence about the bundle, and MissingRuntimeError.
    """
    try:
        if len(content) > MAX_SIGNATURE_BYTES:
            raise ValueError("too large")
        entry = SignatureEntry.model_validate_json(content, strict=True)
        if entry.to_bytes() != content:
            raise ValueError("not as byoc writes it")
    except (ValidationError, ValueError):
        raise SignatureError(f"its {SIGNATURE_FILE} is not a signature") from None
    signature = bytes.fromhex(entry.signature)
    if not is_signature(bytes.fromhex(entry.key), signature, _make_message(digest, kind)):
        what = "manifest" if kind == "bundle" else kind
        raise SignatureError(
            f"its signature is of another {what}: this one was changed after it was signed"
        )
    return entry.key
