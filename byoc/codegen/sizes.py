"""Sizes in bytes as users write them: `131072`, `128KiB`, `2 MB`."""

import re
from collections.abc import Mapping
from types import MappingProxyType

SIZE_UNITS: Mapping[str, int] = MappingProxyType(
    {
        **{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
        **{"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    }
)
"""The units of a size, in bytes; a size without a unit is in bytes."""

_SIZE = re.compile(rf"([0-9]{{1,18}})\s*({'|'.join(SIZE_UNITS)})?")


def parse_size(text: str) -> int:
    """Parse a size in bytes. Raises ValueError unless it is a whole number, optionally with a unit."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"'{text}' is not a size")
    return int(found[1]) * SIZE_UNITS[found[2] or "B"]
