"""Files that are read and written: standard input, whole or absent outputs, the user's folders."""

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from byoc.errors import InputError
from byoc.support._workspace import open_workspace, replace_path

_BLOCK = 1 << 20


def read_limited(file: IO[bytes], limit: int) -> bytes:
    """Read a file in blocks; stop after more than `limit` bytes: the result tells if it is larger.

    Unlike `file.read(limit)` it asks for no more memory than the file has bytes.
    """
    blocks, left = [], limit + 1
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def is_utf8(text: str) -> bool:
    """Return whether text can be written as UTF-8; the name of a file need not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(path: Path, limit: int) -> str:
    """Read a text file in UTF-8 of at most `limit` bytes. Raises InputError with a sentence."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, limit)
        if len(content) <= limit:
            return content.decode("utf-8")
        reason = f"it has more than {limit} bytes"
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    raise InputError(f"{path}: cannot be read: {reason}")


# Writing files atomically: a file is replaced as a whole, or stays as it was.
#
# Links are followed. Devices, pipes and sockets are refused: replacing one would remove it.

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FICLONE = 0x40049409  # of ioctl_ficlone(2) on Linux


def check_output(path: Path) -> None:
    """Raise InputError when a path cannot be written; nothing is left behind."""
    _resolve_output(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8. Raises InputError when it cannot be written, and leaves the old one.

    What is not UTF-8 in the name of a file that the text quotes stands as `\\udcff`.
    """
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file with a function that gets it open. Raises as `write_text`."""
    place = _resolve_output(path)
    try:
        with open_workspace(place.parent) as workspace:
            fresh = workspace / "new"
            with fresh.open("wb") as file:
                write(file)
            replace_path(fresh, place)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def clone_file(source: Path, target: Path) -> bool:
    """Make a new file that shares the blocks of another (a reflink), where the file system has that.

    Returns False, and leaves no file, where it has not. Raises OSError for a file that cannot be read,
    or written.
    """
    if fcntl is None or sys.platform != "linux":
        return False
    with source.open("rb") as given, target.open("xb") as made:
        try:
            fcntl.ioctl(made, _FICLONE, given.fileno())
        except OSError:
            shared = False
        else:
            shared = True
    if not shared:
        target.unlink()
    return shared


def resolve_path(path: Path) -> Path:
    """Return a path with all links followed, as far as it exists.

    Raises OSError for links in a circle, at which `Path.resolve` raises RuntimeError before Python 3.13
    and returns a link after it.
    """
    try:
        found = path.resolve()
    except RuntimeError:
        found = path
    try:
        found.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return found


def find_inside(folder: Path, name: str) -> Path | None:
    """Return the real path of a file that a folder names, None where that leads out of the folder.

    Links are followed: they may lead to other files of the folder, and where it is a snapshot in a cache
    of huggingface_hub (`models--X/snapshots/REVISION`, whose files are links to `models--X/blobs`), to
    those of the cache. Raises OSError and ValueError for what can be no file's name.
    """
    real = resolve_path(folder / name)
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots" and roots[0].parents[1].name.startswith("models--"):
        roots.append(roots[0].parents[1] / "blobs")
    return real if any(real.is_relative_to(root) for root in roots) else None


def require_inside(folder: Path, name: str) -> Path:
    """Return the path of a file of a folder, which need not exist.

    Whoever made the folder would else choose a file of the user's that is read, or written. Raises
    InputError where it is a link that leads out of the folder.
    """
    path = folder / name
    try:
        is_inside = find_inside(folder, name) is not None
    except (OSError, ValueError):  # links in a circle; whoever opens it says what is wrong
        is_inside = True
    if not is_inside:
        raise InputError(f"{path}: is not used: it is a link that leads out of its folder")
    return path


def _resolve_output(path: Path) -> Path:
    """Return the resolved path of a file. Raises InputError when none can be written there."""
    try:
        why = _explain_unwritable(path)
        if not why:
            place = path.resolve()
            tempfile.TemporaryFile(dir=place.parent).close()
            return place
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file can have this name"
    raise InputError(f"{path}: cannot be written: {why}") from None


def _explain_unwritable(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    if path.exists():
        return "" if path.is_file() else "it is not a regular file"
    if path.is_symlink():
        return "it is a link to nothing"
    return "" if path.parent.is_dir() else f"there is no folder '{path.parent}'"


# The user's folders by the XDG Base Directory Specification (freedesktop.org, version 0.8).

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
