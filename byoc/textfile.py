"""Writing a text file whole or not at all: what was there is replaced at once, or left as it was."""

import os
import tempfile
from pathlib import Path

from byoc.errors import InputError


def check_output(path: Path) -> None:
    """Raise InputError when a file cannot be written to a path; looks, and leaves nothing behind."""
    if path.is_dir():
        raise InputError(f"{path}: cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written: there is no folder '{path.parent}'")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises InputError when it cannot be written; what is there is then as it was."""
    check_output(path)
    handle, name = tempfile.mkstemp(prefix=".byoc-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)  # mkstemp's files are their owner's alone; this one is like any other
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        Path(name).unlink(missing_ok=True)
