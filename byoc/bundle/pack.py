"""A bundle as one file: a zip whose bytes are those of its content and names alone.

Its entries are not compressed, since weights hardly are and what a compressor writes differs from
version to version; they are sorted by name and all have the same time and permissions.
"""

import shutil
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

from byoc.bundle.manifest import NAME
from byoc.bundle.names import quoted
from byoc.errors import InputError

SUFFIX = ".zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_UNIX = 3
_PERMISSIONS = stat.S_IFREG | 0o644


def is_packed_name(path: Path) -> bool:
    """Return whether a bundle written to a path is to be packed, which its name says: `m.byoc.zip`."""
    return path.suffix.lower() == SUFFIX


def write_packed(folder: Path, files: Iterable[str], path: Path) -> None:
    """Write a zip of a folder's manifest and some more of its files, in blocks.

    Raises InputError when the folder cannot be read, and OSError when the zip cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted({NAME, *files}):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = _UNIX
            info.external_attr = _PERMISSIONS << 16
            try:
                source = (folder / name).open("rb")
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{folder}: the file {quoted(name)} cannot be read: {reason}") from None
            with source:
                info.file_size = (folder / name).stat().st_size  # it decides on the form for over 2 GiB
                with archive.open(info, "w") as entry:
                    shutil.copyfileobj(source, entry, 1 << 20)
