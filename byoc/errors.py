"""The errors that byoc raises on purpose.

Everything a user can cause is an `InputError`: one clear sentence that names the file or option and
the place in it. Anything else that escapes is a defect of byoc's own.
"""

import signal
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache


class ByocError(Exception):
    """Root of all errors that byoc raises on purpose."""


class InputError(ByocError):
    """The model, the rule file, a plug-in or an option is at fault; the message says which."""


class MissingRuntimeError(ByocError):
    """A step needs onnxruntime and none is installed; the message says how to get it."""


_MOST_CHARACTERS = 500
# What the command line leaves with when it is told to stop; no plug-in's failure.
_TOLD_TO_STOP = {128 + number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", 1))}


def described(error: BaseException) -> str:
    """Return an exception of somebody's code in a line: its type and its text, cut where it is long."""
    text, kind = told(error), shortened(type(error).__name__, _MOST_CHARACTERS)
    return f"{kind}: {text}" if text else kind


def told(error: BaseException) -> str:
    """Return the text of an exception of somebody's code in a line; empty where it has none."""
    try:
        return shortened(str(error), _MOST_CHARACTERS)
    except Exception:  # whoever wrote it may have got that wrong too
        return ""


def shortened(text: str, most: int) -> str:
    """Return a text on one line, its beginning alone where it is longer than `most` characters.

    What is not printable (lone surrogates, control characters, those that turn the direction of what
    follows) is escaped: a sentence goes to terminals and into models and manifests.
    """
    text = str.__str__(text)  # of a subclass nothing of its own is asked
    line = printable(" ".join(text[: 2 * most].split()))
    return line if len(line) <= most and len(text) <= 2 * most else f"{line[: most - 3]}..."


def printable(text: str) -> str:
    """Return a text with what is not printable escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def goes_on(error: BaseException) -> bool:
    """Tell whether what a plug-in's code raised is no failure of the plug-in: byoc's own, or a stop."""
    code = error.code if isinstance(error, SystemExit) else None
    stops = isinstance(code, int) and code in _TOLD_TO_STOP
    return stops or isinstance(error, (ByocError, KeyboardInterrupt))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NEAREST?)` when a known name is close to `name`, else an empty string."""
    matches = _closest(name, tuple(sorted(known)))
    return f" (did you mean {matches[0]}?)" if matches else ""


@lru_cache
def _closest(name: str, known: tuple[str, ...]) -> list[str]:
    same = [other for other in known if other.lower() == name.lower()]
    return same[:1] or get_close_matches(name, known, n=1, cutoff=0.6)
