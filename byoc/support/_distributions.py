"""Name, version and requirements of installed distributions.

`importlib.metadata` parses for each of them all that a distribution says of itself, with its README a
millisecond or more; only the fields before the description are read here.
"""

import re
from functools import lru_cache
from importlib.metadata import Distribution, distribution

BYOC_DISTRIBUTION = "onnx-byoc"

_FIELD = re.compile(r"^(Name|Version|Requires-Dist): *(.+?) *$", re.MULTILINE)


@lru_cache(maxsize=1)
def read_byoc_version() -> str:
    """Return the version of the installed byoc, which stays the same while a program runs."""
    return read_name_and_version(distribution(BYOC_DISTRIBUTION))[1]


def read_name_and_version(found: Distribution) -> tuple[str, str]:
    """Return the name and version of a distribution, each as it writes them."""
    fields = dict(_read_fields(found))
    return fields.get("Name") or found.name, fields.get("Version") or found.version


def read_requirements(found: Distribution) -> list[str]:
    """Return the requirements of a distribution and its extras, as in its metadata: `numpy>=2`."""
    fields = _read_fields(found)
    if not fields:  # an old kind of distribution has them in a file of their own
        return list(found.requires or ())
    return [text for name, text in fields if name == "Requires-Dist"]


def _read_fields(found: Distribution) -> list[tuple[str, str]]:
    text = found.read_text("METADATA") or ""
    return _FIELD.findall(text.partition("\n\n")[0])
