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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
