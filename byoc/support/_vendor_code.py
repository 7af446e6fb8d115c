"""The file and line of a plug-in's own code that raised an exception, which its author looks for."""

import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from os import sep
from pathlib import Path
from types import TracebackType

from byoc.errors import describe_error, shorten_text

_OWN_LIBRARIES = ("google", "ml_dtypes", "numpy", "onnx", "onnxruntime", "pydantic", "scipy")
_MOST_CHARACTERS = 200
_OWN_PACKAGE = str(Path(__file__).parent.parent)
_CODEGENS = f"{_OWN_PACKAGE}{sep}codegens"  # those that come along, where byoc is installed


class LocatedError(Exception):
    """An exception of a plug-in that was raised elsewhere, and where: `acme/lowering.py:42`."""

    location = ""


def describe_failure(error: BaseException) -> str:
    """Format an exception of a plug-in in one line: its type, its text, and where it was raised."""
    location = locate_error(error)
    return f"{describe_error(error)} ({location})" if location else describe_error(error)


def locate_error(error: BaseException) -> str:
    """Return the file and line of the plug-in's code that raised an exception: `acme/lowering.py:42`.

    That is the innermost frame that is neither byoc's nor the standard library's, and, if there is one,
    not that of a library which byoc needs, too. The file is relative to the folder that Python found it
    in. It is empty where no frame is a plug-in's.
    """
    if isinstance(error, LocatedError):
        return error.location
    found = ""
    for file, line in _list_frames(error.__traceback__):
        if not _is_below(file, _list_library_folders()):
            return _format_location(file, line)
        found = found or _format_location(file, line)
    return found


def _list_frames(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the files and lines of a traceback, the innermost first; those of no file are left out."""
    frames: list[tuple[str, int]] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    for file, line in reversed(frames):
        if file.startswith("<"):
            continue
        is_stdlib = _is_below(file, _list_stdlib_folders()) and not _is_below(file, _list_sites())
        is_byoc = _is_below(file, (_OWN_PACKAGE,)) and not _is_below(file, (_CODEGENS,))
        if not is_stdlib and not is_byoc:
            yield file, line


def _is_below(file: str, folders: tuple[str, ...]) -> bool:
    return any(file.startswith(folder + sep) for folder in folders)


@cache
def _list_stdlib_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


@cache
def _list_sites() -> tuple[str, ...]:
    found = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return tuple(found | {path for path in sys.path if path.endswith("-packages")})


@cache
def _list_library_folders() -> tuple[str, ...]:
    """The folders of the libraries that byoc needs as well."""
    found = []
    for name in _OWN_LIBRARIES:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        found += list(spec.submodule_search_locations or ()) if spec is not None else []
    return tuple(found)


def _format_location(file: str, line: int) -> str:
    """Return a file relative to the folder of `sys.path` that it is in, or its name, and the line."""
    roots = [path.rstrip(sep) for path in sys.path if path and _is_below(file, (path.rstrip(sep),))]
    root = max(roots, key=len, default="")
    shown = file.removeprefix(root + sep) if root else Path(file).name
    return shorten_text(f"{Path(shown).as_posix()}:{line}", _MOST_CHARACTERS)
