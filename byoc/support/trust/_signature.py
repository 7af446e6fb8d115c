"""Signatures: a key and what it signed, the keys that a user trusts, and whether a maker is trusted.

Signed are the bytes `onnx-byoc bundle signature 1`, a line end, and the SHA-256 of `manifest.json` as it
stands in the bundle. The manifest has the SHA-256 of every other file, so all of them are covered. Of a
program in C it is `onnx-byoc program signature 1` and `program.json`, which has the SHA-256 of its code.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from byoc.errors import InputError, MissingRuntimeError, shorten_text
from byoc.support import CODEGENS, StrictModel, find_user_folder, list_installed, read_yaml, write_text
from byoc.support.trust._machine_key import MachineKey, can_sign, is_signature, read_key, read_own_file

# The settings of a user: `$XDG_CONFIG_HOME/byoc/settings.yaml`.
#
# They say which programs byoc starts for the user, so they are read from this file alone: a rule
# file, a model or a bundle names a codegen, and never an interpreter.

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class InterpreterSettings(StrictModel):
    """A codegen that runs in another Python.

    `python` is the absolute path of the interpreter, `module` the codegen's class in it, as
    `package.module:Class`, and `environment` has further environment variables of its process.
    """

    python: str
    module: str
    environment: dict[str, str] = Field(default_factory=dict)

    @field_validator("python")
    @classmethod
    def _check_python(cls, text: str) -> str:
        """Return the path with the home folder written out."""
        path = os.path.expanduser(text)  # noqa: PTH111 - a link stays what it is: venvs depend on it
        if not os.path.isabs(path):  # noqa: PTH117
            raise ValueError(f"'{text}' is not an absolute path")
        return path

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
