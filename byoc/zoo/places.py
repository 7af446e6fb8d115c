"""Folders of the cache and of the user's configuration, by the XDG base directory specification."""

import os
from pathlib import Path

from byoc.errors import InputError


def get_cache_folder() -> Path:
    """Return the folder of fetched models, `$XDG_CACHE_HOME/byoc/zoo`; it need not exist."""
    return _get_base_folder("XDG_CACHE_HOME", ".cache") / "byoc" / "zoo"


def get_config_file() -> Path:
    """Return the path of the user's configuration, `$XDG_CONFIG_HOME/byoc/config.yaml`."""
    return _get_base_folder("XDG_CONFIG_HOME", ".config") / "byoc" / "config.yaml"


def _get_base_folder(variable: str, default: str) -> Path:
    """Return a base directory; the specification says to ignore a variable that is not absolute.

    Raises `InputError` when it is not set and there is no home folder.
    """
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / default
    except RuntimeError:
        raise InputError(f"zoo: there is no home folder here; set {variable}") from None
