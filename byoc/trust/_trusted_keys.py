"""The public keys that a user trusts: `$XDG_CONFIG_HOME/byoc/trusted_keys`, one on a line.

A line is the key in hex, and behind a space a name for people. Lines that begin with `#` are comments.
"""

from collections.abc import Mapping
from pathlib import Path

from byoc.errors import InputError, shorten_text
from byoc.support import find_user_folder, write_text
from byoc.trust._cryptography import can_sign
from byoc.trust._private_files import read_own_file
from byoc.trust._signature import is_key

_MAX_NAME_CHARACTERS = 80


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
