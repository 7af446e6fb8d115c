"""The signature of a bundle, `signature.json`: a key, and what it signed of the manifest.

Signed are the bytes `onnx-byoc bundle signature 1`, a line end, and the SHA-256 of `manifest.json` as it
stands in the bundle. The manifest has the SHA-256 of every other file, so all of them are covered.
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
_CONTEXT = b"onnx-byoc bundle signature 1\n"
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


def make_signature(digest: bytes, key: MachineKey) -> bytes:
    """Return the content of `signature.json` for a manifest's SHA-256. Raises MissingRuntimeError."""
    signature = key.sign(_CONTEXT + digest).hex()
    return SignatureEntry(format=1, algorithm="ed25519", key=key.public, signature=signature).to_bytes()


def check_signature(content: bytes, digest: bytes) -> str:
    """Return the public key that signed the manifest with a SHA-256.

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
    if not is_signature(bytes.fromhex(entry.key), signature, _CONTEXT + digest):
        raise SignatureError(
            "its signature is of another manifest: this one was changed after it was signed"
        )
    return entry.key
