"""The key of this machine, with which byoc signs what a user writes: bundles, and entries of the cache.

It is an Ed25519 key (RFC 8032) in `$XDG_DATA_HOME/byoc/signing_key`: one line, `ed25519` and the 32
bytes of the secret in hex. As ssh does, byoc uses it only while it is the user's alone.
"""

import hmac
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from byoc.errors import InputError
from byoc.support import find_user_folder
from byoc.trust._cryptography import DataCode, begin_poly1305, derive_public_key, sign_message
from byoc.trust._private_files import read_own_file

_CODE_CONTEXT = b"onnx-byoc code 1"  # so that the secret itself is the key of signatures alone
_DATA_CONTEXT = b"onnx-byoc data "
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

    def make_code(self, message: bytes) -> bytes:
        """Return a code of a message that only this key makes: HMAC-SHA-256 (RFC 2104), 32 bytes."""
        return hmac.digest(hmac.digest(self.secret, _CODE_CONTEXT, "sha256"), message, "sha256")

    def begin_data_code(self, once: bytes) -> DataCode:
        """Begin a code of large data that only this key makes: Poly1305 (RFC 8439), 16 bytes.

        It is by a key that is derived from `once`, which has to be another for other data unless nobody
        else sees the code. Raises MissingRuntimeError.
        """
        return begin_poly1305(self.make_code(_DATA_CONTEXT + once))

    def make_data_code(self, once: bytes, data: bytes) -> bytes:
        """Return such a code of data that is at hand. Raises MissingRuntimeError."""
        code = self.begin_data_code(once)
        code.update(data)
        return code.finalize()


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
