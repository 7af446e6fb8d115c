"""Reading of files that decide about trust: only while nobody else can have written, or read, them."""

import errno
import os
import stat
from pathlib import Path

from byoc.errors import InputError

_MAX_BYTES = 1 << 20
_IS_POSIX = os.name == "posix"


def read_own_file(path: Path, secret: bool) -> bytes | None:
    """Return the content of a file of the user's, None where there is none.

    A `secret` file is no link, and nobody else may read it; others may be links. Raises InputError with
    a sentence for one that is not a regular file, belongs to another user, or that others may write.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    if secret:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise InputError(f"{path}: is not used: {why}") from None
    why = _describe_problem(os.fstat(handle), path, secret)
    if why:
        os.close(handle)
        raise InputError(f"{path}: is not used: {why}")
    with os.fdopen(handle, "rb") as file:
        try:
            content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES:
        raise InputError(f"{path}: is not used: it has more than {_MAX_BYTES} bytes")
    return content


def _describe_problem(status: os.stat_result, path: Path, secret: bool) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if not _IS_POSIX:
        return ""
    if status.st_uid not in ({os.geteuid()} if secret else {os.geteuid(), 0}):
        return "it belongs to another user"
    if status.st_mode & (0o077 if secret else 0o022):
        able = "read or write" if secret else "write"
        mode, right = stat.S_IMODE(status.st_mode), "600" if secret else "644"
        return f"others may {able} it (its mode is {mode:03o}): chmod {right} {path}"
    return ""
