"""Hidden folders beside an output, in which it is made whole before it replaces the old one.

A workspace is a folder `.byoc-` and eight characters. Its file `lock` is locked (`flock`) as long as
the process that made it lives, so the next workspace in the same folder removes what dead processes
left, and nothing else. Where the system or the file system has no such locks, workspaces have no file
`lock`, and what is left stays.
"""

import ctypes
import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

from byoc.errors import InputError, suggest_nearest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".byoc-"  # short, since names have a maximal length
_NAME = re.compile(re.escape(_PREFIX) + "[a-z0-9_]{8}")  # the names that `mkdtemp` gives
_LOCK, _UNLOCKED = "lock", "unlocked"
_OLD = "old"
_OPEN: set[Path] = set()
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def open_workspace(folder: Path) -> Iterator[Path]:
    """Provide an empty hidden folder inside of `folder`, and remove it afterwards.

    What processes that are dead left in `folder` is removed first. Raises OSError if no folder can be
    made there.
    """
    remove_leftovers(folder)
    workspace, lock = _make_workspace(folder)
    _OPEN.add(workspace)
    try:
        yield workspace
    finally:
        _OPEN.discard(workspace)
        _remove_workspace(workspace)
        if lock is not None:
            os.close(lock)


def make_temporary_folder() -> Path:
    """Return a new temporary folder, which `remove_temporary_folder` removes.

    A forked process may drop what holds it: a `TemporaryDirectory` would be removed under its maker.
    """
    folder = Path(tempfile.mkdtemp(prefix="byoc-"))
    _OPEN.add(folder)
    return folder


def remove_temporary_folder(folder: Path) -> None:
    """Remove a folder that `make_temporary_folder` made."""
    _OPEN.discard(folder)
    shutil.rmtree(folder, ignore_errors=True)


def abandon_workspaces() -> None:
    """Remove the folders of this process, which is about to end without leaving their blocks."""
    for workspace in list(_OPEN):
        if not (workspace / _OLD).exists():  # what was moved aside is moved back by the next process
            _remove_workspace(workspace)


def remove_leftovers(folder: Path) -> None:
    """Remove the workspaces of dead processes from a folder; what cannot be removed stays.

    A folder that such a process had moved aside, and had not replaced yet, is moved back.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        found = [e.path for e in entries if _NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        for path in found:
            with suppress(OSError, ValueError):  # ValueError: a lock that names what no file can be
                _remove_leftover(Path(path))


def _make_workspace(folder: Path) -> tuple[Path, int | None]:
    """Return a new workspace and the open file of its lock, None where there are no locks."""
    while True:
        workspace = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        if fcntl is None:
            (workspace / _UNLOCKED).touch()
            return workspace, None
        with suppress(FileNotFoundError):  # another process took the empty folder for a leftover
            lock = os.open(workspace / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if _lock(lock) and _is_file(lock, workspace / _LOCK):
                    return workspace, lock
            except OSError:  # a file system without locks
                (workspace / _LOCK).rename(workspace / _UNLOCKED)
                return workspace, lock
            os.close(lock)


def _remove_leftover(workspace: Path) -> None:
    try:
        lock = os.open(workspace / _LOCK, os.O_RDWR | _NO_LINK)
    except FileNotFoundError:
        workspace.rmdir()  # killed before it had a lock: empty, or not a workspace that has one
        return
    try:
        if fcntl is not None and _lock(lock) and _is_file(lock, workspace / _LOCK):
            _move_back(workspace, os.fsdecode(os.read(lock, 4096)))
            _remove_workspace(workspace)
    finally:
        os.close(lock)


def _lock(file: int) -> bool:
    """Lock an open file and return True; False when another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file(opened: int, path: Path) -> bool:
    """Return whether a path is still the open file, which another process may have removed."""
    return os.path.samestat(os.fstat(opened), path.lstat())


def _remove_workspace(workspace: Path) -> None:
    """Remove a workspace, its lock last: a process killed meanwhile leaves one that is removed later."""
    with suppress(OSError):
        left = [entry for entry in workspace.iterdir() if entry.name != _LOCK]
        for entry in left:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if not any(entry.name != _LOCK for entry in workspace.iterdir()):
            (workspace / _LOCK).unlink(missing_ok=True)
            workspace.rmdir()


def _move_back(workspace: Path, name: str) -> None:
    """Move a folder that was moved aside back to its name, unless there is something by now."""
    place = workspace.parent / name
    if name and place.name == name and (workspace / _OLD).is_dir() and not os.path.lexists(place):
        (workspace / _OLD).rename(place)


def replace_path(fresh: Path, path: Path) -> None:
    """Replace what is at a path by a file or folder from a workspace beside it, in one step.

    All of it is on the disk before, so that a loss of power leaves the old or the new one, too. A
    folder that is there is exchanged with the new one, which ends in the workspace. Where the system
    cannot exchange folders (Linux and macOS can, on most file systems), the old one is moved aside
    first; the next workspace beside it moves it back if the process dies before the second step.
    Raises OSError, and leaves the old one.
    """
    sync_tree(fresh)
    sys.audit("byoc.replaced", path, fresh.stat().st_ino)  # another process may replace it again
    if not (path.is_dir() and fresh.is_dir()):
        fresh.replace(path)
    elif not _exchange_folders(fresh, path):
        _replace_in_two_steps(fresh, path)
    sync_path(path.parent)


def _replace_in_two_steps(fresh: Path, path: Path) -> None:
    workspace = fresh.parent
    if (workspace / _LOCK).exists():
        (workspace / _LOCK).write_bytes(os.fsencode(path.name))
        sync_path(workspace / _LOCK)
    aside = workspace / _OLD
    try:
        path.rename(aside)
        fresh.rename(path)
    except BaseException:  # even after an interrupt
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise


# Of renameat2(2) on Linux, and renamex_np(2) on macOS.
_HERE, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)


def _exchange_folders(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False when the system cannot. Raises OSError."""
    names = os.fsencode(one), os.fsencode(other)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(*names, _RENAME_SWAP)
        else:
            failed = library.renameat2(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE)
    except (OSError, AttributeError, TypeError):  # no such function, no such library
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(other))


def sync_tree(path: Path) -> None:
    """Write a file, or a folder with all that it holds, from the system's memory to the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            sync_tree(entry)
    sync_path(path)


def sync_path(path: Path) -> None:
    """Write a file, or the names in a folder, from the system's memory to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows does not open folders
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has nothing to write
            raise
    finally:
        os.close(opened)


# Files that are read and written: standard input, whole or absent outputs, the user's folders.

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


_MOST_NAMES = 1000  # of a folder, among which the nearest one is looked for


def describe_missing_file(path: Path, what: str = "file") -> str:
    """Return the sentence that there is no such file, with the nearest name in its folder, if any.

    `what` is the kind of thing that was looked for. The nearest name has the same
    ending and a like stem, or the same stem and another ending.
    """
    if str(path).startswith("zoo:"):
        return f"{path}: no such {what}: it is a model, for `byoc partition` and other verbs of models"
    try:
        with os.scandir(path.parent) as entries:
            names = [Path(entry.name) for entry in islice(entries, _MOST_NAMES)]
    except (OSError, ValueError):  # no such folder either, or no file can have this name
        names = []
    stems = [each.stem for each in names if each.suffix == path.suffix]
    near = suggest_nearest(path.stem, stems).removesuffix("?)")
    if near:
        return f"{path}: no such {what}{near}{path.suffix}?)"
    twins = sorted(each.name for each in names if each.stem == path.stem)
    return f"{path}: no such {what}" + (f" (did you mean {twins[0]}?)" if twins else "")


def read_text(path: Path, limit: int) -> str:
    """Read a text file in UTF-8 of at most `limit` bytes. Raises InputError with a sentence."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, limit)
        if len(content) <= limit:
            return content.decode("utf-8")
        reason = f"it has more than {limit} bytes"
    except FileNotFoundError:
        raise InputError(describe_missing_file(path)) from None
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


def make_folder(path: Path) -> None:
    """Make a folder, and those around it. Raises InputError when that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        why = (
            "it is a link to nothing"
            if path.is_symlink()
            else "there is a file of that name, and a folder is expected"
        )
        raise InputError(f"{path}: cannot be made: {why}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None


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
    sys.audit("byoc.looked_for", path)  # the link may lead elsewhere when the command is run again
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
    return describe_missing_folder(path.parent)


def describe_missing_folder(folder: Path) -> str:
    """Return why nothing can be written into a folder that is none; empty where it is one."""
    if folder.is_dir():
        return ""
    return f"'{folder}' is a file, no folder" if folder.exists() else f"there is no folder '{folder}'"


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
