"""Failures of a codegen as JSON: the kind, the text, and the location in the codegen's code."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import CompileError, NotHereError, ResourceError
from .values import OptionsError

if TYPE_CHECKING:
    from collections.abc import Iterator


class WrongAnswerError(Exception):
    """A method of a codegen gave what it must not."""


_KINDS = (
    *((ResourceError, "too large"), (CompileError, "refused"), (NotHereError, "not here")),
    *((OptionsError, "input"), (WrongAnswerError, "failed")),
)


def describe_failure(error: BaseException, module: str) -> dict[str, Any]:
    """Return an exception of the codegen in a module as JSON."""
    try:
        text = " ".join(str(error).split())
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # the texts of exceptions are the codegen's own
        text = lines = ""
    nodes = getattr(error, "nodes", ()) if isinstance(error, CompileError) else ()
    return {
        "kind": next((kind for kinds, kind in _KINDS if isinstance(error, kinds)), "raised"),
        "type": type(error).__name__,
        "text": text,
        "nodes": [name for name in nodes if isinstance(name, str) and name],
        "lasting": bool(getattr(error, "lasting", True)),
        "region": "",
        "location": _locate(error, module),
        "traceback": lines,
    }


def _locate(error: BaseException, module: str) -> str:
    """Return the file and line that raised an exception: `acme/lowering.py:42`, empty if unknown.

    That is the innermost frame of the codegen's own package, else of any but byoc's and Python's own.
    """
    own = Path(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or os.sep)
    package = f"{own.parent}{os.sep}" if own.name == "__init__.py" else str(own)
    found = list(_list_frames(error))
    chosen = [each for each in found if own.name and each[0].startswith(package)] or found
    if not chosen:
        return ""
    file, line = chosen[0]
    roots = [path + os.sep for path in sys.path if path and file.startswith(path + os.sep)]
    shown = file[len(max(roots, key=len)) :] if roots else Path(file).name
    return f"{shown}:{line}"


def _list_frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the files and lines of a traceback, the innermost first, without byoc's and Python's own."""
    library, byoc = sysconfig.get_paths()["stdlib"] + os.sep, f"{Path(__file__).parent}{os.sep}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        is_own = file.startswith(byoc) or file.startswith("<")
        if not is_own and (not file.startswith(library) or "-packages" in file):
            yield file, line
