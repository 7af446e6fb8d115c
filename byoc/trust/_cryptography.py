"""Ed25519 (RFC 8032) and Poly1305 (RFC 8439) by the package `cryptography`, loaded when first used."""

from typing import Any, Protocol

from byoc.errors import MissingRuntimeError

SECRET_BYTES = 32
SIGNATURE_BYTES = 64

# Of edwards25519: the prime of its field, its d, and the y of points of order 8, a root of
# d y^4 + 2 y^2 - 1.
_PRIME = (1 << 255) - 19
_CURVE = -121665 * pow(121666, -1, _PRIME) % _PRIME
_Y_OF_ORDER_8 = 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826

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
    """Return whether a signature of a message is by the key. Raises MissingRuntimeError.

    None is by a key of small order: of any message a quarter or more of such signatures, made without
    any secret, fulfil the equation of RFC 8032.
    """
    if _has_small_order(public):
        return False
    kind = _load().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - as in _load

    try:
        kind.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def can_sign(public: bytes) -> bool:
    """Return whether there may be signatures by a key, 32 bytes: it is a point, not of small order.

    It is a point where (y^2 - 1) / (d y^2 + 1), the square of its x, is a square (RFC 8032, 5.1.3).
    """
    y = _read_y(public)
    square = (y * y - 1) * pow(_CURVE * y * y + 1, -1, _PRIME)
    return pow(square, (_PRIME - 1) // 2, _PRIME) == 1 and not _has_small_order(public)


def _read_y(public: bytes) -> int:
    return int.from_bytes(public, "little") % (1 << 255) % _PRIME


def _has_small_order(public: bytes) -> bool:
    """Return whether 8 times the point of a key is the neutral element; so it is for five y."""
    y = _read_y(public)
    return y in {0, 1, _PRIME - 1, _Y_OF_ORDER_8, _PRIME - _Y_OF_ORDER_8}


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
