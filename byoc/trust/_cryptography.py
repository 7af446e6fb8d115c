"""Ed25519 (RFC 8032) and Poly1305 (RFC 8439) by the package `cryptography`, loaded when first used."""

from typing import Any, Protocol

from byoc.errors import MissingRuntimeError

SECRET_BYTES = 32
SIGNATURE_BYTES = 64

_MISSING = "the package cryptography is not installed, which makes and checks signatures"


def derive_public_key(secret: bytes) -> bytes:
    """Return the public key of a secret one, 32 bytes. Raises MissingRuntimeError."""
    found: bytes = _load().Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return found


def sign_message(secret: bytes, message: bytes) -> bytes:
    """Return the signature of a message, which depends on nothing else. Raises MissingRuntimeError."""
    found: bytes = _load().Ed25519PrivateKey.from_private_bytes(secret).sign(message)
    return found


def is_signature(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature of a message is by the key. Raises MissingRuntimeError."""
    kind = _load().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as in _load

    try:
        kind.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class DataCode(Protocol):
    """A code of data that comes in blocks."""

    def update(self, data: bytes | memoryview) -> None:
        """Take the next block."""
        ...

    def finalize(self) -> bytes:
        """Return the code of all blocks."""
        ...


def begin_poly1305(key: bytes) -> DataCode:
    """Begin a Poly1305 code, 16 bytes; `key`, 32 bytes, is for one sequence of blocks.

    It takes a sixth of the time of a SHA-256. Raises MissingRuntimeError.
    """
    try:
        from cryptography.hazmat.primitives import poly1305  # noqa: PLC0415 - takes time
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    begun: DataCode = poly1305.Poly1305(key)
    return begun


def _load() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - takes time
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    return ed25519
