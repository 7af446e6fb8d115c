"""Ed25519 (RFC 8032) by the package `cryptography`, which is loaded when it is first used."""

from typing import Any

from byoc.errors import MissingRuntimeError

SECRET_BYTES = 32
SIGNATURE_BYTES = 64


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


def _load() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - takes time
    except ImportError:
        raise MissingRuntimeError(
            "the package cryptography is not installed, which makes and checks signatures"
        ) from None
    return ed25519
