"""The key of this machine, in files that nobody else can write, for signatures.

It is an Ed25519 key (RFC 8032) in `$XDG_DATA_HOME/byoc/signing_key`: one line, `ed25519` and the 32
bytes of the secret in hex. As ssh does, byoc uses it only while it is the user's alone.
"""

import errno
import os
import re
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from byoc.errors import InputError, MissingRuntimeError
from byoc.support import find_user_folder

# Ed25519 (RFC 8032) by the package `cryptography`, loaded when first used.

SECRET_BYTES = 32  # of a private key of Ed25519
SIGNATURE_BYTES = 64  # of a signature by Ed25519

# Of edwards25519: the prime of its field, its d, and the y of points of order 8, a root of
# d y^4 + 2 y^2 - 1.
_PRIME = (1 << 255) - 19
_CURVE = -121665 * pow(121666, -1, _PRIME) % _PRIME
# Of points of edwards25519 whose order is 8: no key has them.
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


def _load() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - takes time
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    return ed25519


# Reading of files that decide about trust: only while nobody else can have written, or read, them.

_MAX_BYTES = 1 << 20
_IS_POSIX = os.name == "posix"


def read_own_file(path: Path, secret: bool) -> bytes | None:
    """Return the content of a file of the user's, None where there is none.

    A `secret` file is no link, and nobody else may read it; others may be links. Raises InputError with
    a sentence for one that is not a regular file, belongs to another user, or that others may write.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    if secret:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise InputError(f"{path}: is not used: {why}") from None
    why = _describe_problem(os.fstat(handle), path, secret)
    if why:
        os.close(handle)
        raise InputError(f"{path}: is not used: {why}")
    with os.fdopen(handle, "rb") as file:
        try:
            content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES:
        raise InputError(f"{path}: is not used: it has more than {_MAX_BYTES} bytes")
    return content


def _describe_problem(status: os.stat_result, path: Path, secret: bool) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if not _IS_POSIX:
        return ""
    if status.st_uid not in ({os.geteuid()} if secret else {os.geteuid(), 0}):
        return "it belongs to another user"
    if status.st_mode & (0o077 if secret else 0o022):
        able = "read or write" if secret else "write"
        mode, right = stat.S_IMODE(status.st_mode), "600" if secret else "644"
        return f"others may {able} it (its mode is {mode:03o}): chmod {right} {path}"
    return ""


_LINE = re.compile(rb"ed25519 ([0-9a-f]{64})\n")


@dataclass(frozen=True)
class MachineKey:
    """A secret key of 32 bytes; `public` is its public key in hex."""

    secret: bytes = field(repr=False)

    @cached_property
    def public(self) -> str:
        """The public key: 64 hex digits. Raises MissingRuntimeError without `cryptography`."""
        return derive_public_key(self.secret).hex()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes. Raises MissingRuntimeError."""
        return sign_message(self.secret, message)


def get_key_file() -> Path:
    """Return the path of the key. Raises InputError without a home folder."""
    return find_user_folder("XDG_DATA_HOME") / "signing_key"


def read_key() -> MachineKey | None:
    """Return the key of this machine, None where there is none yet.

    Raises InputError with a sentence when there is one that is not used: no key, a link, somebody
    else's, or readable by others.
    """
    path = get_key_file()
    content = read_own_file(path, secret=True)
    if content is None:
        return None
    found = _LINE.fullmatch(content)
    if found is None:
        raise InputError(f"{path}: not a key of byoc")
    return MachineKey(bytes.fromhex(found[1].decode()))


def open_or_create_key() -> MachineKey:
    """Return the key of this machine, which is created where there is none.

    Raises InputError as `read_key`, and when it cannot be written.
    """
    found = read_key()
    if found is not None:
        return found
    path = get_key_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".byoc-", dir=path.parent)  # of mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"ed25519 " + secrets.token_hex(32).encode() + b"\n")
            _place_new_file(Path(name), path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    found = read_key()
    if found is None:
        raise InputError(f"{path}: was removed while it was written")
    return found


def _place_new_file(source: Path, path: Path) -> None:
    """Give a file its name, unless another process was faster, whose file then stays."""
    try:
        path.hardlink_to(source)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        source.rename(path)
