"""The user's trust: the key of this machine, the keys of others, interpreters of codegens.

Signed are the bytes `onnx-byoc bundle signature 1`, a line end, and the SHA-256 of `manifest.json` as it
stands in the bundle. The manifest has the SHA-256 of every other file, so all of them are covered. Of a
program in C it is `onnx-byoc program signature 1` and `program.json`, which has the SHA-256 of its code.
"""

import errno
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError, MissingRuntimeError, shorten_text
from byoc.support import CODEGENS, StrictModel, find_user_folder, list_installed, read_yaml, write_text

# The key of this machine, in files that nobody else can write, for signatures.
#
# It is an Ed25519 key (RFC 8032) in `$XDG_DATA_HOME/byoc/signing_key`: one line, `ed25519` and the
# 32 bytes of the secret in hex. As ssh does, byoc uses it only while it is the user's alone.

# Ed25519 (RFC 8032) by the package `cryptography`, loaded when first used.

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


# The settings of a user: `$XDG_CONFIG_HOME/byoc/settings.yaml`.
#
# They say which programs byoc starts for the user, so they are read from this file alone: a rule
# file, a model or a bundle names a codegen, and never an interpreter.

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _make_absolute(text: str) -> str:
    """Return a path with the home folder written out. Raises ValueError for one that is not absolute."""
    path = os.path.expanduser(text)  # noqa: PTH111 - a link stays what it is: venvs depend on it
    if not os.path.isabs(path):  # noqa: PTH117
        raise ValueError(f"'{text}' is not an absolute path")
    return path


class DriverSettings(StrictModel):
    """A driver in C: the absolute paths of its sources, and the libraries that it is linked with."""

    sources: list[str] = Field(min_length=1)
    libraries: list[str] = Field(default_factory=list)
    abi: Literal[1, 2] = 1

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, paths: list[str]) -> list[str]:
        return [_make_absolute(path) for path in paths]


class InterpreterSettings(StrictModel):
    """A codegen that runs in another Python.

    `python` is the absolute path of the interpreter, `module` the codegen's class in it, as
    `package.module:Class`, and `environment` has further environment variables of its process.
    `driver` is what its `driver()` would give, so that who needs it alone starts no interpreter.
    """

    python: str
    module: str
    environment: dict[str, str] = Field(default_factory=dict)
    driver: DriverSettings | None = None

    @field_validator("python")
    @classmethod
    def _check_python(cls, text: str) -> str:
        return _make_absolute(text)

    @field_validator("module")
    @classmethod
    def _check_module(cls, text: str) -> str:
        if not _CLASS.fullmatch(text):
            raise ValueError(f"'{text}' does not name a class, as package.module:Class does")
        return text

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"'{name}' cannot be an environment variable")
        return variables


class Settings(StrictModel):
    """A user's settings: the codegens that run in another Python, by name."""

    codegens: dict[str, InterpreterSettings] = Field(default_factory=dict)


def get_settings_file() -> Path:
    """Return the path of the file; it need not exist. Raises InputError without a home folder."""
    return find_user_folder("XDG_CONFIG_HOME") / "settings.yaml"


def read_settings() -> Settings:
    """Return the user's settings, empty ones where there is no file.

    Raises InputError for mistakes in the file, and for a file that others may write.
    """
    path = get_settings_file()
    content = read_own_file(path, secret=False)
    return read_yaml(path, Settings) if content else Settings()


def find_interpreter(codegen: str) -> InterpreterSettings | None:
    """Return the settings of a codegen that runs in another Python, None for one that does not.

    Raises InputError as `read_settings` does, and where a codegen of this name is installed as well.
    """
    found = read_settings().codegens.get(codegen)
    if found is not None and codegen in list_installed(CODEGENS):
        raise InputError(
            f"{get_settings_file()}: codegens.{codegen}: a codegen of this name is installed, too: "
            "give this one another name, or take the entry point out of that package and install it "
            "again"
        )
    return found


def list_codegens() -> list[str]:
    """Return the names of the codegens that are there, installed or in the settings, sorted."""
    return sorted({*list_installed(CODEGENS), *read_settings().codegens})


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


# The public keys that a user trusts: `$XDG_CONFIG_HOME/byoc/trusted_keys`, one on a line.
#
# A line is the key in hex, and behind a space a name for people. Lines that begin with `#` are
# comments.

_MAX_NAME_CHARACTERS = 80  # of a maker's name


def get_trusted_keys_file() -> Path:
    """Return the path of the file; it need not exist. Raises InputError without a home folder."""
    return find_user_folder("XDG_CONFIG_HOME") / "trusted_keys"


def read_trusted_keys() -> dict[str, str]:
    """Return the names of the trusted keys, by key.

    Raises InputError for a file that others may write, and for a line without a key.
    """
    path = get_trusted_keys_file()
    content = read_own_file(path, secret=False) or b""
    found = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        key, _, name = line.strip().partition(" ")
        if key.startswith("#") or not key:
            continue
        if not is_key(key):
            raise InputError(f"{path}: line {number}: not a key of 64 hex digits")
        found[key] = shorten_text(name, _MAX_NAME_CHARACTERS)
    return found


def add_trusted_key(key: str, name: str = "") -> None:
    """Trust a key from now on, under a name.

    Raises InputError for a key that can sign nothing, and when the file cannot be written.
    """
    if not can_sign(bytes.fromhex(key)):
        raise InputError(f"{key}: not a key that can sign anything: no maker has it")
    _write_keys({**read_trusted_keys(), key: shorten_text(name, _MAX_NAME_CHARACTERS)})


def remove_trusted_key(key: str) -> bool:
    """Trust a key no longer; return whether it was trusted. Raises as `add_trusted_key`."""
    keys = read_trusted_keys()
    if key not in keys:
        return False
    del keys[key]
    _write_keys(keys)
    return True


def _write_keys(keys: Mapping[str, str]) -> None:
    path = get_trusted_keys_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    write_text(path, "".join(f"{key} {name}".rstrip() + "\n" for key, name in keys.items()))
    if path.stat().st_mode & 0o022:  # the user's umask lets others write, who could then add keys
        path.chmod(0o644)


# Whether the maker of a bundle is trusted, and why.

# SHA-256 of the manifests and programs that this process wrote: where nothing can be signed, it trusts
# its own.
_WRITTEN: set[bytes] = set()


@dataclass(frozen=True)
class Trust:
    """Whether a bundle's maker is trusted; `reason` is the end of a sentence about the bundle.

    `key` is the public key whose signature fits, in hex, and empty where there is none.
    """

    trusted: bool
    reason: str
    key: str = ""


def remember_written(digest: bytes) -> None:
    """Trust the manifest or program with a SHA-256 until this process ends, which wrote it."""
    _WRITTEN.add(digest)


def judge_signature(signature: bytes | None, digest: bytes, kind: SignedKind = "bundle") -> Trust:
    """Judge the content of a `signature.json`, None without one, for the SHA-256 of what it signs."""
    key, reason = "", "it is not signed"
    if signature is not None:
        try:
            key = check_signature(signature, digest, kind)
        except (SignatureError, MissingRuntimeError) as error:
            reason = str(error)
    if not key:
        return Trust(True, "this process wrote it") if digest in _WRITTEN else Trust(False, reason)
    problems = []
    try:
        own = read_key()
        if own is not None and own.public == key:
            return Trust(True, "it was made here", key)
    except InputError as error:
        problems.append(str(error))
    try:
        known = read_trusted_keys()
        if key in known:
            name = f" ({known[key]})" if known[key] else ""
            return Trust(True, f"it is signed by a key that you trust, {key}{name}", key)
    except InputError as error:
        problems.append(str(error))
    if digest in _WRITTEN:
        return Trust(True, "this process wrote it", key)
    reason = f"it is signed by a key that you do not trust, {key}"
    return Trust(False, "; ".join([reason, *problems]), key)
