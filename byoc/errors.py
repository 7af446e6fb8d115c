"""The errors that byoc raises on purpose.

Everything a user can cause is an `InputError`: one clear sentence that names the file or option and
the place in it. Anything else that escapes is a defect of byoc's own.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache


class ByocError(Exception):
    """Root of all errors that byoc raises on purpose."""


class InputError(ByocError):
    """The model, the rule file, a plug-in or an option is at fault; the message says which."""


class MissingRuntimeError(ByocError):
    """A step needs onnxruntime and none is installed; the message says how to get it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NEAREST?)` when a known name is close to `name`, else an empty string."""
    matches = _closest(name, tuple(sorted(known)))
    return f" (did you mean {matches[0]}?)" if matches else ""


@lru_cache
def _closest(name: str, known: tuple[str, ...]) -> list[str]:
    same = [other for other in known if other.lower() == name.lower()]
    return same[:1] or get_close_matches(name, known, n=1, cutoff=0.6)
