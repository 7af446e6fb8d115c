"""The user's folders by the XDG Base Directory Specification (freedesktop.org, version 0.8)."""

import os
from pathlib import Path

from byoc.errors import InputError

_DEFAULTS = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
}


def find_user_folder(variable: str) -> Path:
    """Return byoc's folder in a base directory, `$XDG_CONFIG_HOME/byoc`; it need not exist.

    The specification says to ignore a variable that is not absolute. Raises InputError when it is not
    set and there is no home folder.
    """
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():
        return named / "byoc"
    try:
        return Path.home() / _DEFAULTS[variable] / "byoc"
    except RuntimeError:
        raise InputError(f"there is no home folder here; set {variable}") from None
